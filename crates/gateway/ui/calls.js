// @ts-check
// The tail of ended calls, with a bar for each: what it waited for. Rows are drawn a page at a time,
// so that ten thousand calls cost the browser as little as a hundred.

import { html, nothing } from './lit-html.js';
import { callBar, phasesText } from './chart.js';
import { download, toHar, toJsonl } from './export.js';
import { age, clock, count, duration, plural, size } from './format.js';
import { icon } from './icons.js';
import { keyOf, waitedFor } from './overview.js';
import { CALLS_KEPT, aged, isWork, store } from './store.js';
import { OUTCOME_NAMES, PHASES, outcomeOf } from './words.js';

/** @typedef {import('../../../tests/page/shapes.js').Call} Call */
/** @typedef {() => void} Draw */

const ROWS = 50;

/** The keys of the address that filter. */
const FILTERS = /** @type {const} */ (['destination', 'member', 'caller', 'client', 'tool', 'outcome', 'kind', 'call']);

const view = {
  page: 0,
  /** What was listed when the reader paused. @type {Call[] | null} */
  frozen: null,
  /** The call whose details are open. @type {string | null} */
  open: null,
  /** The address that `page` belongs to. */
  address: '',
};

/**
 * @param {import('./app.js').Place} place
 * @param {Draw} draw
 */
export function calls(place, draw) {
  const { query } = place;
  if (view.address !== query.toString()) {
    view.address = query.toString();
    view.page = 0;
    if (query.has('call')) view.open = query.get('call');
  }
  const source = view.frozen ?? store.calls;
  const found = filtered(source, query);
  const pages = Math.max(1, Math.ceil(found.length / ROWS));
  view.page = Math.min(view.page, pages - 1);
  const from = view.page * ROWS;
  const rows = found.slice(from, from + ROWS);
  const longest = rows.reduce((most, call) => Math.max(most, call.latency_ms), 1);
  return html`
    <h1 tabindex="-1">Calls</h1>
    ${questions()}
    ${filters(source, query)}
    <div class="bar">
      <p class="soft">${tailText(found)}</p>
      <p class="links">
        <button type="button" aria-pressed=${view.frozen ? 'true' : 'false'} @click=${() => { view.frozen = view.frozen ? null : [...store.calls]; draw(); }}>${view.frozen ? 'Go on' : 'Pause'}</button>
        <button type="button" ?disabled=${found.length === 0} @click=${() => download('rialto-calls.har', 'application/json', JSON.stringify(toHar([...found].reverse(), store.state)))}>Export HAR</button>
        <button type="button" ?disabled=${found.length === 0} @click=${() => download('rialto-calls.jsonl', 'application/jsonl', toJsonl([...found].reverse()))}>Export JSONL</button>
      </p>
    </div>
    <p class="key" aria-label="Parts of a call"><span class="soft">A bar is one call, on a logarithmic scale:</span> ${PHASES.map((phase) => html`<span><svg class="swatch" viewBox="0 0 12 12" aria-hidden="true"><rect class="part ${phase.word}" width="12" height="12" rx="2"/></svg> ${phase.word} <span class="soft">${phase.of}</span></span> `)}</p>
    ${rows.length === 0 ? html`<p class="empty">${emptyText(source)}</p>` : html`
    <div class="tail" role="table" aria-label="Ended calls, newest first" aria-rowcount=${found.length + 1}>
      <div role="rowgroup"><div class="row head" role="row"><span role="columnheader">Ended</span><span role="columnheader">Destination, tool</span><span role="columnheader">Caller</span><span role="columnheader">Outcome</span><span role="columnheader" class="latency">Latency</span><span role="columnheader">What the time went to</span><span role="columnheader" class="more">More</span></div></div>
      <div role="rowgroup">${rows.map((call, index) => row(call, from + index, longest, draw))}</div>
    </div>`}
    ${pages > 1 ? html`<p class="pager"><button type="button" ?disabled=${view.page === 0} @click=${() => { view.page -= 1; draw(); }}>Newer</button>
      <span>${count(from + 1)}–${count(from + rows.length)} of ${count(found.length)}</span>
      <button type="button" ?disabled=${view.page >= pages - 1} @click=${() => { view.page += 1; view.frozen ??= [...store.calls]; draw(); }}>Older</button></p>` : nothing}`;
}

/** The newest result of filtering, since most draws change nothing. @type {{ key: string, found: Call[] } | null} */
let newest = null;

/**
 * Returns the calls that fit, newest first.
 * @param {Call[]} source
 * @param {URLSearchParams} query
 */
export function filtered(source, query) {
  const last = source[source.length - 1];
  const key = `${query}|${source.length}|${last ? keyOf(last) : ''}|${source[0] ? keyOf(source[0]) : ''}`;
  if (newest?.key === key) return newest.found;
  const [destination, member, caller, client, tool, outcome, kind, one] = FILTERS.map((name) => query.get(name));
  /** @type {Call[]} */
  const found = [];
  for (let index = source.length - 1; index >= 0; index -= 1) {
    const call = source[index];
    if (!call) continue;
    if (destination && call.destination !== destination) continue;
    if (member && call.member !== member) continue;
    if (caller && call.principal !== caller) continue;
    if (client && call.client !== client) continue;
    if (tool && call.tool !== tool) continue;
    if (outcome && (outcome === 'not-ok' ? call.outcome === 'ok' || call.outcome === 'closed' : call.outcome !== outcome)) continue;
    if (kind === 'work' && !isWork(call)) continue;
    if (one && keyOf(call) !== one) continue;
    found.push(call);
  }
  newest = { key, found };
  return found;
}

/** @param {Call[]} found */
function tailText(found) {
  const since = store.since === null ? '' : ` since ${clock(store.since)}`;
  const skipped = store.skipped > 0 ? `; ${count(store.skipped)} more were counted and not listed, since they came too fast` : '';
  const kept = store.calls.length >= CALLS_KEPT ? `; the newest ${count(CALLS_KEPT)} are kept` : '';
  return `${plural(found.length, 'call')} listed${since}${skipped}${kept}${view.frozen ? '; paused' : ''}`;
}

/** @param {Call[]} source */
function emptyText(source) {
  if (source.length > 0) return 'No call fits the filter.';
  return 'No call has ended since this page was opened. Calls are listed while a page is open.';
}

/** Returns the questions that servers wait for an answer to. */
function questions() {
  const open = (store.state?.destinations ?? []).flatMap((one) => (one.question_list ?? []).map((question) => ({ one, question })));
  if (open.length === 0) return nothing;
  return html`<section class="panel warn" aria-labelledby="questions"><h2 id="questions">${icon('asking')} ${plural(open.length, 'open question')}</h2>
    <ul>${open.slice(0, 20).map(({ one, question }) => html`<li><a href=${`#/destination/${encodeURIComponent(one.name)}`}>${one.name}</a> asked <code class="from">${question.method}</code> ${age(aged(question.age_ms))}${question.session ? html`<span class="soft"> · session ${question.session}</span>` : nothing}</li>`)}</ul>
  </section>`;
}

/** @param {Call[]} source @param {URLSearchParams} query */
function filters(source, query) {
  /** @param {(call: Call) => string | null | undefined} of */
  const values = (of) => [...new Set(source.map(of).filter((value) => typeof value === 'string' && value !== ''))].sort().slice(0, 200);
  const members = values((call) => call.member);
  return html`<form class="filters" aria-label="Filter" @submit=${(/** @type {Event} */ event) => event.preventDefault()} @change=${changeFilter}>
    ${choice('destination', 'Destination', values((call) => call.destination), query)}
    ${members.length > 0 || query.has('member') ? choice('member', 'Member', members, query) : nothing}
    ${choice('client', 'Client', values((call) => call.client), query)}
    ${choice('caller', 'Caller', values((call) => call.principal), query)}
    ${choice('tool', 'Tool', values((call) => call.tool), query)}
    ${choice('outcome', 'Outcome', ['not-ok', ...OUTCOME_NAMES], query, (value) => (value === 'not-ok' ? 'all but ok' : outcomeOf(value).word))}
    ${choice('kind', 'Kind', ['work'], query, () => 'calls and reads')}
    ${[...query.keys()].length > 0 ? html`<a class="button" href="#/calls">Show all</a>` : nothing}
  </form>`;
}

/**
 * @param {string} key
 * @param {string} label
 * @param {(string | null | undefined)[]} values
 * @param {URLSearchParams} query
 * @param {(value: string) => string} [word]
 */
function choice(key, label, values, query, word = (value) => value) {
  const now = query.get(key) ?? '';
  const all = now && !values.includes(now) ? [now, ...values] : values;
  return html`<label>${label}<select name=${key} .value=${now}><option value="" ?selected=${now === ''}>all</option>${all.map((value) =>
    html`<option value=${value ?? ''} ?selected=${value === now}>${word(value ?? '')}</option>`)}</select></label>`;
}

/** @param {Event} event */
function changeFilter(event) {
  const select = /** @type {HTMLSelectElement} */ (event.target);
  const query = new URLSearchParams(location.hash.split('?')[1] ?? '');
  query.delete('call');
  if (select.value === '') query.delete(select.name);
  else query.set(select.name, select.value);
  // No entry of the history and no new focus: the reader stays in the form.
  history.replaceState(null, '', `#/calls${query.size > 0 ? `?${query}` : ''}`);
  window.dispatchEvent(new Event('moved'));
}

/**
 * @param {Call} call
 * @param {number} index
 * @param {number} longest
 * @param {Draw} draw
 */
function row(call, index, longest, draw) {
  const outcome = outcomeOf(call.outcome);
  const key = keyOf(call);
  const open = view.open === key;
  const what = call.tool ?? call.mcp_method ?? call.http_method;
  return html`<div class="row ${open ? 'open' : ''}" role="row" aria-rowindex=${index + 2}>
    <span role="cell" class="time">${clock(call.ts)}</span>
    <span role="cell" class="what"><strong class="from">${what}</strong> <span class="soft">${call.destination}${call.member ? ` › ${call.member}` : ''}</span></span>
    <span role="cell" class="caller"><span class="from">${call.client ?? call.principal}</span>${call.client ? html` <span class="soft from">${call.principal}</span>` : nothing}</span>
    <span role="cell" class="outcome ${outcome.tone}">${icon(outcome.sign)} ${outcome.word}${call.reason ? html`<br><code>${call.reason}</code>` : nothing}</span>
    <span role="cell" class="latency">${duration(call.latency_ms)}</span>
    <span role="cell" class="parts">${callBar(call, longest)}</span>
    <span role="cell" class="more"><button type="button" class="small" aria-expanded=${open ? 'true' : 'false'} @click=${() => { view.open = open ? null : key; draw(); }}>${open ? 'Less' : 'More'}<span class="unseen"> about ${what} at ${clock(call.ts)}</span></button></span>
    ${open ? html`<div role="cell" class="about">${about(call)}</div>` : nothing}
  </div>`;
}

/** @param {Call} call */
function about(call) {
  return html`<p><strong>${waitedFor(call)}</strong></p>
    <dl class="facts wide">
      ${fact('Parts', phasesText(call))}
      ${fact('Ended', call.ts)}
      ${fact('Method', html`${call.http_method}${call.mcp_method ? html` · <span class="from">${call.mcp_method}</span>` : nothing}`)}
      ${fact('Session', call.session ?? 'none (a modern client has none)')}
      ${fact('Id', call.rpc_id === null ? '–' : JSON.stringify(call.rpc_id))}
      ${fact('Status', call.status_code)}
      ${fact('Bytes', `${size(call.request_bytes)} in, ${size(call.response_bytes)} out`)}
      ${call.own_name ? fact('At the member', html`<span class="from">${call.own_name}</span>`) : nothing}
    </dl>
    ${call.reason ? html`<p><a href=${`#/destination/${encodeURIComponent(call.member ?? call.destination)}`}>What ${call.reason} means</a></p>` : nothing}
    ${call.request_body || call.response_body
      ? html`<h3>Request</h3><pre class="from" role="group" tabindex="0" aria-label="Request">${call.request_body ?? '–'}</pre><h3>Response</h3><pre class="from" role="group" tabindex="0" aria-label="Response">${call.response_body ?? '–'}</pre>`
      : html`<p class="soft">${store.facts?.audit_bodies ? 'This call has no bodies.' : 'Bodies are kept with audit.bodies only.'}</p>`}`;
}

/** @param {string} name @param {unknown} value */
function fact(name, value) {
  return html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
}
