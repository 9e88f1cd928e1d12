// @ts-check
// The frame of the page: where the reader is, whether the figures are live, and which screen shows.

import { html, nothing, render } from './lit-html.js';
import { signOut } from './api.js';
import { age, clock, duration, plural } from './format.js';
import { icon } from './icons.js';
import { start, store } from './store.js';
import { calls } from './calls.js';
import { destination } from './destination.js';
import { limits } from './limits.js';
import { overview } from './overview.js';
import { sessions } from './sessions.js';
import { setup } from './setup.js';
import { tryIt } from './try.js';

/** @typedef {import('./lit-html.js').TemplateResult} TemplateResult */
/** @typedef {{ draw: () => void }} Frame */
/** @typedef {{ path: string[], query: URLSearchParams }} Place */
/** @typedef {{ title: string, show: (place: Place, draw: () => void) => TemplateResult }} Screen */

/** @type {Record<string, Screen & { nav?: string }>} */
const SCREENS = {
  '': { title: 'Overview', nav: 'Overview', show: overview },
  destination: { title: 'Destination', show: destination },
  calls: { title: 'Calls', nav: 'Calls', show: calls },
  sessions: { title: 'Sessions', nav: 'Sessions', show: sessions },
  limits: { title: 'Limits', nav: 'Limits', show: limits },
  try: { title: 'Try it', nav: 'Try it', show: tryIt },
  setup: { title: 'Set-up', nav: 'Set-up', show: setup },
};

const root = /** @type {HTMLElement} */ (document.getElementById('page'));

/** @returns {Place} */
function place() {
  const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  return { path: path.split('/').filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

let drawn = 0;
let waiting = false;

/** Draws soon, at most five times a second: figures that change faster cannot be read. */
function draw() {
  if (waiting) return;
  waiting = true;
  const pause = Math.max(0, drawn + 200 - performance.now());
  setTimeout(() => requestAnimationFrame(drawNow), pause);
}

function drawNow() {
  waiting = false;
  drawn = performance.now();
  const here = place();
  const name = here.path[0] ?? '';
  const screen = (Object.hasOwn(SCREENS, name) && SCREENS[name]) || missing;
  document.title = `${title(screen, here)} · Rialto`;
  render(frame(screen, name, here), root);
}

/** @type {Screen} */
const missing = {
  title: 'Not found',
  show: () => html`<h1 tabindex="-1">There is no such screen</h1><p><a href="#/">Back to the overview</a></p>`,
};

/** @param {Screen} screen @param {Place} here */
function title(screen, here) {
  return here.path[1] ? `${here.path[1]} · ${screen.title}` : screen.title;
}

/**
 * @param {Screen} screen
 * @param {string} name
 * @param {Place} here
 */
function frame(screen, name, here) {
  const { state } = store;
  return html`
    <a class="skip" href="#main" @click=${skip}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/"><span class="logo">${icon('logo')}</span>Rialto</a>
      ${state ? html`<p class="where">${state.url ?? 'no listener'}<span class="soft"> · ${state.rialto} · up ${duration(state.up_ms + Date.now() - store.received)}</span></p>` : nothing}
      ${liveness()}
      ${store.facts?.signed_in
        ? html`<p class="account">${store.facts.signed_in} <button class="small" type="button" @click=${leave}>Sign out</button></p>`
        : nothing}
    </header>
    <nav class="screens" aria-label="Screens"><ul>
      ${Object.entries(SCREENS).map(([path, one]) => one.nav
        ? html`<li><a href="#/${path}" aria-current=${path === name || (path === '' && name === 'destination') ? 'page' : nothing}>${one.nav}${mark(path)}</a></li>`
        : nothing)}
    </ul></nav>
    <div role="status" class="notices">${notices()}</div>
    <main id="main" tabindex="-1" class=${store.link === 'lost' ? 'stale' : ''}>
      ${state ? shown(screen, here) : waitingFor()}
    </main>`;
}

/** @param {Screen} screen @param {Place} here */
function shown(screen, here) {
  try {
    return screen.show(here, draw);
  } catch (error) {
    // One text that cannot be shown must not stop the page.
    console.warn(error);
    return html`<h1 tabindex="-1">${screen.title}</h1><p class="notice bad">${icon('failing')}<span>This screen cannot be drawn: ${error instanceof Error ? error.message : 'unknown error'}</span></p>`;
  }
}

/** Returns a number beside the name of a screen where something wants to be looked at. */
function mark(/** @type {string} */ path) {
  const { state } = store;
  if (!state) return nothing;
  if (path === '') {
    const bad = state.destinations.filter((one) => one.configured && !one.ready).length;
    return bad > 0 ? html` <span class="badge bad">${bad} failing</span>` : nothing;
  }
  if (path === 'calls') {
    const asked = state.destinations.reduce((sum, one) => sum + one.open_questions, 0);
    return asked > 0 ? html` <span class="badge">${plural(asked, 'question')}</span>` : nothing;
  }
  return nothing;
}

function waitingFor() {
  return store.refused
    ? html`<h1 tabindex="-1">No figures</h1><p class="empty">${store.refused}</p>`
    : html`<h1 tabindex="-1">Rialto</h1><p class="empty">Waiting for the first figures…</p>`;
}

function liveness() {
  const since = store.state ? Date.now() - store.received : null;
  if (store.link === 'live') {
    return html`<p class="live good" title="Figures come when something changes, and at least every five seconds">
      <span class="dot" aria-hidden="true"></span>live<span class="soft"> · updated ${age(since)}</span></p>`;
  }
  const word = { connecting: 'connecting', lost: 'not live', paused: 'paused' }[store.link];
  return html`<p class="live bad">${icon('failing')} ${word}${since === null ? nothing : html`<span class="soft"> · figures ${age(since)}</span>`}</p>`;
}

function notices() {
  const { state } = store;
  return html`
    ${store.link === 'lost'
      ? html`<p class="notice bad">${icon('failing')}<span>${store.refused ?? 'Rialto does not answer.'} The figures below are those of ${clock(store.received || store.lost)}. Trying again.</span></p>`
      : nothing}
    ${store.restarted
      ? html`<p class="notice warn">${icon('info')}<span>Rialto was restarted at ${clock(store.restarted.at)} (process ${store.restarted.pid}). Its counters began again then.</span>
          <button class="small" type="button" @click=${forgetRestart}>Dismiss</button></p>`
      : nothing}
    ${state?.draining ? html`<p class="notice warn">${icon('part')}<span>Rialto is shutting down: calls in flight may finish, new ones are refused.</span></p>` : nothing}
    ${state?.last_reload_failed ? html`<p class="notice bad">${icon('failing')}<span>The last reload of the configuration failed; the one before it is in use. The log of Rialto has the error.</span></p>` : nothing}`;
}

function forgetRestart() {
  store.restarted = null;
  draw();
}

async function leave() {
  await signOut();
  location.reload();
}

/** @param {Event} event */
function skip(event) {
  // The fragment is the place of the page, so the link itself must not be followed.
  event.preventDefault();
  document.getElementById('main')?.focus();
}

window.addEventListener('moved', drawNow);
window.addEventListener('hashchange', () => {
  drawNow();
  window.scrollTo(0, 0);
  /** @type {HTMLElement | null} */ (document.querySelector('main h1'))?.focus({ preventScroll: true });
});

start(draw);
// Ages grow without news.
setInterval(() => document.hidden || draw(), 1000);
drawNow();
