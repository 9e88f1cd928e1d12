// A stdio server of the TypeScript SDK, 1.x line: `node ts1.mjs PACKAGES`.
//
// Every server in this folder offers the same, so that a client can be moved from one to the next. This one only
// knows the legacy era: it asks its client by requests of its own, in the middle of a call or right after the start.

import { createRequire } from 'node:module';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';

const [packages] = process.argv.slice(2);
const require = createRequire(join(packages, 'node', 'package.json'));
const { Server } = require('@modelcontextprotocol/sdk/server/index.js');
const { StdioServerTransport } = require('@modelcontextprotocol/sdk/server/stdio.js');
const types = require('@modelcontextprotocol/sdk/types.js');

const WATCHED = 'memo://watched';
const ANSWER = { type: 'object', properties: { answer: { type: 'string' } }, required: ['answer'] };

const server = new Server(
  { name: 'interop-typescript-1', version: '1.0.0' },
  {
    capabilities: {
      tools: { listChanged: true },
      resources: { subscribe: true, listChanged: true },
      logging: {},
    },
  },
);

const subscribed = new Set();
let cancelled = 0;
let touched = 0;
let extra = false;
let rootsAtStart = Promise.resolve([]);

const uris = ({ roots }) => roots.map(({ uri }) => uri);
const elicit = async (message) => {
  const { content } = await server.elicitInput({ message, requestedSchema: ANSWER });
  return content.answer;
};

const tools = {
  echo: ({ message }) => `Echo: ${message}`,

  whoami: () => JSON.stringify({ era: 'legacy', pid: process.pid, cancelled }),

  async count({ steps, delay_ms }, { signal, _meta, sendNotification }) {
    for (let step = 1; step <= steps; step += 1) {
      if (signal.aborted) {
        cancelled += 1;
        return 'cancelled';
      }
      if (_meta?.progressToken !== undefined) {
        const params = { progressToken: _meta.progressToken, progress: step, total: steps };
        await sendNotification({ method: 'notifications/progress', params });
      }
      await wait(delay_ms);
    }
    return `Counted to ${steps}.`;
  },

  async ask_twice() {
    const from = await elicit('First question: where does the bridge begin?');
    const to = await elicit('Second question: where does it end?');
    return `From ${from} to ${to}.`;
  },

  async sample({ prompt }) {
    const messages = [{ role: 'user', content: { type: 'text', text: prompt } }];
    const { content } = await server.createMessage({ messages, maxTokens: 50 });
    return `Sampled: ${content.text}`;
  },

  roots: async () => uris(await server.listRoots()).join(', '),

  roots_at_start: async () => (await rootsAtStart).join(', '),

  async touch() {
    touched += 1;
    if (subscribed.has(WATCHED)) await server.sendResourceUpdated({ uri: WATCHED });
    return `Touched ${touched}.`;
  },

  async toggle_tool() {
    extra = !extra;
    await server.sendToolListChanged();
    return `The extra tool is ${extra ? 'there' : 'gone'}.`;
  },

  async log() {
    await server.sendLoggingMessage({ level: 'debug', data: 'a whisper' });
    await server.sendLoggingMessage({ level: 'warning', data: 'a remark' });
    return 'Logged.';
  },

  // Ends in the middle of a call, not before it has begun to speak.
  async exit(_arguments, context) {
    await tools.count({ steps: 3, delay_ms: 20 }, context);
    process.exit(3);
  },
};

server.oninitialized = () => {
  if (server.getClientCapabilities()?.roots) rootsAtStart = server.listRoots().then(uris, (error) => [error.message]);
};

server.setRequestHandler(types.ListToolsRequestSchema, () => {
  const names = extra ? [...Object.keys(tools), 'extra'] : Object.keys(tools);
  return { tools: names.map((name) => ({ name, inputSchema: { type: 'object' } })) };
});

server.setRequestHandler(types.CallToolRequestSchema, async ({ params }, context) => {
  const text = await tools[params.name](params.arguments ?? {}, context);
  return { content: [{ type: 'text', text }] };
});

server.setRequestHandler(types.ListResourcesRequestSchema, () => ({ resources: [{ uri: WATCHED, name: 'watched' }] }));

server.setRequestHandler(types.ReadResourceRequestSchema, ({ params }) => ({
  contents: [{ uri: params.uri, text: `Version ${touched}` }],
}));

server.setRequestHandler(types.SubscribeRequestSchema, ({ params }) => {
  subscribed.add(params.uri);
  return {};
});

server.setRequestHandler(types.UnsubscribeRequestSchema, ({ params }) => {
  subscribed.delete(params.uri);
  return {};
});

await server.connect(new StdioServerTransport());
