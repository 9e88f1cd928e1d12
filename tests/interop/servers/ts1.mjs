// A server of the TypeScript SDK, 1.x line: `node ts1.mjs PACKAGES [TRANSPORT]`.
//
// Every server in this folder offers the same, so that a client can be moved from one to the next. This one only
// knows the legacy era: it asks its client by requests of its own, in the middle of a call or right after the start.
// TRANSPORT is `stdio` (the default), or one over HTTP: `stateful`, `stateless`, or the old `sse`. An HTTP server finds the
// socket that it listens on in place of its standard input.

import { randomUUID } from 'node:crypto';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';

import { readBody, refuse, serve } from './http.mjs';

const [packages, transport = 'stdio'] = process.argv.slice(2);
const require = createRequire(join(packages, 'node', 'package.json'));
const { Server } = require('@modelcontextprotocol/sdk/server/index.js');
const { SSEServerTransport } = require('@modelcontextprotocol/sdk/server/sse.js');
const { StdioServerTransport } = require('@modelcontextprotocol/sdk/server/stdio.js');
const { StreamableHTTPServerTransport } = require('@modelcontextprotocol/sdk/server/streamableHttp.js');
const types = require('@modelcontextprotocol/sdk/types.js');

const WATCHED = 'memo://watched';
const ANSWER = { type: 'object', properties: { answer: { type: 'string' } }, required: ['answer'] };

let cancelled = 0;
let touched = 0;
let extra = false;

const uris = ({ roots }) => roots.map(({ uri }) => uri);

/** One session: over stdio there is only one. */
const build = () => {
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
  let rootsAtStart = Promise.resolve([]);

  // Over HTTP a question has to name the call that it belongs to, or it goes to the stream that belongs to none.
  const about = ({ requestId }) => ({ relatedRequestId: requestId });
  const elicit = async (message, context) => {
    const { content } = await server.elicitInput({ message, requestedSchema: ANSWER }, about(context));
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

    async ask_twice(_arguments, context) {
      const from = await elicit('First question: where does the bridge begin?', context);
      const to = await elicit('Second question: where does it end?', context);
      return `From ${from} to ${to}.`;
    },

    async sample({ prompt }, context) {
      const messages = [{ role: 'user', content: { type: 'text', text: prompt } }];
      const { content } = await server.createMessage({ messages, maxTokens: 50 }, about(context));
      return `Sampled: ${content.text}`;
    },

    roots: async (_arguments, context) => uris(await server.listRoots({}, about(context))).join(', '),

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

    async log(_arguments, { sessionId }) {
      await server.sendLoggingMessage({ level: 'debug', data: 'a whisper' }, sessionId);
      await server.sendLoggingMessage({ level: 'warning', data: 'a remark' }, sessionId);
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

  return server;
};

const sessions = new Map();

const transports = {
  async stateful(request, response) {
    const body = await readBody(request);
    let session = sessions.get(request.headers['mcp-session-id']);
    if (!session && types.isInitializeRequest(body)) {
      session = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => sessions.set(id, session),
        onsessionclosed: (id) => sessions.delete(id),
      });
      await build().connect(session);
    }
    if (session) await session.handleRequest(request, response, body);
    else if (request.headers['mcp-session-id']) refuse(response, 404, 'Session not found');
    else refuse(response, 400, 'Mcp-Session-Id header is required');
  },

  async stateless(request, response) {
    if (request.method !== 'POST') return refuse(response, 405, 'Method not allowed');
    const session = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
    const server = build();
    response.on('close', () => server.close());
    await server.connect(session);
    return session.handleRequest(request, response, await readBody(request));
  },

  async sse(request, response) {
    const { pathname, searchParams } = new URL(request.url, 'http://localhost');
    if (request.method === 'GET' && pathname === '/sse') {
      const session = new SSEServerTransport('/message', response);
      sessions.set(session.sessionId, session);
      response.on('close', () => sessions.delete(session.sessionId));
      return build().connect(session);
    }
    const session = sessions.get(searchParams.get('sessionId'));
    if (request.method !== 'POST' || pathname !== '/message') return refuse(response, 405, 'Method not allowed');
    if (!session) return refuse(response, 404, 'Session not found');
    return session.handlePostMessage(request, response);
  },
};

if (transport === 'stdio') await build().connect(new StdioServerTransport());
else serve(transports[transport]);
