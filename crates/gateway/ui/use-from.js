// @ts-check
// How a host is pointed at a destination: a text to paste, and a button where a host has an address
// for that.

import { html, nothing } from './lit-html.js';
import { icon } from './icons.js';

/** @typedef {import('../../../tests/page/shapes.js').Detail} Detail */
/** @typedef {import('../../../tests/page/shapes.js').Setup} Setup */
/** @typedef {import('./remembered.js').Fetched<Setup>} Fetched */

/** How many hosts are buttons; the rest are in a list. */
const BUTTONS = 7;
let chosen = 'cursor';
/** The text that was copied last, and whether the browser allowed it. @type {{ text: string, done: boolean } | null} */
let copied = null;

/**
 * Returns the address that makes a host offer to install the server, if it has one.
 * @param {string} host
 * @param {string} name
 * @param {string} url
 * @returns {string | null}
 */
function installAddress(host, name, url) {
  if (host === 'cursor') {
    return `cursor://anysphere.cursor-deeplink/mcp/install?name=${encodeURIComponent(name)}&config=${encodeURIComponent(btoa(JSON.stringify({ url })))}`;
  }
  if (host === 'vscode' || host === 'vs-code') {
    return `vscode:mcp/install?${encodeURIComponent(JSON.stringify({ name, type: 'http', url }))}`;
  }
  return null;
}

/**
 * @param {string} name
 * @param {Detail} detail
 * @param {Fetched} setup
 * @param {() => void} draw
 */
export function useFrom(name, detail, setup, draw) {
  return html`<section class="panel" aria-labelledby="use"><h2 id="use">Use it from…</h2>${hosts(name, detail, setup, draw)}</section>`;
}

/**
 * @param {string} name
 * @param {Detail} detail
 * @param {Fetched} setup
 * @param {() => void} draw
 */
function hosts(name, detail, { value, error }, draw) {
  const url = detail.connect?.url;
  if (!url) return html`<p class="empty">Rialto has no listener: hosts reach it with <code>rialto attach ${name}</code>.</p>`;
  const here = new Set((value?.hosts ?? []).map((host) => host.host));
  const all = (value?.snippets ?? []).map((one) => ({ ...one, text: one.text.replaceAll('NAME', name).replaceAll('URL', url) }));
  // Hosts of this machine come first.
  const snippets = [...all.filter(({ host }) => here.has(host)), ...all.filter(({ host }) => !here.has(host))];
  const one = snippets.find((snippet) => snippet.host === chosen) ?? snippets[0];
  if (!one) return html`<p class="empty">${error ?? 'Being fetched…'} Its address is <code>${url}</code>.</p>`;
  const install = installAddress(one.host, name, url);
  const choose = (/** @type {string} */ host) => {
    chosen = host;
    copied = null;
    draw();
  };
  const rest = snippets.slice(BUTTONS);
  return html`
    <div class="choices" role="group" aria-label="Host">${snippets.slice(0, BUTTONS).map((snippet) => html`<button type="button" aria-pressed=${snippet === one ? 'true' : 'false'}
      @click=${() => choose(snippet.host)}>${snippet.title}</button>`)}
      ${rest.length > 0 ? html`<select aria-label="Another host" @change=${(/** @type {Event} */ event) => choose(/** @type {HTMLSelectElement} */ (event.target).value)}>
        <option value=${one.host} ?selected=${!rest.includes(one)} hidden>${rest.length} more…</option>
        ${rest.map((snippet) => html`<option value=${snippet.host} ?selected=${snippet === one}>${snippet.title}</option>`)}</select>` : nothing}</div>
    <p>${install ? html`<a class="button strong" href=${install}>Add to ${one.title}</a> or put ` : html`Put `}this ${one.file ? html`into <code>${one.file}</code>` : one.text.startsWith('claude ') ? 'on a command line' : 'into its configuration'}:
      <button type="button" class="small" @click=${() => copy(one.text, draw)}>Copy</button>
      <span role="status" class="soft">${copied?.text === one.text ? (copied.done ? 'Copied.' : 'The browser does not allow it: select the text.') : ''}</span></p>
    <pre class="snippet" role="group" tabindex="0" aria-label="Text for ${one.title}">${one.text}</pre>
    ${detail.connect?.needs_token ? html`<p>${icon('info')} Clients need a token: the header <code>Authorization: Bearer …</code> of a caller in <code>auth.tokens</code>, or the sign-in of the authorization server.</p>` : nothing}`;
}

/** @param {string} text @param {() => void} draw */
async function copy(text, draw) {
  try {
    await navigator.clipboard.writeText(text);
    copied = { text, done: true };
  } catch {
    copied = { text, done: false };
  }
  draw();
}
