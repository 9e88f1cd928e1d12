// @ts-check
// Every limit, how near it is, and when it was reached last. The nearest come first.

import { html, nothing } from './lit-html.js';
import { meter } from './chart.js';
import { age, count, plural, size } from './format.js';
import { icon } from './icons.js';
import { aged, store } from './store.js';
import { limitOf } from './words.js';

/** @typedef {import('../../../tests/page/shapes.js').Limit} Limit */

const ROWS = 100;
let shown = ROWS;

/**
 * @param {import('./app.js').Place} _place
 * @param {() => void} draw
 */
export function limits(_place, draw) {
  const state = /** @type {import('../../../tests/page/shapes.js').Snapshot} */ (store.state);
  const all = [
    ...entries(null, state.limits),
    ...state.destinations.flatMap((one) => entries(one.name, one.limits)),
  ].sort((one, other) => nearness(other.limit) - nearness(one.limit));
  const hit = all.filter(({ limit }) => limit.hits > 0);
  return html`
    <h1 tabindex="-1">Limits</h1>
    <p>${hit.length === 0
      ? html`${icon('ready')} No limit was reached since Rialto started.`
      : html`${icon('part')} ${count(hit.length)} of ${count(all.length)} limits were reached: calls were refused or had to wait.`}
      <span class="soft">Figures ${age(aged(0))}.</span></p>
    <div class="scroll" tabindex="0" role="group" aria-label="Limits"><table class="limits">
      <thead><tr><th scope="col">Limit</th><th scope="col">Of</th><th scope="col">Used</th><th scope="col">How near</th><th scope="col">Reached</th><th scope="col">Last</th></tr></thead>
      <tbody>${all.slice(0, shown).map(({ of, name, limit }) => html`<tr>
        <th scope="row">${limitOf(name)}<br><code class="soft">${name}</code></th>
        <td>${of === null ? 'the gateway' : html`<a href=${`#/destination/${encodeURIComponent(of)}`}>${of}</a>`}</td>
        <td>${amount(name, limit.used)} <span class="soft">of ${limit.most === null ? 'not known here' : amount(name, limit.most)}</span></td>
        <td>${limit.used === null || limit.most === null ? html`<span class="soft">only hits are known</span>` : html`${meter(limit.used, limit.most, `${share(limit)} of ${limitOf(name)}`)} ${share(limit)}`}</td>
        <td class=${limit.hits > 0 ? 'warn' : ''}>${limit.hits > 0 ? html`${icon('part')} ${plural(limit.hits, 'time')}` : 'never'}</td>
        <td>${limit.hits > 0 ? age(aged(limit.last_hit_ms)) : '–'}</td></tr>`)}</tbody>
    </table></div>
    ${all.length > shown ? html`<button type="button" @click=${() => { shown += ROWS; draw(); }}>Show more of ${count(all.length)}</button>` : nothing}`;
}

/** @param {string | null} of @param {Record<string, Limit>} found */
function entries(of, found) {
  return Object.entries(found).map(([name, limit]) => ({ of, name, limit }));
}

/** @param {Limit} limit */
function nearness(limit) {
  const used = limit.used === null || limit.most === null || limit.most === 0 ? 0 : limit.used / limit.most;
  return used + (limit.hits > 0 ? 1 : 0);
}

/** @param {Limit} limit */
function share(limit) {
  const percent = (100 * (limit.used ?? 0)) / (limit.most || 1);
  return percent > 0 && percent < 1 ? 'below 1 %' : `${Math.round(percent)} %`;
}

/** @param {string} name @param {number | null} value */
function amount(name, value) {
  return name.includes('bytes') ? size(value) : count(value);
}
