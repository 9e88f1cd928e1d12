// @ts-check
// Calls a tool by hand, as a client of either era would: with its form, its questions, its progress
// and every message.

import { html, nothing } from './lit-html.js';
import { toolsOf } from './api.js';
import { pretty } from './destination.js';
import { clock, count, duration, plural, size } from './format.js';
import { icon } from './icons.js';
import { McpClient, REVISIONS, RpcError } from './mcp-client.js';
import { SchemaForm } from './schema-form.js';
import { destinationOf, store } from './store.js';
import { stateOf } from './words.js';

/** @typedef {import('../../../tests/page/shapes.js').Tool} Tool */
/** @typedef {import('./mcp-client.js').Era} Era */
/** @typedef {() => void} Draw */
/** @typedef {{ method: string, params: any, form: SchemaForm | null, resolve: (result: any) => void, reject: (error: Error) => void }} Question */

/** How many messages are kept, and how much of one is shown. */
const MESSAGES = 200;
const SHOWN = 20_000;

/** @type {Era} */
let era = 'legacy';

/** What is tried at the moment. */
const trial = {
  name: '',
  /** @type {Era} */
  era: 'legacy',
  /** @type {McpClient | null} */
  client: null,
  /** @type {Tool[] | null} */
  tools: null,
  listing: false,
  /** @type {string | null} */
  error: null,
  /** @type {Tool | null} */
  tool: null,
  /** @type {SchemaForm | null} */
  form: null,
  /** @type {{ started: number, ended: number | null, controller: AbortController, result: any, error: Error | null, progress: { progress: number, total?: number, message?: string } | null, notes: string[] } | null} */
  call: null,
  /** @type {Question[]} */
  questions: [],
  /** @type {import('./mcp-client.js').Seen[]} */
  messages: [],
  dropped: 0,
};

/** @param {string} name @param {Draw} draw */
function begin(name, draw) {
  leave();
  Object.assign(trial, { name, era, tools: null, listing: false, error: null, tool: null, form: null, call: null, questions: [], messages: [], dropped: 0 });
  if (name === '') return;
  const client = new McpClient(name, era, {
    onMessage: (seen) => {
      if (client !== trial.client) return;
      trial.messages.push(seen);
      if (trial.messages.length > MESSAGES) {
        trial.messages.shift();
        trial.dropped += 1;
      }
      draw();
    },
    onProgress: (progress) => {
      if (trial.call) trial.call.progress = progress;
      draw();
    },
    onNotification: (message) => {
      if (!trial.call) return;
      const text = message.method === 'notifications/message' ? `${message.params?.level ?? 'log'}: ${textOf(message.params?.data)}` : String(message.method);
      if (trial.call.notes.push(text) > 50) trial.call.notes.shift();
      draw();
    },
    onQuestion: ({ method, params }) => new Promise((resolve, reject) => {
      trial.questions.push({ method, params, form: formOf(method, params), resolve, reject });
      drawAndFocus(draw);
    }),
  });
  trial.client = client;
}

/** @param {unknown} value */
const textOf = (value) => (typeof value === 'string' ? value : JSON.stringify(value) ?? '');

/** Ends what is being tried: a session of this page must not outlive its screen. */
function leave() {
  trial.call?.controller.abort();
  for (const question of trial.questions) question.reject(new Error('The page was left.'));
  trial.client?.end();
  trial.client = null;
  trial.name = '';
}

window.addEventListener('pagehide', leave);
window.addEventListener('hashchange', () => {
  if (!location.hash.startsWith('#/try')) leave();
});

/** @param {string} method @param {any} params @returns {SchemaForm | null} */
function formOf(method, params) {
  if (method === 'elicitation/create' && params?.mode !== 'url') return new SchemaForm(params?.requestedSchema);
  if (method === 'elicitation/create') return null;
  if (method === 'sampling/createMessage') {
    return new SchemaForm({
      type: 'object',
      properties: {
        text: { type: 'string', title: 'Answer of the model', description: 'You answer in the place of a model', maxLength: 100_000 },
        model: { type: 'string', title: 'Name of the model', default: 'a person' },
      },
      required: ['text', 'model'],
    });
  }
  const form = new SchemaForm({ type: 'object' });
  form.asJson = true;
  form.draw(method === 'roots/list' ? '{\n  "roots": []\n}' : '{}');
  return form;
}

/** @param {Draw} draw */
function drawAndFocus(draw) {
  draw();
  setTimeout(() => /** @type {HTMLElement | null} */ (document.querySelector('.question h3'))?.focus(), 400);
}

/**
 * @param {import('./app.js').Place} place
 * @param {Draw} draw
 */
export function tryIt(place, draw) {
  const name = place.path[1] ?? '';
  const wanted = place.path[2] ?? '';
  if (trial.name !== name || trial.era !== era) begin(name, draw);
  const one = destinationOf(name);
  const runs = one !== null && (one.transport === 'aggregate' || one.instances.some((instance) => instance.state === 'ready'));
  if (runs && !trial.tools && !trial.listing && !trial.error) void list(draw);
  const tool = trial.tools?.find((found) => found.name === wanted) ?? null;
  if (tool?.name !== trial.tool?.name) {
    trial.tool = tool;
    trial.form = tool ? new SchemaForm(tool.inputSchema) : null;
    trial.call = null;
  }
  return html`
    <h1 tabindex="-1">Try it</h1>
    <form class="filters" aria-label="What to try" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label>Destination<select name="destination" @change=${(/** @type {Event} */ event) => go(/** @type {HTMLSelectElement} */ (event.target).value, '')}>
        <option value="" ?selected=${name === ''}>choose…</option>
        ${(store.state?.destinations ?? []).map((found) => html`<option value=${found.name} ?selected=${found.name === name}>${found.name} (${stateOf(found).word})</option>`)}
      </select></label>
      <fieldset class="choices"><legend>As a client of the era</legend>${/** @type {Era[]} */ (['legacy', 'modern']).map((value) => html`<label class="check"><input type="radio" name="era" value=${value} ?checked=${era === value}
        @change=${() => { era = value; draw(); }}> ${value} <span class="soft">${REVISIONS[value]}</span></label>`)}</fieldset>
      ${trial.tools && trial.tools.length > 0 ? html`<label>Tool<select name="tool" @change=${(/** @type {Event} */ event) => go(name, /** @type {HTMLSelectElement} */ (event.target).value)}>
        <option value="" ?selected=${wanted === ''}>choose…</option>
        ${trial.tools.slice(0, 1000).map((found) => html`<option value=${found.name} ?selected=${found.name === wanted}>${found.name}</option>`)}</select></label>` : nothing}
    </form>
    ${name === '' ? html`<p class="empty">Choose a destination. Calls are real: they are made with your rights, counted and audited.</p>` : nothing}
    ${name !== '' && !one ? html`<p class="empty">There is no destination <span class="from">${name}</span>.</p>` : nothing}
    ${one && !trial.tools ? listState(one, runs, draw) : nothing}
    ${trial.tools?.length === 0 ? html`<p class="empty">The list of tools is empty.</p>` : nothing}
    ${trial.tools && wanted !== '' && !tool ? html`<p class="notice warn">${icon('part')}<span>Clients are not shown a tool <code class="from">${wanted}</code>.</span></p>` : nothing}
    ${one && trial.tools && !tool ? toolChoice(name) : nothing}
    ${tool ? html`<div class="pair try">${ask(tool, draw)}${outcome(draw)}</div>` : nothing}
    ${one ? rawMessages() : nothing}`;
}

/** @param {string} name @param {string} tool */
function go(name, tool) {
  const parts = ['try', name, tool].filter((part) => part !== '').map(encodeURIComponent);
  history.replaceState(null, '', `#/${parts.join('/')}`);
  window.dispatchEvent(new Event('moved'));
}

/**
 * @param {import('../../../tests/page/shapes.js').Destination} one
 * @param {boolean} runs
 * @param {Draw} draw
 */
function listState(one, runs, draw) {
  if (trial.listing) return html`<p class="empty" role="status">Asking for its tools…${one.state === 'starting' ? ' The server is starting.' : ''}</p>`;
  return html`${trial.error ? html`<p class="notice bad">${icon('failing')}<span>The list of tools could not be read: <span class="from">${trial.error}</span> <a href=${`#/destination/${encodeURIComponent(one.name)}`}>Why it fails</a></span></p>` : nothing}
    <p class="empty">${runs || trial.error ? nothing : html`${icon('unasked')} Its tools are not asked yet. `}<button type="button" @click=${() => list(draw)}>${runs || one.start === null ? 'Ask for its tools' : 'Start it and ask for its tools'}</button></p>`;
}

/** @param {Draw} draw */
async function list(draw) {
  const { client } = trial;
  if (!client) return;
  trial.listing = true;
  trial.error = null;
  try {
    const tools = await client.listTools();
    if (client === trial.client) trial.tools = toolsOf(tools);
  } catch (error) {
    if (client === trial.client) trial.error = error instanceof Error ? error.message : String(error);
  }
  if (client === trial.client) trial.listing = false;
  draw();
}

/** @param {string} name */
function toolChoice(name) {
  const found = trial.tools ?? [];
  return html`<h2>Tools</h2><ul class="cards slim">${found.slice(0, 60).map((tool) => html`<li class="card"><h3><a class="from" href=${`#/try/${encodeURIComponent(name)}/${encodeURIComponent(tool.name)}`}>${tool.name}</a></h3>
    <p class="from soft clamp">${textOf(tool.description ?? '')}</p></li>`)}</ul>
    ${found.length > 60 ? html`<p class="soft">${count(found.length - 60)} more are in the list above.</p>` : nothing}`;
}

/** @param {Tool} tool @param {Draw} draw */
function ask(tool, draw) {
  const runs = trial.call !== null && trial.call.ended === null;
  return html`<section class="panel" aria-labelledby="arguments">
    <h2 id="arguments"><code class="from">${tool.name}</code></h2>
    <p class="from">${textOf(tool.description ?? 'No description.')}</p>
    ${tool.annotations?.['destructiveHint'] === true ? html`<p class="warn">${icon('part')} The server says that it may destroy something.</p>` : nothing}
    <form novalidate @submit=${(/** @type {Event} */ event) => { event.preventDefault(); void call(draw); }}>
      ${trial.form?.node}
      <p class="links"><button type="submit" class="strong" ?disabled=${runs}>Call</button>
        ${runs ? html`<button type="button" @click=${cancel}>Cancel</button>` : nothing}</p>
    </form>
  </section>`;
}

function cancel() {
  trial.call?.controller.abort();
  for (const question of trial.questions) question.reject(new Error('The call was cancelled.'));
  trial.questions = [];
}

/** @param {Draw} draw */
async function call(draw) {
  const { client, tool, form } = trial;
  const values = form?.value();
  if (!client || !tool || values === null || values === undefined) return;
  const made = { started: Date.now(), ended: /** @type {number | null} */ (null), controller: new AbortController(), result: /** @type {any} */ (null), error: /** @type {Error | null} */ (null), progress: null, notes: [] };
  trial.call = made;
  draw();
  try {
    made.result = await client.callTool(tool, values, made.controller.signal);
  } catch (error) {
    made.error = error instanceof Error ? error : new Error(String(error));
  }
  made.ended = Date.now();
  if (trial.call === made) trial.questions = [];
  draw();
}

/** @param {Draw} draw */
function outcome(draw) {
  const made = trial.call;
  const took = made ? (made.ended ?? Date.now()) - made.started : 0;
  return html`<section class="panel" aria-labelledby="result">
    <h2 id="result">Result</h2>
    <p role="status">${!made ? html`<span class="soft">Not called yet.</span>` : made.ended === null
      ? html`${icon('starting')} ${trial.questions.length > 0 ? 'The server asks' : 'Running'} ${took < 1000 ? nothing : html`<span class="soft">${duration(Math.round(took / 1000) * 1000)}</span>`}`
      : made.error
        ? html`<span class="state bad">${icon('failing')} ${made.controller.signal.aborted ? 'cancelled' : 'no result'}</span> <span class="soft">after ${duration(took)}</span>`
        : made.result?.isError
          ? html`<span class="state warn">${icon('part')} the tool reports an error</span> <span class="soft">after ${duration(took)}</span>`
          : html`<span class="state good">${icon('ready')} result</span> <span class="soft">after ${duration(took)}</span>`}</p>
    ${made?.progress ? progress(made.progress) : nothing}
    ${trial.questions.slice(0, 1).map((question) => questionCard(question, draw))}
    ${made?.error && !made.controller.signal.aborted ? failure(made.error) : nothing}
    ${made?.result ? content(made.result) : nothing}
    ${made && made.notes.length > 0 ? html`<h3>Log lines</h3><pre class="from" role="group" tabindex="0" aria-label="Log lines">${made.notes.join('\n')}</pre>` : nothing}
  </section>`;
}

/** @param {{ progress: number, total?: number, message?: string }} found */
function progress(found) {
  const total = typeof found.total === 'number' ? found.total : null;
  return html`<p class="progress"><progress aria-label="Progress" max=${total ?? nothing} value=${total === null ? nothing : Number(found.progress) || 0}></progress>
    ${textOf(found.progress)}${total === null ? '' : ` of ${total}`} <span class="from soft">${textOf(found.message ?? '')}</span></p>`;
}

/** @param {Question} question @param {Draw} draw */
function questionCard(question, draw) {
  const { method, params } = question;
  const sampling = method === 'sampling/createMessage';
  const url = method === 'elicitation/create' && params?.mode === 'url' ? String(params.url ?? '') : null;
  /** @param {(question: Question) => void} act */
  const end = (act) => {
    trial.questions = trial.questions.filter((other) => other !== question);
    act(question);
    draw();
  };
  /** @param {Event} event */
  const accept = (event) => {
    event.preventDefault();
    const value = question.form ? question.form.value() : {};
    if (value === null) return;
    end(() => question.resolve(answer(method, value, url !== null)));
  };
  return html`<form class="question" novalidate @submit=${accept}>
    <h3 tabindex="-1">${icon('asking')} The server asks: <code class="from">${method}</code></h3>
    ${params?.message ? html`<p class="from">${textOf(params.message)}</p>` : nothing}
    ${sampling ? html`${params?.systemPrompt ? html`<p class="soft from">${textOf(params.systemPrompt)}</p>` : nothing}
      ${(Array.isArray(params?.messages) ? params.messages.slice(-20) : []).map((/** @type {any} */ message) => html`<p class="from"><strong>${textOf(message?.role)}:</strong> ${textOf(message?.content?.text ?? message?.content)}</p>`)}` : nothing}
    ${url === null ? nothing : html`<p>It wants you to visit this address; open it only if you trust the server:<br><code class="from">${url}</code></p>`}
    ${question.form?.node ?? nothing}
    <p class="links"><button type="submit" class="strong">Answer</button>
      ${method === 'elicitation/create' ? html`<button type="button" @click=${() => end(() => question.resolve({ action: 'decline' }))}>Decline</button>
        <button type="button" @click=${() => end(() => question.resolve({ action: 'cancel' }))}>Dismiss</button>`
        : html`<button type="button" @click=${() => end(() => question.reject(new Error('The user refused.')))}>Refuse</button>`}</p>
  </form>`;
}

/** @param {string} method @param {any} value @param {boolean} byAddress */
function answer(method, value, byAddress) {
  if (method === 'elicitation/create') return byAddress ? { action: 'accept' } : { action: 'accept', content: value };
  if (method === 'sampling/createMessage') {
    return { role: 'assistant', content: { type: 'text', text: value.text }, model: value.model, stopReason: 'endTurn' };
  }
  return value;
}

/** @param {Error} error */
function failure(error) {
  if (!(error instanceof RpcError)) return html`<p class="error from">${error.message}</p>`;
  return html`<p class="error from">${error.message}</p><pre class="from" role="group" tabindex="0" aria-label="Error">${pretty(error.error)}</pre>`;
}

/** @param {any} result */
function content(result) {
  const blocks = Array.isArray(result.content) ? result.content.slice(0, 100) : [];
  return html`${blocks.map((/** @type {any} */ block) => {
    if (block?.type === 'text') return html`<pre class="from" role="group" tabindex="0" aria-label="Text">${textOf(block.text)}</pre>`;
    if (block?.type === 'image' && /^image\/(png|jpeg|gif|webp)$/.test(String(block.mimeType))) {
      return html`<p><img src="data:${block.mimeType};base64,${String(block.data)}" alt="The server sent this image without a description"></p>`;
    }
    return html`<pre class="from" role="group" tabindex="0" aria-label="Content">${pretty(block).slice(0, SHOWN)}</pre>`;
  })}
  ${result.structuredContent === undefined ? nothing : html`<h3>Structured content</h3><pre class="from" role="group" tabindex="0" aria-label="Structured content">${pretty(result.structuredContent).slice(0, SHOWN)}</pre>`}`;
}

function rawMessages() {
  const first = trial.messages[0]?.at ?? 0;
  return html`<section aria-labelledby="raw"><h2 id="raw">Raw messages</h2>
    <p class="soft">${plural(trial.messages.length, 'message')} between this page and Rialto${trial.dropped > 0 ? `; ${count(trial.dropped)} older ones were dropped` : ''}.</p>
    <ol class="messages">${trial.messages.map((seen) => html`<li class=${seen.direction}><details><summary><span class="direction">${seen.direction === 'sent' ? '→ sent' : '← received'}</span>
      <span class="from">${summary(seen.text)}</span> <span class="soft">${clock(seen.at)} · +${duration(seen.at - first)} · ${size(seen.text.length)}${seen.status === null ? '' : ` · HTTP ${seen.status}`}</span></summary>
      <pre class="from" role="group" tabindex="0" aria-label="Message">${laidOut(seen.text)}</pre></details></li>`)}</ol></section>`;
}

/** @param {string} text */
function summary(text) {
  try {
    const message = JSON.parse(text);
    const id = message.id === undefined ? '' : ` #${message.id}`;
    if (message.method) return `${message.method}${id}`;
    return `${message.error ? 'error' : message.result?.resultType === 'input_required' ? 'input required' : 'result'}${id}`;
  } catch {
    return text.slice(0, 80);
  }
}

/** @param {string} text */
function laidOut(text) {
  try {
    return pretty(JSON.parse(text)).slice(0, SHOWN);
  } catch {
    return text.slice(0, SHOWN);
  }
}
