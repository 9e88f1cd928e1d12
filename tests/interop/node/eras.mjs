// An official TypeScript client in front of a server that may speak another era: `node eras.mjs SDK ERA URL SCENARIOS`.
//
// SDK is `typescript1` or `typescript2`; ERA is `legacy`, `auto` or `modern`; SCENARIOS is `all`, or names with commas
// between them. Plays them against the server at URL, one of `tests/interop/servers`, and prints one JSON line: by
// scenario what it observed, or its error. Judging that is left to the Rust test. If RIALTO_CONNECT names the binary, the
// client starts it and speaks to it over stdio, and it is `rialto connect` that reaches URL. With `aggregate` in place of
// SCENARIOS it plays those of `aggregate.mjs`.

import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { ofAnAggregate } from './aggregate.mjs';
import * as sdk1 from './sdk1.mjs';
import * as sdk2 from './sdk2.mjs';
import { Sightings } from './sightings.mjs';

const [sdkName, era, url, wanted] = process.argv.slice(2);

const here = dirname(fileURLToPath(import.meta.url));
const testDeps = process.env.RIALTO_TEST_DEPS ?? join(here, '..', '..', '..', '.test-deps');
const { folder, adapt } = { typescript1: sdk1, typescript2: sdk2 }[sdkName];
const connect = process.env.RIALTO_CONNECT;
const sdk = adapt(createRequire(join(testDeps, folder, 'package.json')), era);

const isWanted = (name) => ['all', 'aggregate'].includes(wanted) || wanted.split(',').includes(name);

const DEADLINE_MS = 20_000;
const WATCHED = 'memo://watched';
const LOG_LEVEL = 'io.modelcontextprotocol/logLevel';
const ENDLESS = { steps: 10_000, delay_ms: 20 };

/** A client that can answer every question of a server, and all messages that it saw. */
class Witness {
  notifications = new Sightings();
  exchanges = new Sightings();
  messages = [];
  asked = [];
  places = ['San Polo', 'San Marco'];

  constructor() {
    const capabilities = { elicitation: { form: {} }, sampling: {}, roots: {} };
    this.client = sdk.newClient({ name: 'rialto-interop-typescript', version: '1.0.0' }, capabilities);
    this.client.fallbackNotificationHandler = async (notification) => this.notifications.add(notification);
    sdk.answer(this.client, 'elicitation/create', async ({ params }) => {
      this.asked.push(params.message);
      return { action: 'accept', content: { answer: this.places.shift() } };
    });
    sdk.answer(this.client, 'sampling/createMessage', async ({ params }) => {
      this.asked.push([params.messages[0].content].flat()[0].text);
      return { role: 'assistant', model: 'witness', stopReason: 'endTurn', content: { type: 'text', text: 'A friend.' } };
    });
    sdk.answer(this.client, 'roots/list', async () => ({ roots: [{ uri: 'file:///srv/one', name: 'One' }] }));
    this.transport = connect ? sdk.program({ command: connect, args: ['connect', url] }) : this.overHttp();
  }

  overHttp() {
    return new sdk.Transport(new URL(url), {
      fetch: async (input, init = {}) => {
        const response = await fetch(input, init);
        this.exchanges.add({ method: init.method ?? 'GET', status: response.status });
        return response;
      },
    });
  }

  async open() {
    await this.client.connect(this.transport);
    const { onmessage } = this.transport;
    this.transport.onmessage = (message, extra) => {
      this.messages.push(message);
      onmessage(message, extra);
    };
    // A server that `connect` reaches has a session for each scenario, and a legacy one asks at its start. A modern
    // client can be asked only in a call, so there is one before the call that is looked at.
    if (connect && this.isModern && isWanted('roots_at_start')) await this.text('roots_at_start');
    return this;
  }

  get isModern() {
    return this.version === '2026-07-28';
  }

  get version() {
    return sdk.protocolVersion(this.client, this.transport);
  }

  /** Resolves when notifications of the server would be received. */
  async listening(filter) {
    if (this.isModern) return this.client.listen(filter);
    // Over stdio there is nothing to open.
    if (!connect) await this.exchanges.until(({ method, status }) => method === 'GET' && status === 200);
    for (const uri of filter.resourceSubscriptions ?? []) await this.client.subscribeResource({ uri });
  }

  /** Ends the session where the era has one, so that the next scenario is not counted beside this one. */
  async close() {
    if (!connect && !this.isModern) await this.transport.terminateSession();
    await this.client.close();
  }

  received(method) {
    return this.notifications.until((notification) => notification.method === method);
  }

  async text(name, args = {}, { meta, ...options } = {}) {
    const params = { name, arguments: args, ...(meta && { _meta: meta }) };
    const result = await sdk.callTool(this.client, params, options);
    if (result.isError) throw new Error(`the tool failed: ${JSON.stringify(result.content)}`);
    return result.content.map((part) => part.text).join('\n');
  }

  whoami = async () => JSON.parse(await this.text('whoami'));
}

const outcome = (promise) => promise.then((answer) => `answered: ${answer}`, (error) => `failed: ${error.message ?? error}`);

// The order matters. A legacy server asks for roots when it starts. After a cancellation that a server does not
// confirm, Rialto takes its messages of the next five seconds as possibly about the cancelled call.
const scenarios = {
  roots_at_start: async (witness) => ({ text: await witness.text('roots_at_start') }),

  call: async (witness) => ({
    text: await witness.text('echo', { message: 'Grüße, 世界 \u2028 "quoted" \\ \u{1F309}' }),
    version: witness.version,
    serverEra: (await witness.whoami()).era,
  }),

  // Progress is observed on the transport: if the answer comes in the same read as the last steps, the SDK has removed
  // the progress handler before it handles them.
  async progress(witness) {
    const text = await witness.text('count', { steps: 5, delay_ms: 20 }, { onprogress: () => {} });
    const progress = witness.messages.filter(({ method }) => method === 'notifications/progress');
    return { text, seen: progress.map(({ params }) => [params.progress, params.total]) };
  },

  two_elicitations: async (witness) => ({ text: await witness.text('ask_twice'), asked: witness.asked }),

  sampling: async (witness) => ({
    text: await witness.text('sample', { prompt: 'Who goes there?' }),
    asked: witness.asked,
  }),

  roots_in_a_call: async (witness) => ({ text: await witness.text('roots') }),

  async list_changed(witness) {
    const names = async () => (await witness.client.listTools()).tools.map(({ name }) => name);
    const before = await names();
    await witness.listening({ toolsListChanged: true });
    await witness.text('toggle_tool');
    await witness.received('notifications/tools/list_changed');
    return { added: (await names()).filter((name) => !before.includes(name)) };
  },

  async resource_update(witness) {
    const read = async () => (await witness.client.readResource({ uri: WATCHED })).contents[0].text;
    const before = await read();
    await witness.listening({ resourceSubscriptions: [WATCHED] });
    await witness.text('touch');
    const { params } = await witness.received('notifications/resources/updated');
    return { uri: params.uri, before, after: await read() };
  },

  async logs(witness) {
    if (!witness.isModern) {
      await witness.listening({});
      await witness.client.setLoggingLevel('info');
    }
    await witness.text('log', {}, { meta: witness.isModern ? { [LOG_LEVEL]: 'info' } : undefined });
    await witness.received('notifications/message');
    const logs = witness.notifications.items.filter(({ method }) => method === 'notifications/message');
    return { logs: logs.map(({ params }) => [params.level, params.data]) };
  },

  async restart(witness) {
    const { pid } = await witness.whoami();
    const steps = [];
    const ended = await outcome(witness.text('exit', {}, { onprogress: ({ progress }) => steps.push(progress) }));
    const after = await witness.text('echo', { message: 'after' });
    return { steps, ended, after, renewed: (await witness.whoami()).pid !== pid };
  },

  async cancellation(witness) {
    const abort = new AbortController();
    const call = witness.text('count', ENDLESS, { signal: abort.signal, onprogress: () => abort.abort('enough') });
    const ended = await outcome(call);
    let cancelled = 0;
    // The notification has a connection of its own, so it may reach the server after the first question.
    while (cancelled === 0) ({ cancelled } = await witness.whoami());
    return { ended, cancelled };
  },
};

const within = (promise, what) => {
  let timer;
  const late = new Promise((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not end within ${DEADLINE_MS} ms`)), DEADLINE_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
};

const observed = {};
for (const [name, play] of Object.entries(wanted === 'aggregate' ? ofAnAggregate(sdk) : scenarios)) {
  if (!isWanted(name)) continue;
  const witness = new Witness();
  try {
    observed[name] = await within(witness.open().then(play), name);
  } catch (error) {
    observed[name] = { error: String(error.stack ?? error) };
  }
  await within(witness.close(), 'close').catch(() => {});
}
process.stdout.write(`${JSON.stringify(observed)}\n`, () => process.exit(0));
