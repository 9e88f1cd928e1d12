// A stdio server of the TypeScript SDK, 1.x line, that works on calls as tasks: `node ts1_tasks.mjs PACKAGES`.
//
// `slow` may be a task, `must` and `ask` have to be one; `ask` asks its client before it ends. `runs` returns how often any
// of them was begun.

import { createRequire } from 'node:module';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';

const [packages] = process.argv.slice(2);
const require = createRequire(join(packages, 'node', 'package.json'));
const { McpServer } = require('@modelcontextprotocol/sdk/server/mcp.js');
const { StdioServerTransport } = require('@modelcontextprotocol/sdk/server/stdio.js');
const { InMemoryTaskStore, InMemoryTaskMessageQueue } = require('@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js');

const ANSWER = { type: 'object', properties: { answer: { type: 'string' } }, required: ['answer'] };

const server = new McpServer(
  { name: 'interop-typescript-1-tasks', version: '1.0.0' },
  {
    capabilities: { tools: {}, tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } },
    taskStore: new InMemoryTaskStore(),
    taskMessageQueue: new InMemoryTaskMessageQueue(),
  },
);

let runs = 0;
server.registerTool('runs', { description: 'How often a task was begun' }, async () => ({
  content: [{ type: 'text', text: String(runs) }],
}));

const textResult = (text) => ({ content: [{ type: 'text', text }] });

/** Registers a tool that is worked on as a task. */
function task(name, taskSupport, work) {
  const config = { description: `A task: ${name}`, execution: { taskSupport } };
  server.experimental.tasks.registerToolTask(name, config, {
    async createTask({ taskStore, taskRequestedTtl }) {
      runs += 1;
      const created = await taskStore.createTask({ ttl: taskRequestedTtl ?? 60_000, pollInterval: 50 });
      work(created.taskId, taskStore)
        .then(
          (text) => taskStore.storeTaskResult(created.taskId, 'completed', textResult(text)),
          (error) => taskStore.storeTaskResult(created.taskId, 'failed', { ...textResult(String(error)), isError: true }),
        )
        // A task that was cancelled takes no result.
        .catch(() => {});
      return { task: created };
    },
    getTask: async ({ taskId, taskStore }) => taskStore.getTask(taskId),
    getTaskResult: async ({ taskId, taskStore }) => taskStore.getTaskResult(taskId),
  });
}

task('slow', 'optional', async () => {
  await wait(100);
  return 'Slowly done.';
});

task('must', 'required', async () => {
  await wait(100);
  return 'Done as a task.';
});

task('ask', 'required', async (taskId, taskStore) => {
  await taskStore.updateTaskStatus(taskId, 'input_required');
  const asked = { message: 'Which bridge?', requestedSchema: ANSWER };
  const { content } = await server.server.elicitInput(asked, { relatedTask: { taskId } });
  await taskStore.updateTaskStatus(taskId, 'working');
  return `The answer was: ${content?.answer}`;
});

await server.connect(new StdioServerTransport());
