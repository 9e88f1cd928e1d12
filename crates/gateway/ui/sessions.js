// @ts-check
// The clients that are connected, by session. Modern clients have none, and the screen tells it.

import { html, nothing } from './lit-html.js';
import { endSession } from './api.js';
import { confirmed } from './confirm.js';
import { age, count, duration, plural, size } from './format.js';
import { icon } from './icons.js';
import { fetchSessions, store } from './store.js';

/** @typedef {import('../../../tests/page/shapes.js').Session} Session */

const ROWS = 50;
const EVERY = 2500;
let page = 0;
let wanted = '';
let tried = 0;
/** @type {string | null} */
let failed = null;

/** @param {() => void} draw */
async function renew(draw) {
  tried = Date.now();
  try {
    await fetchSessions();
    failed = null;
  } catch (error) {
    failed = error instanceof Error ? error.message : String(error);
  }
  draw();
}

/**
 * @param {import('./app.js').Place} place
 * @param {() => void} draw
 */
export function sessions(place, draw) {
  if (Date.now() - tried > EVERY) void renew(draw);
  const fetched = store.sessions;
  const only = place.query.get('destination');
  const state = store.state;
  const listens = state?.destinations.reduce((sum, one) => sum + one.listens, 0) ?? 0;
  const parked = state?.destinations.reduce((sum, one) => sum + one.parked, 0) ?? 0;
  const all = [...(fetched?.lists ?? [])].flatMap(([name, list]) => (only && only !== name ? [] : list.map((session) => ({ name, session }))));
  const text = wanted.toLowerCase();
  const found = text === '' ? all : all.filter(({ name, session }) =>
    `${name} ${session.session} ${session.client?.name ?? ''} ${session.caller} ${session.version ?? ''}`.toLowerCase().includes(text));
  const pages = Math.max(1, Math.ceil(found.length / ROWS));
  page = Math.min(page, pages - 1);
  const rows = found.slice(page * ROWS, (page + 1) * ROWS);
  const passed = fetched ? Date.now() - fetched.received : 0;
  return html`
    <h1 tabindex="-1">Sessions <span class="soft">${fetched ? count(all.length) : ''}</span></h1>
    <p>${icon('info')} Modern clients (2026-07-28) are stateless and have no session, so they are not in this list. They have ${plural(listens, 'open listen')} and ${plural(parked, 'parked call')}.</p>
    ${failed ? html`<p class="notice bad">${icon('failing')}<span>${failed}</span></p>` : nothing}
    <div class="bar"><p><label>Find <input type="search" .value=${wanted} @input=${(/** @type {Event} */ event) => {
      wanted = /** @type {HTMLInputElement} */ (event.target).value;
      page = 0;
      draw();
    }}></label></p><p class="soft">${fetched ? `Figures ${age(passed)}` : 'Being fetched…'}</p></div>
    ${fetched && rows.length === 0 ? html`<p class="empty">${all.length === 0 ? 'No session is open.' : 'No session fits.'}</p>` : nothing}
    ${rows.length > 0 ? html`<div class="scroll" tabindex="0" role="group" aria-label="Sessions"><table>
      <thead><tr><th scope="col">Client</th><th scope="col">Destination</th><th scope="col">Era</th><th scope="col">Caller</th><th scope="col">Age</th><th scope="col">Idle since</th><th scope="col">Calls</th><th scope="col">Streams</th><th scope="col">Queued</th><th scope="col">Served by</th><th scope="col">Action</th></tr></thead>
      <tbody>${rows.map(({ name, session }) => html`<tr>
        <th scope="row"><span class="from">${session.client ? `${session.client.name} ${session.client.version ?? ''}` : 'no name given'}</span><br><code class="soft">${session.session}</code></th>
        <td><a href=${`#/destination/${encodeURIComponent(name)}`}>${name}</a></td>
        <td>${session.era}${session.version ? html`<br><span class="soft">${session.version}</span>` : nothing}${session.implicit ? html`<br><span class="soft">opened for it</span>` : nothing}</td>
        <td class="from">${session.caller}</td>
        <td>${duration(session.age_ms + passed)}</td>
        <td>${session.idle_ms === null ? 'in use' : duration(session.idle_ms + passed)}</td>
        <td>${count(session.calls)}</td><td>${count(session.streams)}</td><td>${size(session.queued_bytes)}</td>
        <td>${session.server_pid === null ? '–' : `pid ${session.server_pid}`}</td>
        <td>${confirmed({
          key: `end ${session.session}`,
          label: 'End',
          of: `session ${session.session}`,
          question: 'Its client must initialize again.',
          act: async () => {
            await endSession(name, session.session);
            await renew(draw);
            return 'Ended.';
          },
        }, draw)}</td></tr>`)}</tbody>
    </table></div>` : nothing}
    ${pages > 1 ? html`<p class="pager"><button type="button" ?disabled=${page === 0} @click=${() => { page -= 1; draw(); }}>Before</button>
      <span>${count(page * ROWS + 1)}–${count(page * ROWS + rows.length)} of ${count(found.length)}</span>
      <button type="button" ?disabled=${page >= pages - 1} @click=${() => { page += 1; draw(); }}>Next</button></p>` : nothing}`;
}
