// An official TypeScript client, 1.x line, that uses tasks: `node tasks.mjs typescript1 legacy URL`.
//
// Plays against `tests/interop/servers/ts1_tasks.mjs` behind URL and prints one JSON line: what it observed. Judging
// that is left to the Rust test.

import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const [, , url] = process.argv.slice(2);
const here = dirname(fileURLToPath(import.meta.url));
const testDeps = process.env.RIALTO_TEST_DEPS ?? join(here, '..', '..', '..', '.test-deps');
const require = createRequire(join(testDeps, 'node', 'package.json'));
const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
const { CallToolResultSchema, ElicitRequestSchema } = require('@modelcontextprotocol/sdk/types.js');

const client = new Client({ name: 'rialto-interop-tasks', version: '1.0.0' }, { capabilities: { elicitation: { form: {} } } });
const asked = [];
client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
  asked.push(params.message);
  return { action: 'accept', content: { answer: 'Rialto' } };
});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
await client.listTools();

/** Calls a tool as a task and follows it to its end. */
async function follow(name) {
  const seen = { statuses: [] };
  for await (const message of client.experimental.tasks.callToolStream({ name, arguments: {} }, CallToolResultSchema, { task: {} })) {
    if (message.type === 'taskCreated') seen.id = message.task.taskId;
    if (message.type === 'taskStatus') seen.statuses.push(message.task.status);
    if (message.type === 'result') seen.text = message.result.content[0].text;
    if (message.type === 'error') seen.error = String(message.error);
  }
  return seen;
}

const slow = await follow('slow');
const ask = await follow('ask');
const { tasks } = await client.experimental.tasks.listTasks();
const runs = await client.callTool({ name: 'runs', arguments: {} });
const observed = {
  slow: slow.text ?? slow.error,
  ask: ask.text ?? ask.error,
  asked,
  listed: tasks.map(({ taskId }) => taskId).sort(),
  own: [slow.id, ask.id].sort(),
  runs: runs.content[0].text,
};
process.stdout.write(`${JSON.stringify(observed)}\n`);
await client.close();
