// A host for the client side of the conformance suite: an official client that starts `rialto connect` as its server.
//
// `node host.mjs URL`, as the suite's `client` command runs it: the scenario, the revision and the parameters of the
// scenario are in the environment, and so is where Rialto and the packages are. Revisions with a handshake are
// played by the TypeScript SDK 1.x, 2026-07-28 by the client 2.x. That one is set to speak nothing else, but for
// scenarios of authorization: `connect` opens no browser for `server/discover`, so there it is left to go on with
// `initialize`, as it does by default. The host decides nothing about HTTP: all that the scenario's server sees there is
// Rialto's doing. It ends with an error if a call fails that the scenario lets succeed.

import { mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const url = process.argv[2];
const { RIALTO_TEST_DEPS: testDeps, CONFORMANCE_RIALTO: rialto, RIALTO_STATE_DIR: state } = process.env;
const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const revision = process.env.MCP_CONFORMANCE_PROTOCOL_VERSION;
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');

const MODERN = '2026-07-28';
const INFO = { name: 'rialto-conformance-host', version: '1.0.0' };
const CAPABILITIES = { roots: {}, sampling: {}, elicitation: { form: { applyDefaults: true } } };

/** What is peculiar to either line of the SDK. */
const sdk = () => {
  if (revision !== MODERN) {
    const require = createRequire(join(testDeps, 'node', 'package.json'));
    const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
    const { ElicitRequestSchema } = require('@modelcontextprotocol/sdk/types.js');
    return {
      newClient: () => new Client(INFO, { capabilities: CAPABILITIES }),
      onQuestion: (client, answer) => client.setRequestHandler(ElicitRequestSchema, answer),
      Transport: require('@modelcontextprotocol/sdk/client/stdio.js').StdioClientTransport,
    };
  }
  const require = createRequire(join(testDeps, 'node2', 'package.json'));
  const { Client } = require('@modelcontextprotocol/client');
  const mode = scenario.startsWith('auth/') ? 'auto' : { pin: MODERN };
  return {
    newClient: () => new Client(INFO, { capabilities: CAPABILITIES, versionNegotiation: { mode } }),
    onQuestion: (client, answer) => client.setRequestHandler('elicitation/create', answer),
    Transport: require('@modelcontextprotocol/client/stdio').StdioClientTransport,
  };
};

const { newClient, onQuestion, Transport } = sdk();

/** Where the user has the client's key. */
const KEY_FILE = join(state, 'client-key.pem');

/** The flags in the host's entry where the client must be a registered one. */
const FLAGS = {
  'auth/basic-cimd': ['--client-metadata-url', 'https://conformance-test.local/client-metadata.json'],
  'auth/pre-registration': ['--client-id', context.client_id, '--client-secret-env', 'CLIENT_SECRET'],
  'auth/client-credentials-jwt': ['--client-id', context.client_id, '--client-key-file', KEY_FILE],
  'auth/client-credentials-basic': [
    ...['--grant', 'client-credentials'],
    ...['--client-id', context.client_id, '--client-secret-env', 'CLIENT_SECRET'],
  ],
};

if (context.private_key_pem) {
  mkdirSync(state, { recursive: true });
  writeFileSync(KEY_FILE, context.private_key_pem, { mode: 0o600 });
}
const args = ['connect', url, ...(FLAGS[scenario] ?? [])];
const env = context.client_secret ? { ...process.env, CLIENT_SECRET: context.client_secret } : process.env;

const open = async () => {
  const client = newClient();
  // Accepting with what the schema has as defaults; the 1.x line adds them to an empty answer by itself.
  onQuestion(client, async ({ params }) => {
    const confirmed = 'confirmed' in params.requestedSchema.properties ? { confirmed: true } : {};
    return { action: 'accept', content: confirmed };
  });
  await client.connect(new Transport({ command: rialto, args, env, stderr: 'inherit' }));
  return client;
};

/** An argument of each type that a schema may want. */
const ARGUMENTS = { string: 'text', number: 1.5, integer: 1, boolean: true, null: null, object: {}, array: [] };
const argumentsFor = ({ inputSchema }) =>
  Object.fromEntries(Object.entries(inputSchema.properties ?? {}).map(([name, { type }]) => [name, ARGUMENTS[type]]));

const callAll = async (client) => {
  for (const tool of (await client.listTools()).tools) {
    await client.callTool({ name: tool.name, arguments: argumentsFor(tool) });
  }
};

const plays = {
  initialize: (client) => client.listTools(),

  async tools_call(client) {
    await client.listTools();
    await client.callTool({ name: 'add_numbers', arguments: { a: 5, b: 3 } });
  },

  // The server has no tools, and the SDK does not ask for a list that cannot be there.
  'request-metadata': (client) => client.callTool({ name: 'any', arguments: {} }),

  async 'http-standard-headers'(client) {
    await callAll(client);
    for (const { uri } of (await client.listResources()).resources) await client.readResource({ uri });
    for (const { name } of (await client.listPrompts()).prompts) await client.getPrompt({ name });
  },

  async 'http-custom-headers'(client) {
    await client.listTools();
    for (const call of context.toolCalls) await client.callTool(call);
  },

  // One call waits for its answer while others are made. The SDK is stricter than the scenario: it takes no result
  // without `resultType` from a server of this revision, and reports that; what matters is that it asks for nothing more.
  async 'sep-2322-client-request-state'(client) {
    const names = (await client.listTools()).tools.map(({ name }) => name);
    const calls = names.map(async (name) => {
      const ended = client.callTool({ name, arguments: {} });
      await (name.includes('no_result_type') ? ended.catch(() => {}) : ended);
    });
    await Promise.all(calls);
  },

  'json-schema-ref-no-deref': (client) => client.listTools(),

  async 'json-schema-2020-12-preservation'(client) {
    const { tools } = await client.listTools();
    const [focal, echo] = tools;
    await client.callTool({ name: echo.name, arguments: { schema: focal.inputSchema } });
  },
};

const client = await open();
await (plays[scenario] ?? callAll)(client);
await client.close();
