// A server of the TypeScript packages, 2.x line: `node ts2.mjs PACKAGES ERA [TRANSPORT]`, with ERA `modern` or `both` and
// TRANSPORT `stdio` (the default) or `http`, which serves the legacy era without sessions.
//
// It offers what its neighbours do. It always asks by answering `input_required`; where it is spoken to in the legacy
// era the SDK itself makes requests of that.

import { createRequire } from 'node:module';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';

import { serve } from './http.mjs';

const [packages, eras, transport = 'stdio'] = process.argv.slice(2);
const require = createRequire(join(packages, 'node2', 'package.json'));
const { toNodeHandler } = require('@modelcontextprotocol/node');
const { McpServer, createMcpHandler, fromJsonSchema, inputRequired } = require('@modelcontextprotocol/server');
const { serveStdio } = require('@modelcontextprotocol/server/stdio');

const WATCHED = 'memo://watched';
const ANSWER = { type: 'object', properties: { answer: { type: 'string' } }, required: ['answer'] };
const ANYTHING = fromJsonSchema({ type: 'object' });

const subscribed = new Set();
let cancelled = 0;
let touched = 0;
let extra = false;
let registered;
let http;

const addExtra = (mcp) => mcp.registerTool('extra', { inputSchema: ANYTHING }, () => ({ content: [] }));
const elicit = (message) => inputRequired.elicit({ message, requestedSchema: ANSWER });
const uris = ({ roots }) => roots.map(({ uri }) => uri);
const answered = ({ mcpReq }, key) => mcpReq.inputResponses?.[key];

const roots = (_arguments, context) => {
  const answer = answered(context, 'roots');
  if (answer === undefined) return inputRequired({ inputRequests: { roots: inputRequired.listRoots() } });
  return uris(answer).join(', ');
};

const tools = {
  echo: ({ message }) => `Echo: ${message}`,

  whoami: (_arguments, _context, { era }) => JSON.stringify({ era, pid: process.pid, cancelled }),

  async count({ steps, delay_ms }, { mcpReq }) {
    for (let step = 1; step <= steps; step += 1) {
      if (mcpReq.signal.aborted) {
        cancelled += 1;
        return 'cancelled';
      }
      const progressToken = mcpReq._meta?.progressToken;
      if (progressToken !== undefined) {
        const params = { progressToken, progress: step, total: steps };
        await mcpReq.notify({ method: 'notifications/progress', params });
      }
      await wait(delay_ms);
    }
    return `Counted to ${steps}.`;
  },

  ask_twice(_arguments, context) {
    // A round brings back only its own answers, so the state carries the earlier one.
    const to = answered(context, 'to')?.content.answer;
    if (to !== undefined) return `From ${context.mcpReq.requestState()} to ${to}.`;
    const from = answered(context, 'from')?.content.answer;
    if (from !== undefined) {
      return inputRequired({
        inputRequests: { to: elicit('Second question: where does it end?') },
        requestState: from,
      });
    }
    return inputRequired({ inputRequests: { from: elicit('First question: where does the bridge begin?') } });
  },

  sample({ prompt }, context) {
    const answer = answered(context, 'completion');
    if (answer !== undefined) return `Sampled: ${answer.content.text}`;
    const messages = [{ role: 'user', content: { type: 'text', text: prompt } }];
    return inputRequired({ inputRequests: { completion: inputRequired.createMessage({ messages, maxTokens: 50 }) } });
  },

  roots,

  // A modern server has no start at which it could ask.
  roots_at_start: roots,

  async touch(_arguments, _context, { era, server }) {
    touched += 1;
    // In the modern era the SDK knows which clients listen.
    if (http) await http.notify.resourceUpdated(WATCHED);
    else if (era === 'modern' || subscribed.has(WATCHED)) await server.sendResourceUpdated({ uri: WATCHED });
    return `Touched ${touched}.`;
  },

  async toggle_tool(_arguments, _context, { mcp }) {
    extra = !extra;
    // Over HTTP every request has a server of its own, and the next one is built with the tool or without.
    if (http) await http.notify.toolsChanged();
    else if (extra) registered = addExtra(mcp);
    else registered.remove();
    return `The extra tool is ${extra ? 'there' : 'gone'}.`;
  },

  async log(_arguments, { mcpReq }) {
    await mcpReq.log('debug', 'a whisper');
    await mcpReq.log('warning', 'a remark');
    return 'Logged.';
  },

  // Ends in the middle of a call, not before it has begun to speak.
  async exit(_arguments, context) {
    await tools.count({ steps: 3, delay_ms: 20 }, context);
    process.exit(3);
  },
};

const build = ({ era }) => {
  const mcp = new McpServer(
    { name: 'interop-typescript-2', version: '1.0.0' },
    {
      capabilities: {
        tools: { listChanged: true },
        resources: { subscribe: true, listChanged: true },
        logging: {},
      },
    },
  );
  const { server } = mcp;
  for (const [name, run] of Object.entries(tools)) {
    mcp.registerTool(name, { inputSchema: ANYTHING }, async (args, context) => {
      const result = await run(args, context, { mcp, server, era });
      return typeof result === 'string' ? { content: [{ type: 'text', text: result }] } : result;
    });
  }
  if (http && extra) addExtra(mcp);
  mcp.registerResource('watched', WATCHED, {}, (uri) => ({ contents: [{ uri: uri.href, text: `Version ${touched}` }] }));
  if (era === 'legacy') {
    server.setRequestHandler('resources/subscribe', ({ params }) => {
      subscribed.add(params.uri);
      return {};
    });
    server.setRequestHandler('resources/unsubscribe', ({ params }) => {
      subscribed.delete(params.uri);
      return {};
    });
  }
  return mcp;
};

if (transport === 'stdio') {
  serveStdio(build, { legacy: eras === 'modern' ? 'reject' : 'serve' });
} else {
  http = createMcpHandler(build, eras === 'modern' ? { legacy: 'reject' } : {});
  serve(toNodeHandler(http));
}
