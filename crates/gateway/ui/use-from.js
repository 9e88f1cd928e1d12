// @ts-check
// How a host is pointed at a destination: a text to paste, and a button where a host has an address
// for that.

import { html, nothing } from './lit-html.js';
import { icon } from './icons.js';

/** @typedef {import('../../../tests/page/shapes.js').Detail} Detail */
/** @typedef {import('../../../tests/page/shapes.js').Setup} Setup */
/** @typedef {{ host: string, title: string, file: string | null, text: string }} Snippet */

let chosen = 'cursor';
/** The text that was copied last, and whether the browser allowed it. @type {{ text: string, done: boolean } | null} */
let copied = null;

/**
 * Returns the texts for well-known hosts, where the gateway gives none.
 * @param {string} name
 * @param {string} url
 * @returns {Snippet[]}
 */
function general(name, url) {
  const entry = (/** @type {string} */ key, /** @type {object} */ server) => JSON.stringify({ [key]: { [name]: server } }, null, 2);
  const command = { command: 'rialto', args: ['connect', url] };
  return [
    { host: 'cursor', title: 'Cursor', file: '~/.cursor/mcp.json', text: entry('mcpServers', { url }) },
    { host: 'claude-code', title: 'Claude Code', file: null, text: `claude mcp add --transport http ${name} ${url}` },
    { host: 'vscode', title: 'VS Code', file: '.vscode/mcp.json', text: entry('servers', { type: 'http', url }) },
    { host: 'claude-desktop', title: 'Claude Desktop', file: 'claude_desktop_config.json', text: entry('mcpServers', command) },
    { host: 'codex', title: 'Codex', file: '~/.codex/config.toml', text: `[mcp_servers.${JSON.stringify(name)}]\nurl = ${JSON.stringify(url)}` },
    { host: 'gemini', title: 'Gemini CLI', file: '~/.gemini/settings.json', text: entry('mcpServers', { httpUrl: url }) },
    { host: 'windsurf', title: 'Windsurf', file: '~/.codeium/windsurf/mcp_config.json', text: entry('mcpServers', { serverUrl: url }) },
    { host: 'other', title: 'Other, by HTTP', file: null, text: entry('mcpServers', { type: 'http', url }) },
    { host: 'stdio', title: 'Other, by stdio', file: null, text: entry('mcpServers', command) },
  ];
}

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
 * @param {Setup | null} setup
 * @param {() => void} draw
 */
export function useFrom(name, detail, setup, draw) {
  const url = detail.connect?.url;
  if (!url) return html`<section class="panel" aria-labelledby="use"><h2 id="use">Use it from…</h2><p class="empty">Rialto has no listener: hosts reach it with <code>rialto attach ${name}</code>.</p></section>`;
  const named = (setup?.snippets ?? []).map((one) => ({ ...one, text: one.text.replaceAll('NAME', name).replaceAll('URL', url) }));
  const snippets = named.length > 0 ? named : general(name, url);
  const one = snippets.find((snippet) => snippet.host === chosen) ?? snippets[0];
  if (!one) return nothing;
  const install = installAddress(one.host, name, url);
  return html`<section class="panel" aria-labelledby="use">
    <h2 id="use">Use it from…</h2>
    <div class="choices" role="group" aria-label="Host">${snippets.map((snippet) => html`<button type="button" aria-pressed=${snippet === one ? 'true' : 'false'}
      @click=${() => { chosen = snippet.host; copied = null; draw(); }}>${snippet.title}</button>`)}</div>
    <p>${install ? html`<a class="button strong" href=${install}>Add to ${one.title}</a> or put ` : html`Put `}this ${one.file ? html`into <code>${one.file}</code>` : one.text.startsWith('claude ') ? 'on a command line' : 'into its configuration'}:
      <button type="button" class="small" @click=${() => copy(one.text, draw)}>Copy</button>
      <span role="status" class="soft">${copied?.text === one.text ? (copied.done ? 'Copied.' : 'The browser does not allow it: select the text.') : ''}</span></p>
    <pre class="snippet" role="group" tabindex="0" aria-label="Text for ${one.title}">${one.text}</pre>
    ${detail.connect?.needs_token ? html`<p>${icon('info')} Clients need a token: the header <code>Authorization: Bearer …</code> of a caller in <code>auth.tokens</code>, or the sign-in of the authorization server.</p>` : nothing}
  </section>`;
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
