// What is peculiar to the TypeScript SDK, 1.x line.

export const folder = 'node';

export const adapt = (require, era) => {
  if (era !== 'legacy' && era !== 'old') throw new Error(`this SDK does not know the ${era} way to connect`);
  const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
  const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
  const { SSEClientTransport } = require('@modelcontextprotocol/sdk/client/sse.js');
  const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');
  const types = require('@modelcontextprotocol/sdk/types.js');
  const schemas = {
    'sampling/createMessage': types.CreateMessageRequestSchema,
    'elicitation/create': types.ElicitRequestSchema,
    'roots/list': types.ListRootsRequestSchema,
  };
  return {
    Transport: era === 'old' ? SSEClientTransport : StreamableHTTPClientTransport,
    // Over stdio the SDK does not keep the revision, so it is kept here.
    program: (parameters) =>
      Object.assign(new StdioClientTransport(parameters), {
        setProtocolVersion(version) {
          this.protocolVersion = version;
        },
      }),
    newClient: (info, capabilities) => new Client(info, { capabilities }),
    answer: (client, method, handler) => client.setRequestHandler(schemas[method], handler),
    callTool: (client, params, options) => client.callTool(params, undefined, options),
    resumeCall: (client, params, options) =>
      client.request({ method: 'tools/call', params }, types.CallToolResultSchema, options),
    unknownMethod: (client, method) => client.request({ method }, types.EmptyResultSchema),
    protocolVersion: (_client, transport) => transport.protocolVersion,
    httpStatus: (error) => error.code,
    /** Calls a tool as a task and follows it to its end. */
    async followTask(client, name) {
      // The SDK calls as a task only what it has listed.
      await client.listTools();
      const seen = {};
      const call = client.experimental.tasks.callToolStream({ name, arguments: {} }, types.CallToolResultSchema, { task: {} });
      for await (const message of call) {
        if (message.type === 'taskCreated') seen.id = message.task.taskId;
        if (message.type === 'result') seen.text = message.result.content[0].text;
        if (message.type === 'error') seen.text = String(message.error);
      }
      return seen;
    },
    listTasks: async (client) => (await client.experimental.tasks.listTasks()).tasks.map(({ taskId }) => taskId),
  };
};
