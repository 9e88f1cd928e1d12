// @ts-check
// All destinations at a glance: what is wrong first, then callers, then each of them.

import { html, nothing } from './lit-html.js';
import { details } from './api.js';
import { callBar, phasesText, sparkline } from './chart.js';
import { count, duration, listed, plural, size } from './format.js';
import { icon } from './icons.js';
import { aged, bucketsOf, callers, isWork, store } from './store.js';
import { ABSENCES, outcomeOf, partsOf, processOf, stateOf, transportOf } from './words.js';

/** @typedef {import('../../../tests/page/shapes.js').Destination} Destination */
/** @typedef {import('../../../tests/page/shapes.js').Snapshot} Snapshot */
/** @typedef {import('../../../tests/page/shapes.js').Call} Call */

/** How many cards are drawn at once. */
const CARDS = 60;
/** How many callers and slow calls stand above them. */
const LEADERS = 3;
/** How many alarms stand above everything else; all destinations with one come first below. */
const ALARMS = 6;
let shown = CARDS;

/**
 * @param {import('./app.js').Place} _place
 * @param {() => void} draw
 */
export function overview(_place, draw) {
  const state = /** @type {Snapshot} */ (store.state);
  const sorted = [...state.destinations].sort((one, other) => stateOf(one).rank - stateOf(other).rank || one.name.localeCompare(other.name));
  const wrong = sorted.filter((one) => stateOf(one).rank <= 2);
  return html`
    <h1 tabindex="-1" class=${wrong.length > 0 ? 'bad' : 'good'}>${headline(state, wrong)}</h1>
    ${wrong.length > 0 ? html`<ul class="alarms">${wrong.slice(0, ALARMS).map((one) => alarm(one, draw))}</ul>` : nothing}
    ${totals(state)}
    <div class="pair">${mostCalls()}${slowest()}</div>
    <section aria-labelledby="destinations">
      <h2 id="destinations">Destinations</h2>
      ${sorted.length === 0 ? html`<p class="empty">The configuration has no destination.</p>` : nothing}
      <ul class="cards">${sorted.slice(0, shown).map(card)}</ul>
      ${sorted.length > shown
        ? html`<button type="button" @click=${() => { shown += CARDS; draw(); }}>Show ${Math.min(CARDS, sorted.length - shown)} more of ${count(sorted.length)}</button>`
        : nothing}
    </section>
    <section class="legend" aria-labelledby="absences">
      <h2 id="absences">Three words for what is not there</h2>
      <dl>${ABSENCES.map((one) => html`<div><dt>${icon(one.sign)} ${one.word}</dt><dd>${one.means}</dd></div>`)}</dl>
    </section>`;
}

/** @param {Snapshot} state @param {Destination[]} wrong */
function headline(state, wrong) {
  if (state.destinations.length === 0) return 'Nothing is served';
  if (wrong.length === 0) {
    const ready = state.destinations.filter((one) => one.state === 'ready').length;
    const rest = state.destinations.length - ready;
    return rest === 0 ? `All ${plural(ready, 'destination')} ready` : `${plural(ready, 'destination')} ready, ${rest} not in use yet`;
  }
  const names = wrong.slice(0, 3).map((one) => one.name);
  if (wrong.length > 3) names.push(`${wrong.length - 3} more`);
  const failing = wrong.every((one) => stateOf(one).rank <= 1);
  return `${listed(names)} ${wrong.length === 1 ? (failing ? 'is failing' : 'is partly ready') : 'need attention'}`;
}

/**
 * Returns what is wrong with a destination, in the words of its server where it left some.
 * @param {Destination} one
 * @param {() => void} draw
 */
function alarm(one, draw) {
  const state = stateOf(one);
  const lastLine = one.transport === 'stdio' ? details.read(one.name, draw).value?.stderr[0]?.lines.at(-1) : undefined;
  return html`<li class="alarm ${state.tone}">
    ${icon(state.sign)}
    <p><strong>${one.name}</strong> is ${state.word}: <span class="from">${one.error ?? state.note}</span>${lastLine
      ? html`<br><span class="soft">last line on stderr:</span> <code class="from">${lastLine.slice(0, 300)}</code>`
      : nothing}</p>
    <a class="button" href=${address('destination', one.name)}>Why it fails<span class="unseen"> (${one.name})</span></a>
  </li>`;
}

/** @param {string[]} parts */
function address(...parts) {
  return `#/${parts.map(encodeURIComponent).join('/')}`;
}

/** @param {Snapshot} state */
function totals(state) {
  const sum = (/** @type {(one: Destination) => number} */ of) => state.destinations.reduce((total, one) => total + of(one), 0);
  // A call through an aggregate ends at the aggregate, and is in flight at its member: no figure has it twice.
  const instances = state.destinations.flatMap((one) => one.instances);
  const memory = instances.reduce((total, one) => total + (one.memory_bytes ?? 0), 0);
  const processes = instances.reduce((total, one) => total + (one.processes ?? (one.pid === null ? 0 : 1)), 0);
  const recent = sum((one) => one.recent.calls);
  const failed = sum((one) => one.failures.reduce((total, failure) => total + failure.recent, 0));
  const span = Math.min(...state.destinations.map((one) => one.recent.span_ms), 300_000);
  const over = Number.isFinite(span) ? `last ${duration(span)}` : '';
  return html`<dl class="totals" aria-label="The whole gateway">
    ${figure('Calls in flight', count(sum((one) => one.calls.in_flight)), `${count(sum((one) => one.calls.waiting))} waiting`)}
    ${figure('Open questions', count(sum((one) => one.open_questions)), 'asked by servers', sum((one) => one.open_questions) > 0 ? 'warn' : '')}
    ${figure('Calls', count(recent), over)}
    ${figure('Failures', count(failed), over, failed > 0 ? 'bad' : '')}
    ${figure('Sessions', count(sum((one) => one.sessions)), `${count(sum((one) => one.listens))} modern listens`)}
    ${figure('Memory of servers', size(memory), plural(processes, 'process', 'processes'))}
    ${figure('Memory of Rialto', size(state.memory_bytes), `process ${state.pid}`)}
  </dl>`;
}

/**
 * @param {string} name
 * @param {unknown} value
 * @param {unknown} [note]
 * @param {string} [tone]
 */
function figure(name, value, note = '', tone = '') {
  return html`<div><dt>${name}</dt><dd class=${tone}><span class="value">${value}</span> <span class="soft">${note}</span></dd></div>`;
}

function mostCalls() {
  const found = callers(Date.now()).slice(0, LEADERS);
  const most = found[0]?.calls ?? 1;
  return html`<section class="panel" aria-labelledby="callers">
    <h2 id="callers">Who calls most</h2>
    <p class="soft">${sinceText()}</p>
    ${found.length === 0
      ? html`<p class="empty">No calls of tools, prompts or resources seen.</p>`
      : html`<ol class="ranks">${found.map((one) => html`<li>
          <span class="name"><a href=${`#/calls?${new URLSearchParams(one.client ? { client: one.client } : { caller: one.caller })}`}>${one.name}</a>
            <span class="soft">${one.client ? `${one.caller} · ` : ''}${listed(one.destinations.slice(0, 3))}${one.destinations.length > 3 ? ` and ${one.destinations.length - 3} more` : ''}</span></span>
          <svg class="rank" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="rail" width="100" height="6"/><rect class="fill" width=${(one.calls / most) * 100} height="6"/></svg>
          <span class="number">${plural(one.calls, 'call')}${one.failed > 0 ? html` <span class="bad">${count(one.failed)} not ok</span>` : nothing}</span>
        </li>`)}</ol>`}
  </section>`;
}

function sinceText() {
  if (store.since === null) return 'Calls are listed while a page is open.';
  const span = Math.min(300_000, Date.now() - store.since);
  const skipped = store.skipped > 0 ? `; ${count(store.skipped)} more were counted and not listed` : '';
  return `Calls that ended in the last ${duration(span)}${skipped}`;
}

function slowest() {
  const from = Date.now() - 300_000;
  const found = store.calls.filter((call) => call.at > from && isWork(call) && call.latency_ms > 0)
    .sort((one, other) => other.latency_ms - one.latency_ms).slice(0, LEADERS);
  const longest = found[0]?.latency_ms ?? 1;
  return html`<section class="panel" aria-labelledby="slow">
    <h2 id="slow">Slowest calls</h2>
    <p class="soft">${sinceText()}</p>
    ${found.length === 0
      ? html`<p class="empty">No calls of tools, prompts or resources seen.</p>`
      : html`<ol class="slow">${found.map((call) => html`<li>
          <span class="name"><a href=${`#/calls?${new URLSearchParams({ call: keyOf(call) })}`}>${call.destination} · ${call.tool ?? call.mcp_method}</a>
            <span class="soft">${call.client ?? call.principal}${call.outcome === 'ok' ? '' : ` · ${outcomeOf(call.outcome).word}`}</span></span>
          ${callBar(call, longest)}
          <span class="number">${duration(call.latency_ms)}</span>
          <span class="why soft">${waitedFor(call)}</span>
        </li>`)}</ol>`}
  </section>`;
}

/**
 * Returns what identifies a call among those that are listed.
 * @param {Call} call
 */
export function keyOf(call) {
  return `${call.ts} ${call.session ?? ''} ${call.rpc_id ?? ''}`;
}

/**
 * Returns what took most of the time of a call.
 * @param {Call} call
 * @returns {string}
 */
export function waitedFor(call) {
  const [longest] = partsOf(call).sort((one, other) => other.ms - one.ms);
  if (!longest) return phasesText(call);
  return `${duration(longest.ms)} of ${duration(call.latency_ms)}: ${longest.waits}`;
}

/** @param {Destination} one */
function card(one) {
  const state = stateOf(one);
  const buckets = bucketsOf(one.name, Date.now());
  const listedCalls = buckets.reduce((total, bucket) => total + bucket.calls, 0);
  return html`<li class="card ${state.tone}">
    <h3><a href=${address('destination', one.name)}>${one.name}</a></h3>
    <p class="state ${state.tone}">${icon(state.sign)} <strong>${state.word}</strong>${state.note && state.word !== 'ready' ? html` <span class="soft">(${state.note})</span>` : nothing}</p>
    ${one.error ? html`<p class="error from">${one.error}</p>` : nothing}
    ${listedCalls > 0 ? sparkline(buckets, `Messages of clients of ${one.name} seen in the last 5 min: ${listedCalls}`) : nothing}
    <dl class="facts">
      ${fact('Era', html`${eraOf(one)}`)}
      ${fact('In flight', html`${count(one.calls.in_flight)}${unlessNone(one.calls.waiting, 'waiting')}${unlessNone(one.parked, 'parked')}${unlessNone(one.open_questions, 'asking')}`)}
      ${fact('p50 · p99', one.recent.p50_ms === null
        ? html`<span class="soft">no calls in ${duration(one.recent.span_ms)}</span>`
        : html`${duration(one.recent.p50_ms)} · ${duration(one.recent.p99_ms)}<span class="soft"> of ${plural(one.recent.calls, 'call')} in ${duration(one.recent.span_ms)}</span>`)}
      ${fact('Sessions', count(one.sessions))}
      ${fact('Tools', html`${one.tools === null ? html`${icon('unasked')} not asked yet` : count(one.tools)}${withheld(one)}`)}
      ${fact('Process', one.transport === 'stdio' ? processOf(one) : transportOf(one.transport))}
      ${one.instances.length > 0 ? fact('Runs', instances(one)) : nothing}
      ${one.members ? fact('Members', members(one.members)) : nothing}
      ${one.failures.length > 0 ? fact('Failures', html`${one.failures.slice(0, 3).map((failure) => html`<span class="reason">${count(failure.count)} <code>${failure.reason}</code><span class="soft"> · ${count(failure.recent)} in 5 min</span></span> `)}`) : nothing}
    </dl>
    <p class="links"><a href=${address('destination', one.name)}>Details<span class="unseen"> of ${one.name}</span></a>
      <a href=${`#/calls?${new URLSearchParams({ destination: one.name })}`}>Calls<span class="unseen"> of ${one.name}</span></a>
      <a href=${address('try', one.name)}>Try it<span class="unseen">: ${one.name}</span></a></p>
  </li>`;
}

/** @param {number} value @param {string} word */
function unlessNone(value, word) {
  return value === 0 ? nothing : html`<span class="soft"> · ${count(value)} ${word}</span>`;
}

/** @param {string} name @param {unknown} value */
function fact(name, value) {
  return html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
}

/** @param {Destination} one */
export function eraOf(one) {
  const clients = 'legacy + modern';
  if (one.transport === 'aggregate') return html`${clients}<span class="soft"> → each member in its own</span>`;
  return html`${clients} <span aria-hidden="true">→</span><span class="unseen"> for clients, towards the server: </span> ${one.era ?? html`<span class="soft">not asked yet</span>`}`;
}

/** @param {Destination} one */
export function withheld(one) {
  if (one.policy) return html`<span class="soft"> · ${icon('withheld')} some withheld by policy</span>`;
  if (one.withheld && one.withheld.length > 0) return html`<span class="soft"> · ${icon('withheld')} ${count(one.withheld.length)} withheld</span>`;
  return nothing;
}

/** @param {Destination} one */
function instances(one) {
  const running = one.instances.filter((instance) => instance.pid !== null);
  const first = running[0];
  const restarts = one.instances.reduce((total, instance) => total + instance.restarts, 0);
  const again = restarts > 0 ? html`<span class="soft"> · started again ${restarts === 1 ? 'once' : `${count(restarts)} times`}</span>` : nothing;
  if (!first) return html`no process${again}`;
  if (running.length === 1) {
    return html`pid ${first.pid} <span class="soft">for ${duration(aged(first.age_ms))} · ${size(first.memory_bytes)}</span>${again}`;
  }
  const memory = running.reduce((total, instance) => total + (instance.memory_bytes ?? 0), 0);
  return html`${plural(running.length, 'process', 'processes')} <span class="soft">${size(memory)}</span>${again}`;
}

/** @param {Record<string, { state: string, since: number }>} found */
function members(found) {
  return html`${Object.entries(found).map(([name, member]) => {
    const good = member.state === 'ok';
    return html`<a class="member" href=${address('destination', name)}>${icon(good ? 'ready' : member.state === 'down' ? 'failing' : 'part')} ${name}${good ? nothing : html`<span class="soft"> ${member.state.replaceAll('_', ' ')}</span>`}</a> `;
  })}`;
}
