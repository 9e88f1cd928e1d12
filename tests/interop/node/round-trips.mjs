// An official TypeScript client that makes one call after the other and prints how long they took:
// `node round-trips.mjs SECONDS http URL` or `node round-trips.mjs SECONDS stdio PROGRAM ARGUMENT…`.
//
// Prints their median in microseconds. The tool is `echo` of the benchmark's server.

import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const [seconds, way, ...words] = process.argv.slice(2);

// The packages live in the ignored folder, not beside this file, so they are looked up from there.
const here = dirname(fileURLToPath(import.meta.url));
const testDeps = process.env.RIALTO_TEST_DEPS ?? join(here, '..', '..', '..', '.test-deps');
const load = createRequire(join(testDeps, 'node', 'package.json'));
const { Client } = load('@modelcontextprotocol/sdk/client/index.js');
const { CallToolResultSchema } = load('@modelcontextprotocol/sdk/types.js');

function transport() {
  if (way === 'http') {
    const { StreamableHTTPClientTransport } = load('@modelcontextprotocol/sdk/client/streamableHttp.js');
    return new StreamableHTTPClientTransport(new URL(words[0]));
  }
  const { StdioClientTransport } = load('@modelcontextprotocol/sdk/client/stdio.js');
  const [command, ...args] = words;
  return new StdioClientTransport({ command, args, env: process.env, stderr: 'ignore' });
}

const client = new Client({ name: 'bench-round-trips', version: '1.0.0' });
await client.connect(transport());

async function run(time) {
  const took = [];
  const end = performance.now() + time;
  for (let number = 0; performance.now() < end; number += 1) {
    const params = { name: 'echo', arguments: { text: `call ${number}` } };
    const start = performance.now();
    await client.request({ method: 'tools/call', params }, CallToolResultSchema);
    took.push(performance.now() - start);
  }
  return took.sort((one, other) => one - other);
}

// The first calls are slow: they are compiled while they run.
await run((Number(seconds) * 1000) / 2);
const took = await run(Number(seconds) * 1000);
await client.close();
console.log(took[Math.floor(took.length / 2)] * 1000);
