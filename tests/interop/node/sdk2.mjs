// What is peculiar to the TypeScript client, 2.x line.

export const folder = 'node2';

export const adapt = (require, era) => {
  const { Client, StreamableHTTPClientTransport, specTypeSchemas } = require('@modelcontextprotocol/client');
  return {
    Transport: StreamableHTTPClientTransport,
    newClient: (info, capabilities) => new Client(info, { capabilities, versionNegotiation: { mode: era } }),
    answer: (client, method, handler) => client.setRequestHandler(method, handler),
    callTool: (client, params, options) => client.callTool(params, options),
    resumeCall: (client, params, options) => client.request({ method: 'tools/call', params }, options),
    unknownMethod: (client, method) => client.request({ method }, specTypeSchemas.EmptyResult),
    httpStatus: (error) => error.status,
  };
};
