// @ts-check
// One destination: why it fails, how to use it, and what its server shows of itself. Its texts are
// those of a server that may be hostile: they become text nodes and nothing else.

import { html, nothing } from './lit-html.js';
import { details, readNow, restart, setups } from './api.js';
import { confirmed } from './confirm.js';
import { age, count, duration, plural, size } from './format.js';
import { icon } from './icons.js';
import { eraOf, withheld } from './overview.js';
import { aged, destinationOf } from './store.js';
import { named, processOf, stateOf, transportOf } from './words.js';
import { useFrom } from './use-from.js';

/** @typedef {import('../../../tests/page/shapes.js').Destination} Destination */
/** @typedef {import('../../../tests/page/shapes.js').Detail} Detail */
/** @typedef {import('../../../tests/page/shapes.js').Tool} Tool */
/** @typedef {() => void} Draw */

/** How many tools are drawn at once. */
const TOOLS = 50;
/** @type {Record<string, string>} */
const BLAMES = { client: 'the client', backend: 'the server', bridge: 'Rialto' };
let tools = { of: '', shown: TOOLS, wanted: '' };

/**
 * @param {import('./app.js').Place} place
 * @param {Draw} draw
 */
export function destination(place, draw) {
  const name = place.path[1] ?? '';
  const one = destinationOf(name);
  if (!one) return html`<h1 tabindex="-1">There is no destination <span class="from">${name}</span></h1><p><a href="#/">Back to the overview</a></p>`;
  if (tools.of !== name) tools = { of: name, shown: TOOLS, wanted: '' };
  const fetched = details.read(name, draw);
  const detail = fetched.value;
  const state = stateOf(one);
  return html`
    <nav class="crumbs" aria-label="Where this is"><a href="#/">Overview</a> <span aria-hidden="true">›</span> ${name}</nav>
    <div class="heading">
      <h1 tabindex="-1">${name} <span class="state ${state.tone}">${icon(state.sign)} ${state.word}</span></h1>
      <p class="links"><a class="button strong" href=${`#/try/${encodeURIComponent(name)}`}>Try it</a>
        <a class="button" href=${`#/calls?${new URLSearchParams({ destination: name })}`}>Its calls</a></p>
    </div>
    <p class="lead">${state.note ? `${state.note[0]?.toUpperCase()}${state.note.slice(1)}.` : nothing}</p>
    ${fetched.error ? html`<p class="notice bad">${icon('failing')}<span>Details could not be fetched: ${fetched.error}</span></p>` : nothing}
    ${why(one, detail)}
    ${detail ? useFrom(name, detail, setups.read('', draw), draw) : nothing}
    <div class="pair">
      ${handshake(one, detail, fetched.received, draw)}
      ${traffic(one)}
    </div>
    ${running(one, draw)}
    ${toolList(one, detail, fetched.received, draw)}
    ${stderr(detail, fetched.received)}`;
}

/** @param {Destination} one @param {Detail | null} detail */
function why(one, detail) {
  const reasons = detail?.why ?? [];
  const failing = stateOf(one).rank <= 2;
  if (reasons.length === 0 && !failing) return nothing;
  const tone = failing ? stateOf(one).tone : 'warn';
  const last = detail?.stderr[0]?.lines.slice(-5) ?? [];
  return html`<section class="panel ${tone}" aria-labelledby="why">
    <h2 id="why">${icon(tone === 'bad' ? 'failing' : 'part')} ${failing ? 'Why it fails' : 'What failed'}</h2>
    ${one.error && !one.members ? html`<p class="error from">${one.error}</p>` : nothing}
    ${failing && one.members
      ? html`<p>Members that cannot be used: ${Object.entries(one.members).filter(([, member]) => member.state !== 'ok').map(([member, found]) =>
          html`<a class="button" href=${`#/destination/${encodeURIComponent(member)}`}>${member}: ${found.state.replaceAll('_', ' ')}</a> `)}</p>`
      : nothing}
    ${failing && last.length > 0
      ? html`<h3>The last lines that it wrote on stderr</h3><pre class="from" role="group" tabindex="0" aria-label="Last lines on stderr">${last.join('\n')}</pre>`
      : nothing}
    ${failing && !one.members ? html`<p>Mend what this names. Rialto tries again with the next call; <em>${askLabel(one)}</em> below is one.</p>` : nothing}
    ${reasons.length > 0
      ? html`<dl class="reasons">${reasons.map((reason) => html`<div>
          <dt><code>${reason.reason}</code> <span class="soft">${reason.count > 0 ? `${plural(reason.count, 'time')} since the start, ${count(reason.recent)} in the last 5 min` : 'now'}${reason.blame ? ` · comes from ${BLAMES[reason.blame] ?? reason.blame}` : ''}</span></dt>
          ${reason.means.map((meaning) => html`<dd><em>${meaning.message}</em> <span class="soft">${meaning.status ? `HTTP ${meaning.status}` : ''}</span><br>${meaning.text}</dd>`)}</div>`)}</dl>`
      : nothing}
  </section>`;
}

/**
 * @param {Destination} one
 * @param {Detail | null} detail
 * @param {number} received
 * @param {Draw} draw
 */
function handshake(one, detail, received, draw) {
  const read = detail?.read;
  return html`<section class="panel" aria-labelledby="handshake">
    <h2 id="handshake">Handshake</h2>
    <p class="soft">${readAge(detail, received)} ${askNow(one, draw)}</p>
    ${read?.error ? html`<p class="error from">${read.error}</p>` : nothing}
    <dl class="facts wide">
      ${fact('Server', read?.server ? html`<span class="from">${read.server.title ?? read.server.name ?? '–'} ${read.server.version ?? ''}</span>` : unasked())}
      ${fact('Era', eraOf(one))}
      ${fact('Revision', read ? read.revision ?? '–' : unasked())}
      ${fact('Reached by', transportOf(one.transport))}
      ${fact('Process', html`${processOf(one)}${one.start ? html`<span class="soft"> · ${one.start === 'lazy' ? 'starts at first call' : 'starts with Rialto'}</span>` : nothing}`)}
      ${fact('Capabilities', read ? (read.capabilities && Object.keys(read.capabilities).length > 0 ? html`<span class="from">${Object.keys(read.capabilities).join(', ')}</span>` : 'none') : unasked())}
      ${read?.instructions ? fact('Instructions', html`<span class="from">${read.instructions}</span>`) : nothing}
    </dl>
  </section>`;
}

function unasked() {
  return html`<span class="soft">${icon('unasked')} not asked yet</span>`;
}

/** @param {Detail | null} detail @param {number} received */
function readAge(detail, received) {
  if (!detail) return 'Being fetched…';
  if (!detail.read) return 'The page has not asked this server yet.';
  return `The server was asked ${age(detail.read.age_ms + Date.now() - received)}.`;
}

/** @param {Destination} one @param {Draw} draw */
function askNow(one, draw) {
  const busy = details.read(one.name, draw).busy;
  return html`<button type="button" class="small" ?disabled=${busy} @click=${() => details.renew(one.name, draw, readNow)}>${askLabel(one)}</button>`;
}

/** @param {Destination} one */
function askLabel(one) {
  return one.instances.some((instance) => instance.pid !== null) || one.start === null ? 'Ask it now' : 'Start it and ask';
}

/** @param {Destination} one */
function traffic(one) {
  return html`<section class="panel" aria-labelledby="traffic">
    <h2 id="traffic">Traffic</h2>
    <p class="soft">Figures ${age(aged(0))}</p>
    <dl class="facts wide">
      ${fact('In flight', html`${count(one.calls.in_flight)}<span class="soft"> · ${count(one.calls.waiting)} waiting for the server</span>`)}
      ${fact('Parked', html`${count(one.parked)}<span class="soft"> wait for their client</span>`)}
      ${fact('Open questions', html`${count(one.open_questions)}${(one.question_list ?? []).slice(0, 5).map((question) =>
        html`<br><span class="from">${question.method}</span> <span class="soft">for ${duration(aged(question.age_ms))}</span>`)}`)}
      ${fact('Calls', html`${count(one.recent.calls)}<span class="soft"> in the last ${duration(one.recent.span_ms)}</span>`)}
      ${fact('Messages', html`${count(one.calls.ended)}<span class="soft"> of clients since the start, handshakes and lists too</span>`)}
      ${fact('p50 · p99', html`${duration(one.recent.p50_ms)} · ${duration(one.recent.p99_ms)}<span class="soft"> in the last ${duration(one.recent.span_ms)}</span>`)}
      ${fact('Sessions', html`${count(one.sessions)}<span class="soft"> · ${count(one.listens)} modern listens · ${count(Object.values(one.streams).reduce((sum, open) => sum + open, 0))} streams</span>`)}
      ${fact('Queued', html`${size(one.queued_bytes)}<span class="soft"> wait to be written to the server</span>`)}
      ${fact('Failures', one.failures.length === 0 ? 'none' : html`${one.failures.map((failure) => html`<span class="reason">${count(failure.count)} <code>${failure.reason}</code><span class="soft"> · ${count(failure.recent)} in 5 min</span></span> `)}`)}
    </dl>
  </section>`;
}

/** @param {string} name @param {unknown} value */
function fact(name, value) {
  return html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
}

/** @param {Destination} one @param {Draw} draw */
function running(one, draw) {
  if (one.instances.length === 0) return nothing;
  const shown = one.instances.slice(0, 50);
  return html`<section aria-labelledby="instances">
    <h2 id="instances">${one.transport === 'stdio' ? 'Processes' : 'Connections'}</h2>
    <div class="scroll" tabindex="0" role="group" aria-label="Table of processes"><table>
      <thead><tr><th scope="col">State</th><th scope="col">For</th><th scope="col">Pid</th><th scope="col">Age</th><th scope="col">Memory</th><th scope="col">Started again</th><th scope="col">Calls</th><th scope="col">Used by</th><th scope="col">Last asked</th><th scope="col">Action</th></tr></thead>
      <tbody>${shown.map((instance) => {
        const state = named(instance.state === 'idle' ? (one.start === null ? 'unasked' : 'unstarted') : instance.state);
        return html`<tr>
          <th scope="row"><span class="state ${state.tone}">${icon(state.sign)} ${state.word}</span>${instance.error ? html`<br><span class="error from">${instance.error}</span>` : nothing}</th>
          <td>${servesText(instance)}</td><td>${instance.pid ?? '–'}</td><td>${duration(aged(instance.age_ms))}</td>
          <td>${size(instance.memory_bytes)}${(instance.processes ?? 0) > 1 ? html`<span class="soft"> in ${instance.processes} processes</span>` : nothing}</td>
          <td>${instance.restarts}</td><td>${count(instance.calls.in_flight)}<span class="soft"> · ${count(instance.calls.waiting)} waiting</span></td>
          <td>${count(instance.users)}</td><td>${age(aged(instance.last_asked_ms))}</td>
          <td>${instance.pid === null ? '–' : confirmed({
            key: `restart ${one.name} ${instance.pid}`,
            label: 'Restart',
            of: `process ${instance.pid}`,
            question: 'Calls in flight fail; sessions stay.',
            act: async () => plural((await restart(one.name, instance.pid)).restarted, 'process restarted', 'processes restarted'),
          }, draw)}</td></tr>`;
      })}</tbody>
    </table></div>
    ${one.instances.length > shown.length ? html`<p class="soft">${count(one.instances.length - shown.length)} more are not shown.</p>` : nothing}
  </section>`;
}

/** @param {import('../../../tests/page/shapes.js').Instance} instance */
function servesText(instance) {
  if (instance.serves === 'caller') {
    return html`caller <span class="from">${instance.caller}</span>${instance.directory ? html`<br><span class="soft from">${instance.directory}</span>` : nothing}`;
  }
  return { all: 'all clients', session: 'one session', unclaimed: 'the first to come', ending: 'ending' }[instance.serves] ?? instance.serves;
}

/**
 * @param {Destination} one
 * @param {Detail | null} detail
 * @param {number} received
 * @param {Draw} draw
 */
function toolList(one, detail, received, draw) {
  const read = detail?.read;
  const wanted = tools.wanted.toLowerCase();
  const found = (read?.tools ?? []).filter((tool) => `${tool.name} ${tool.title ?? ''} ${tool.description ?? ''}`.toLowerCase().includes(wanted));
  return html`<section aria-labelledby="tools">
    <h2 id="tools">Tools ${read && !read.error ? html`<span class="soft">${count(read.tools.length)}</span>` : nothing}</h2>
    <p class="soft">${readAge(detail, received)}${read ? '' : one.tools === null ? ' Which tools it has is not known before.' : html` Clients are shown ${plural(one.tools, 'tool')}; <em>${askLabel(one)}</em> lists them here.`}</p>
    ${policy(one)}
    ${read && read.tools.length > 5
      ? html`<p><label>Find <input type="search" .value=${tools.wanted} @input=${(/** @type {Event} */ event) => {
          tools.wanted = /** @type {HTMLInputElement} */ (event.target).value;
          tools.shown = TOOLS;
          draw();
        }}></label></p>`
      : nothing}
    <ul class="tools">${found.slice(0, tools.shown).map((tool) => html`<li>
      <h3><code class="from">${tool.name}</code>${tool.title && tool.title !== tool.name ? html` <span class="from soft">${tool.title}</span>` : nothing}
        <a class="button small" href=${`#/try/${encodeURIComponent(one.name)}/${encodeURIComponent(tool.name)}`}>Try<span class="unseen"> ${tool.name}</span></a></h3>
      <p class="from">${tool.description ?? 'No description.'}</p>
      <p class="soft">${hints(tool)}</p>
      <details><summary>Schema<span class="unseen"> of ${tool.name}</span></summary><pre class="from" role="group" tabindex="0" aria-label="Schema of ${tool.name}">${pretty({ inputSchema: tool.inputSchema, outputSchema: tool.outputSchema })}</pre></details>
    </li>`)}</ul>
    ${found.length > tools.shown
      ? html`<button type="button" @click=${() => { tools.shown += TOOLS; draw(); }}>Show ${Math.min(TOOLS, found.length - tools.shown)} more of ${count(found.length)}</button>`
      : nothing}
    ${read && read.prompts.length + read.resources.length + read.resource_templates.length > 0
      ? html`<p class="soft">Also: ${plural(read.prompts.length, 'prompt')}, ${plural(read.resources.length, 'resource')}, ${plural(read.resource_templates.length, 'resource template')}.</p>`
      : nothing}
  </section>`;
}

/** @param {Destination} one */
function policy(one) {
  const globs = one.policy;
  return html`
    ${globs ? html`<p>${icon('withheld')} Withheld by policy: ${globs.allow.length > 0 ? html`all but <code>${globs.allow.join(', ')}</code>` : nothing}${globs.allow.length > 0 && globs.deny.length > 0 ? ', and ' : nothing}${globs.deny.length > 0 ? html`<code>${globs.deny.join(', ')}</code>` : nothing}.</p>` : nothing}
    ${(one.withheld ?? []).length > 0 ? html`<details><summary>${icon('withheld')} ${plural((one.withheld ?? []).length, 'name')} withheld</summary><ul>${(one.withheld ?? []).slice(0, 100).map((text) => html`<li class="from">${text}</li>`)}</ul></details>` : nothing}`;
}

/** @param {Tool} tool */
function hints(tool) {
  const words = { readOnlyHint: 'only reads', destructiveHint: 'may destroy', idempotentHint: 'may be repeated', openWorldHint: 'reaches other systems' };
  const hinted = Object.entries(words).flatMap(([key, word]) => (tool.annotations?.[key] === true ? [word] : []));
  return hinted.length > 0 ? `The server says: ${hinted.join(', ')}.` : nothing;
}

/** @param {unknown} value */
export function pretty(value) {
  return JSON.stringify(value, null, 2) ?? '';
}

/** @param {Detail | null} detail @param {number} received */
function stderr(detail, received) {
  const found = (detail?.stderr ?? []).filter((one) => one.lines.length > 0);
  return html`<section aria-labelledby="stderr">
    <h2 id="stderr">stderr</h2>
    ${found.length === 0 ? html`<p class="empty">${detail ? 'No line was written, or no process runs.' : 'Being fetched…'}</p>` : nothing}
    ${found.slice(0, 10).map((one) => html`<h3>${one.pid === null ? 'A process' : `Process ${one.pid}`} <span class="soft">${one.running ? 'runs' : 'has ended'} · last ${plural(one.lines.length, 'line')} · looked at ${age(Date.now() - received)}</span></h3>
      <pre class="from log" role="group" tabindex="0" aria-label="stderr of process ${one.pid ?? ''}">${one.lines.slice(-200).join('\n')}</pre>`)}
  </section>`;
}

export { withheld };
