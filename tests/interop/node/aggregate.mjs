// What an official TypeScript client sees of an aggregate. `eras.mjs` plays it, in front of these members:
//
// `everything` is server-everything, `modern` and `python` are of `tests/interop/servers`, and so is `tasks`, which
// works on calls as tasks. Every scenario concerns at least two of them.

const LOG_LEVEL = 'io.modelcontextprotocol/logLevel';
const DOCUMENT = 'demo://resource/dynamic/text/';
const ENDLESS = { steps: 10_000, delay_ms: 20 };
const UPDATED = 'notifications/resources/updated';
const watched = (member) => `${member}+memo://watched`;

const outcome = (promise) => promise.then((answer) => `answered: ${answer}`, (error) => `failed: ${error.message ?? error}`);
const read = async ({ client }, uri) => (await client.readResource({ uri })).contents[0];

/** By the name of a scenario what it plays. The order matters as in `eras.mjs`. */
export const ofAnAggregate = (sdk) => ({
  // A list, and what an aggregate declares, are what is known of members, some of which have just begun to start.
  async all_members({ client }) {
    let tools = [];
    const isMissing = (member) => !tools.some(({ name }) => name.startsWith(`${member}__`));
    while (['everything', 'modern', 'python', 'tasks'].some(isMissing)) ({ tools } = await client.listTools());
    return {};
  },

  async listing({ client }) {
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

  async calls(witness) {
    const texts = [];
    for (const member of ['everything', 'modern', 'python']) texts.push(await witness.text(`${member}__echo`, { message: member }));
    const eras = [];
    for (const member of ['modern', 'python']) eras.push(JSON.parse(await witness.text(`${member}__whoami`)).era);
    return { texts, eras, version: witness.version };
  },

  async prompts_and_completion({ client }) {
    const prompt = await client.getPrompt({
      name: 'everything__args-prompt',
      arguments: { city: 'Venice', state: 'Veneto' },
    });
    const complete = async (ref, argument) => (await client.complete({ ref, argument })).completion.values;
    return {
      prompt: prompt.messages[0].content.text,
      departments: await complete(
        { type: 'ref/prompt', name: 'everything__completable-prompt' },
        { name: 'department', value: 'S' },
      ),
      template: await complete(
        { type: 'ref/resource', uri: `everything+${DOCUMENT}{resourceId}` },
        { name: 'resourceId', value: '7' },
      ),
    };
  },

  async resources(witness) {
    const { content } = await sdk.callTool(witness.client, { name: 'everything__get-resource-links', arguments: { count: 2 } });
    const links = content.filter(({ type }) => type === 'resource_link').map(({ uri }) => uri);
    const qualified = [watched('modern'), watched('python'), `everything+${DOCUMENT}17`];
    const texts = [];
    for (const uri of [...qualified, `${DOCUMENT}3`, links[1]]) texts.push((await read(witness, uri)).text);
    const { uri } = await read(witness, `${DOCUMENT}3`);
    const ambiguous = await outcome(read(witness, 'memo://watched'));
    return { links, texts, uri, ambiguous };
  },

  async progress(witness) {
    const counted = ['modern', 'python'].map((member) =>
      witness.text(`${member}__count`, { steps: 5, delay_ms: 20 }, { onprogress: () => {} }),
    );
    const texts = await Promise.all(counted);
    const steps = {};
    for (const { method, params } of witness.messages) {
      if (method === 'notifications/progress') (steps[params.progressToken] ??= []).push(params.progress);
    }
    return { texts, steps: Object.values(steps) };
  },

  async elicitation(witness) {
    const texts = [await witness.text('modern__ask_twice')];
    witness.places = ['Rialto', 'Accademia'];
    texts.push(await witness.text('python__ask_twice'));
    return { texts, asked: witness.asked };
  },

  async sampling(witness) {
    const texts = [];
    for (const member of ['modern', 'python']) texts.push(await witness.text(`${member}__sample`, { prompt: `A sample for ${member}` }));
    texts.push(await witness.text('everything__trigger-sampling-request', { prompt: 'A sample for everything', maxTokens: 50 }));
    return { texts, asked: witness.asked };
  },

  async roots(witness) {
    const texts = [];
    for (const member of ['modern', 'python']) texts.push(await witness.text(`${member}__roots`));
    return { texts };
  },

  async subscriptions(witness) {
    await witness.listening({ resourceSubscriptions: [watched('modern'), watched('python')] });
    const uris = [];
    for (const member of ['modern', 'python']) {
      await witness.text(`${member}__touch`);
      const updated = ({ method, params }) => method === UPDATED && params.uri === watched(member);
      uris.push((await witness.notifications.until(updated)).params.uri);
    }
    const all = witness.notifications.items.filter(({ method }) => method === UPDATED);
    return { uris, all: all.map(({ params }) => params.uri) };
  },

  async logging(witness) {
    if (!witness.isModern) {
      await witness.listening({});
      await witness.client.setLoggingLevel('info');
    }
    const meta = witness.isModern ? { [LOG_LEVEL]: 'info' } : undefined;
    const isLog = ({ method }) => method === 'notifications/message';
    for (const [at, member] of ['modern', 'python'].entries()) {
      await witness.text(`${member}__log`, {}, { meta });
      await witness.notifications.until(() => witness.notifications.items.filter(isLog).length > at);
    }
    return { logs: witness.notifications.items.filter(isLog).map(({ params }) => [params.level, params.data]) };
  },

  async list_changed(witness) {
    const names = async () => (await witness.client.listTools()).tools.map(({ name }) => name);
    const before = await names();
    await witness.listening({ toolsListChanged: true });
    const changes = () => witness.notifications.items.filter(({ method }) => method === 'notifications/tools/list_changed').length;
    let added = [];
    for (const member of ['modern', 'python']) {
      await witness.text(`${member}__toggle_tool`);
      for (let seen = 0; !added.includes(`${member}__extra`); ) {
        await witness.notifications.until(() => changes() > seen);
        seen = changes();
        added = (await names()).filter((name) => !before.includes(name));
      }
    }
    return { added };
  },

  async tasks(witness) {
    if (sdk.followTask) {
      const followed = await sdk.followTask(witness.client, 'tasks__ask');
      return { ...followed, asked: witness.asked, tasks: await sdk.listTasks(witness.client) };
    }
    return { text: await witness.text(witness.isModern ? 'tasks__must' : 'tasks__slow') };
  },

  async cancellation(witness) {
    const [kept, cancelledOne] = [new AbortController(), new AbortController()];
    let running;
    const started = new Promise((resolve) => (running = resolve));
    const other = outcome(witness.text('modern__count', ENDLESS, { signal: kept.signal, onprogress: running }));
    await started;
    const options = { signal: cancelledOne.signal, onprogress: () => cancelledOne.abort('enough') };
    const ended = await outcome(witness.text('python__count', ENDLESS, options));
    const cancelled = async (member) => JSON.parse(await witness.text(`${member}__whoami`)).cancelled;
    // The notification has a connection of its own, so it may reach the server after the first question.
    let counted = 0;
    while (counted === 0) counted = await cancelled('python');
    const others = await cancelled('modern');
    kept.abort('enough');
    return { ended, cancelled: counted, others, other: await other };
  },
});
