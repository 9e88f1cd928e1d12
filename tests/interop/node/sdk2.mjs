// What is peculiar to the TypeScript client, 2.x line.

export const folder = 'node2';

export const adapt = (require, era) => {
  const { Client, StreamableHTTPClientTransport, specTypeSchemas } = require('@modelcontextprotocol/client');
  const { StdioClientTransport } = require('@modelcontextprotocol/client/stdio');
  const mode = era === 'modern' ? { pin: '2026-07-28' } : era;
  return {
    Transport: StreamableHTTPClientTransport,
    program: (parameters) => new StdioClientTransport(parameters),
    newClient: (info, capabilities) => new Client(info, { capabilities, versionNegotiation: { mode } }),
    answer: (client, method, handler) => client.setRequestHandler(method, handler),
    callTool: (client, params, options) => client.callTool(params, options),
    resumeCall: (client, params, options) => client.request({ method: 'tools/call', params }, options),
    unknownMethod: (client, method) => client.request({ method }, specTypeSchemas.EmptyResult),
    protocolVersion: (client) => client.getNegotiatedProtocolVersion(),
    httpStatus: (error) => error.status,
  };
};
