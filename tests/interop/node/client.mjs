// An official TypeScript client as a witness: `node client.mjs SDK ERA URL SCENARIO`.
//
// SDK is `typescript1` or `typescript2`; ERA is how the client finds its era, `legacy`, `auto` or `modern`, or `old` for
// the legacy era over HTTP with SSE. Plays one scenario
// against the server at URL and prints one JSON line with what it observed; judging that line is left to the Rust
// test that started it. Ends with 1 and the error on stderr if the SDK refuses.

import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import * as sdk1 from './sdk1.mjs';
import * as sdk2 from './sdk2.mjs';
import { Sightings } from './sightings.mjs';

const [sdkName, era, url, scenario] = process.argv.slice(2);

// The packages live in the ignored folder, not beside this file, so they are looked up from there.
const here = dirname(fileURLToPath(import.meta.url));
const testDeps = process.env.RIALTO_TEST_DEPS ?? join(here, '..', '..', '..', '.test-deps');
const { folder, adapt } = { typescript1: sdk1, typescript2: sdk2 }[sdkName];
const sdk = adapt(createRequire(join(testDeps, folder, 'package.json')), era);

const DEADLINE_MS = 40_000;
const LONG = 'trigger-long-running-operation';
const DOCUMENT = 'demo://resource/dynamic/text/';

/** One client with its transport, and everything that could be seen on the way. */
class Witness {
  notifications = new Sightings();
  exchanges = new Sightings();
  errors = [];

  constructor({ capabilities = {}, prepare = () => {}, transport = {}, fetch: fetchFn = fetch } = {}) {
    this.client = sdk.newClient({ name: 'rialto-interop-typescript', version: '1.0.0' }, capabilities);
    this.client.onerror = (error) => this.errors.push(String(error.message ?? error));
    this.client.fallbackNotificationHandler = async (notification) => this.notifications.add(notification);
    prepare(this.client);
    this.transport = new sdk.Transport(new URL(url), {
      ...transport,
      fetch: async (input, init = {}) => {
        const response = await fetchFn(input, init);
        this.exchanges.add({
          method: init.method ?? 'GET',
          status: response.status,
          sessionId: response.headers.get('mcp-session-id'),
          lastEventId: new Headers(init.headers).get('last-event-id'),
        });
        return response;
      },
    });
  }

  async open() {
    await this.client.connect(this.transport);
    return this;
  }

  /** Resolves when the server has accepted the stream on which it speaks unasked. */
  async listening() {
    await this.exchanges.until(({ method, status }) => method === 'GET' && status === 200);
    return this;
  }

  async text(name, args = {}, options = undefined) {
    const result = await sdk.callTool(this.client, { name, arguments: args }, options);
    return result.content.map((part) => part.text).join('\n');
  }

  logs() {
    return this.notifications.items
      .filter(({ method }) => method === 'notifications/message')
      .map(({ params }) => params);
  }
}

const open = (options) => new Witness(options).open();

/** Declares sampling and answers every request with `answer`. */
const sampler = (answer, asked) => ({
  capabilities: { sampling: {} },
  prepare: (client) =>
    sdk.answer(client, 'sampling/createMessage', async ({ params }) => {
      asked.push(params.messages[0].content.text);
      return { role: 'assistant', model: 'witness', stopReason: 'endTurn', content: { type: 'text', text: answer } };
    }),
});

/** A fetch that breaks the connection of the first POST stream right after its first progress event. */
const breakingFetch = () => {
  let broken = false;
  return async (input, init = {}) => {
    if (broken || init.method !== 'POST' || !String(init.body).includes(LONG)) return fetch(input, init);
    const breaker = new AbortController();
    const response = await fetch(input, { ...init, signal: AbortSignal.any([breaker.signal, init.signal]) });
    if (!response.headers.get('content-type')?.startsWith('text/event-stream')) return response;
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    let seen = '';
    const body = new ReadableStream({
      async pull(controller) {
        if (broken) {
          breaker.abort();
          controller.error(new Error('connection broken on purpose'));
          return;
        }
        const { value, done } = await reader.read();
        if (done) return controller.close();
        seen += decoder.decode(value, { stream: true });
        // The event must be whole, or the client would not know where to resume.
        broken = /notifications\/progress[^\n]*\n\r?\n/.test(seen);
        controller.enqueue(value);
      },
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
};

const resumed = async (initialReconnectionDelay, duration) => {
  const witness = await open({
    fetch: breakingFetch(),
    transport: {
      reconnectionOptions: {
        initialReconnectionDelay,
        maxReconnectionDelay: 5000,
        reconnectionDelayGrowFactor: 1.5,
        maxRetries: 5,
      },
    },
  });
  const steps = [];
  const text = await witness.text(LONG, { duration, steps: 5 }, { onprogress: ({ progress }) => steps.push(progress) });
  const resumes = witness.exchanges.items.filter(({ lastEventId }) => lastEventId !== null);
  return { text, steps, resumes: resumes.map(({ status }) => status), errors: witness.errors };
};

const scenarios = {
  async connect() {
    const { client, transport } = await open();
    await client.ping();
    return {
      server: client.getServerVersion().name,
      instructions: client.getInstructions().length > 0,
      protocolVersion: transport.protocolVersion,
      sessionId: transport.sessionId,
    };
  },

  async discover() {
    const { client, transport, exchanges } = await open();
    await client.listTools();
    return {
      server: client.getServerVersion().name,
      instructions: client.getInstructions().length > 0,
      protocolVersion: sdk.protocolVersion(client, transport),
      sessions: exchanges.items.filter(({ sessionId }) => sessionId !== null).length,
    };
  },

  async listing() {
    const { client } = await open();
    const { tools } = await client.listTools();
    const { prompts } = await client.listPrompts();
    const { resources } = await client.listResources();
    const { resourceTemplates } = await client.listResourceTemplates();
    return {
      tools: tools.map(({ name }) => name),
      prompts: prompts.map(({ name }) => name),
      resources: resources.map(({ uri }) => uri),
      templates: resourceTemplates.map(({ uriTemplate }) => uriTemplate),
    };
  },

  async call() {
    const witness = await open();
    return { text: await witness.text('echo', { message: 'Grüße, 世界 \u2028 "quoted" \\ \u{1F309}' }) };
  },

  async large_message() {
    const witness = await open();
    const message = 'x'.repeat(5_000_000);
    const text = await witness.text('echo', { message });
    return { length: text.length, same: text === `Echo: ${message}` };
  },

  async structured() {
    const witness = await open();
    // The client checks structured content against the output schema only once it has listed the tools.
    await witness.client.listTools();
    const weather = await witness.client.callTool({ name: 'get-structured-content', arguments: { location: 'Chicago' } });
    return { sum: await witness.text('get-sum', { a: 20, b: 22 }), structured: weather.structuredContent };
  },

  async tool_error() {
    const witness = await open();
    const wrong = await witness.client.callTool({ name: 'get-sum', arguments: { a: 'one', b: 2 } });
    const code = (promise) => promise.then(() => 'answered', (error) => error.code);
    return {
      isError: wrong.isError,
      unknownMethod: await code(sdk.unknownMethod(witness.client, 'no/such/method')),
      unknownPrompt: await code(witness.client.getPrompt({ name: 'no-such-prompt' })),
      after: await witness.text('echo', { message: 'still here' }),
    };
  },

  async progress() {
    const witness = await open();
    const seen = [];
    const text = await witness.text(
      LONG,
      { duration: 1, steps: 5 },
      { onprogress: ({ progress, total }) => seen.push([progress, total]) },
    );
    // Over HTTP with SSE this SDK takes two events of one chunk in one turn, and removes the progress handler with the
    // answer, before it has called it. The progress is then in its error.
    const late = 'Received a progress notification for an unknown token: ';
    for (const error of witness.errors.filter((error) => error.startsWith(late))) {
      const { progress, total } = JSON.parse(error.slice(late.length)).params;
      seen.push([progress, total]);
    }
    return { seen, text };
  },

  async sampling() {
    const asked = [];
    const witness = await open(sampler('An answer from the witness.', asked));
    const text = await witness.text('trigger-sampling-request', { prompt: 'Who goes there?', maxTokens: 50 });
    return { asked, text };
  },

  async elicitation() {
    const answers = [
      { action: 'accept', content: { name: 'Antonio da Ponte', check: true, integer: 7 } },
      { action: 'decline' },
      { action: 'cancel' },
    ];
    const asked = [];
    const witness = await open({
      capabilities: { elicitation: { form: {} } },
      prepare: (client) =>
        sdk.answer(client, 'elicitation/create', async ({ params }) => {
          asked.push(params.requestedSchema.required);
          return answers[asked.length - 1];
        }),
    });
    const texts = [];
    for (const _ of answers) texts.push(await witness.text('trigger-elicitation-request'));
    return { asked, texts };
  },

  async roots() {
    const roots = [{ uri: 'file:///srv/one', name: 'One' }];
    let asked = 0;
    const witness = await open({
      capabilities: { roots: { listChanged: true } },
      prepare: (client) =>
        sdk.answer(client, 'roots/list', async () => {
          asked += 1;
          return { roots };
        }),
    });
    await witness.listening();
    const before = await witness.text('get-roots-list');
    roots.push({ uri: 'file:///srv/two', name: 'Two' });
    await witness.client.sendRootsListChanged();
    await witness.notifications.until(({ params }) => String(params?.data).startsWith('Roots updated: 2'));
    return { asked, before, after: await witness.text('get-roots-list') };
  },

  async logging() {
    const witness = await (await open()).listening();
    const { client } = witness;
    const received = (part) => witness.notifications.until(({ params }) => String(params?.data).includes(part));
    await client.setLoggingLevel('info');
    await client.subscribeResource({ uri: `${DOCUMENT}1` });
    await received(`${DOCUMENT}1`);
    // The server logs each subscription as info. At this level the second must stay unheard, which the third proves.
    await client.setLoggingLevel('error');
    await client.subscribeResource({ uri: `${DOCUMENT}2` });
    await client.setLoggingLevel('debug');
    await client.subscribeResource({ uri: `${DOCUMENT}3` });
    await received(`${DOCUMENT}3`);
    const subscriptions = witness.logs().map(({ level, data }) => [level, data]);
    await client.callTool({ name: 'toggle-simulated-logging', arguments: {} });
    await received('evel');
    await client.callTool({ name: 'toggle-simulated-logging', arguments: {} });
    return { subscriptions, simulated: witness.logs().length - subscriptions.length };
  },

  async subscriptions() {
    const witness = await (await open()).listening();
    const { client } = witness;
    const updates = () => witness.notifications.items.filter(({ method }) => method === 'notifications/resources/updated');
    const updated = (uri) =>
      witness.notifications.until(({ method, params }) => method === 'notifications/resources/updated' && params.uri === uri);
    // Each start of the simulation sends one round of updates at once.
    const round = async () => {
      await client.callTool({ name: 'toggle-subscriber-updates', arguments: {} });
      await client.callTool({ name: 'toggle-subscriber-updates', arguments: {} });
    };
    await client.subscribeResource({ uri: `${DOCUMENT}1` });
    await client.subscribeResource({ uri: `${DOCUMENT}2` });
    await round();
    await Promise.all([updated(`${DOCUMENT}1`), updated(`${DOCUMENT}2`)]);
    const first = updates().map(({ params }) => params.uri);
    await client.unsubscribeResource({ uri: `${DOCUMENT}1` });
    await client.subscribeResource({ uri: `${DOCUMENT}3` });
    await round();
    await updated(`${DOCUMENT}3`);
    const second = updates().map(({ params }) => params.uri).slice(first.length);
    return { first: first.sort(), second: second.sort() };
  },

  async list_changed() {
    const witness = await (await open()).listening();
    const { client } = witness;
    const before = (await client.listResources()).resources.length;
    const result = await client.callTool({
      name: 'gzip-file-as-resource',
      arguments: { name: 'bridge.gz', data: 'data:text/plain,Rialto', outputType: 'resourceLink' },
    });
    await witness.notifications.until(({ method }) => method === 'notifications/resources/list_changed');
    const after = (await client.listResources()).resources.length;
    const { contents } = await client.readResource({ uri: result.content[0].uri });
    return { added: after - before, uri: result.content[0].uri, blob: contents[0].blob.length > 0 };
  },

  async tools_changed() {
    const witness = await (await open()).listening();
    const names = async () => (await witness.client.listTools()).tools.map(({ name }) => name);
    const before = await names();
    await witness.text('toggle_tool');
    await witness.notifications.until(({ method }) => method === 'notifications/tools/list_changed');
    const added = (await names()).filter((name) => !before.includes(name));
    return { added, text: await witness.text('extra') };
  },

  async cancellation() {
    const witness = await open();
    const abort = new AbortController();
    let outcome;
    try {
      await witness.text(
        'count',
        { steps: 1000, delay_ms: 20 },
        { signal: abort.signal, onprogress: () => abort.abort('enough') },
      );
      outcome = 'answered';
    } catch (error) {
      outcome = String(error.message ?? error);
    }
    // The notification has a connection of its own, so it may reach the server after the first question.
    let cancelledCalls = 0;
    while (cancelledCalls === 0) ({ cancelledCalls } = JSON.parse(await witness.text('whoami')));
    return { outcome, cancelledCalls };
  },

  async two_elicitations() {
    const answers = ['San Polo', 'San Marco'];
    const asked = [];
    const witness = await open({
      capabilities: { elicitation: { form: {} } },
      prepare: (client) =>
        sdk.answer(client, 'elicitation/create', async ({ params }) => {
          asked.push(params.message);
          return { action: 'accept', content: { answer: answers[asked.length - 1] } };
        }),
    });
    return { text: await witness.text('ask_twice'), asked };
  },

  async fifty_at_once() {
    const witness = await open();
    const names = Array.from({ length: 50 }, (_, index) => `call ${index}`);
    const texts = await Promise.all(names.map((message) => witness.text('echo', { message })));
    return { answered: texts.length, wrong: texts.filter((text, index) => text !== `Echo: ${names[index]}`) };
  },

  async prompts_and_completion() {
    const { client } = await open();
    const prompt = await client.getPrompt({ name: 'args-prompt', arguments: { city: 'Venice', state: 'Veneto' } });
    const ref = { type: 'ref/prompt', name: 'completable-prompt' };
    const departments = await client.complete({ ref, argument: { name: 'department', value: 'S' } });
    const people = await client.complete({
      ref,
      argument: { name: 'name', value: '' },
      context: { arguments: { department: 'Sales' } },
    });
    return {
      prompt: prompt.messages[0].content.text,
      departments: departments.completion.values,
      people: people.completion.values,
    };
  },

  async resources_read() {
    const { client } = await open();
    const text = await client.readResource({ uri: `${DOCUMENT}17` });
    const blob = await client.readResource({ uri: 'demo://resource/dynamic/blob/18' });
    const { resources } = await client.listResources();
    const document = await client.readResource({ uri: resources[0].uri });
    let unknown;
    try {
      await client.readResource({ uri: 'demo://no/such/resource' });
    } catch (error) {
      unknown = error.code;
    }
    return {
      text: text.contents[0].text,
      blob: Buffer.from(blob.contents[0].blob, 'base64').toString(),
      document: document.contents[0].text.length,
      unknown,
    };
  },

  // This SDK closes without DELETE, so that every session stays behind.
  async reconnects() {
    let tools = 0;
    for (let round = 0; round < 100; round += 1) {
      const witness = await (await open()).listening();
      tools += (await witness.client.listTools()).tools.length > 0 ? 1 : 0;
      await witness.client.close();
    }
    return { tools };
  },

  // The gateway is restarted, killed and restarted meanwhile: the client calls on until it has met four servers.
  async outlives_restarts() {
    const witness = await (await open()).listening();
    const servers = new Set();
    const failures = [];
    let answers = 0;
    const caller = async (_, number) => {
      for (let call = 0; servers.size < 4; call += 1) {
        try {
          servers.add(await witness.text('pid', { marker: `${number}/${call}` }, { timeout: 15_000 }));
          answers += 1;
        } catch (error) {
          failures.push([servers.size, `${error.message ?? error}; ${error.cause?.message}`]);
        }
      }
    };
    await Promise.all(Array.from({ length: 4 }, caller));
    const sessions = new Set(witness.exchanges.items.map(({ sessionId }) => sessionId).filter((id) => id !== null));
    return { servers: [...servers], sessions: [...sessions], failures, answers };
  },

  // The call ends while the client is away: everything it missed is replayed.
  resume_after_the_end: () => resumed(1500, 1),

  // The client is back before the call ends: the rest comes live.
  resume_before_the_end: () => resumed(50, 3),

  async resume_with_token() {
    const first = await open();
    let token;
    const started = new Promise((resolve) => {
      const options = { onprogress: resolve, onresumptiontoken: (latest) => (token = latest) };
      first.text(LONG, { duration: 1, steps: 5 }, options).catch(() => {});
    });
    await started;
    const { sessionId, protocolVersion } = first.transport;
    await first.client.close();
    const second = new Witness({ transport: { sessionId } });
    second.transport.setProtocolVersion(protocolVersion);
    await second.open();
    const result = await sdk.resumeCall(second.client, { name: LONG, arguments: {} }, { resumptionToken: token });
    return { token: typeof token, text: result.content[0].text, after: await second.text('echo', { message: 'resumed' }) };
  },

  async terminate() {
    const witness = await open();
    await witness.text('echo', { message: 'before' });
    const { sessionId, protocolVersion } = witness.transport;
    await witness.transport.terminateSession();
    const deleted = witness.exchanges.items.find(({ method }) => method === 'DELETE').status;
    const late = new Witness({ transport: { sessionId } });
    late.transport.setProtocolVersion(protocolVersion);
    await late.open();
    let refused;
    try {
      await late.text('echo', { message: 'too late' });
    } catch (error) {
      refused = sdk.httpStatus(error);
    }
    return { deleted, refused };
  },

  // Only a process per session can tell the two questions apart when they are asked at the same time.
  async two_clients_sample_at_once() {
    const names = ['left', 'right'];
    const texts = await Promise.all(
      names.map(async (name) => {
        const witness = await open(sampler(`answer of ${name}`, []));
        return witness.text('trigger-sampling-request', { prompt: name });
      }),
    );
    return { texts };
  },
};

const deadline = setTimeout(() => {
  console.error(`scenario ${scenario} did not end within ${DEADLINE_MS} ms`);
  process.exit(1);
}, DEADLINE_MS);

try {
  if (!Object.hasOwn(scenarios, scenario)) throw new Error(`no scenario ${scenario}`);
  const observed = await scenarios[scenario]();
  clearTimeout(deadline);
  process.stdout.write(`${JSON.stringify(observed)}\n`, () => process.exit(0));
} catch (error) {
  console.error(error);
  process.exit(1);
}
