// @ts-check
// The hosts of this machine, what each points at, and what is wrong with that. It changes nothing.

import { html, nothing } from './lit-html.js';
import { setups } from './api.js';
import { age } from './format.js';
import { icon } from './icons.js';

/** @type {Record<string, string>} */
const KINDS = { stdio: 'starts it itself', remote: 'remote server', rialto: 'by way of Rialto', unusable: 'cannot be used' };

/**
 * @param {import('./app.js').Place} _place
 * @param {() => void} draw
 */
export function setup(_place, draw) {
  const fetched = setups.read('', draw);
  const found = fetched.value;
  const hosts = found?.hosts ?? [];
  return html`
    <h1 tabindex="-1">Set-up</h1>
    <p class="soft">${found ? `Looked at ${age(Date.now() - fetched.received)}.` : fetched.error ? '' : 'Being looked at…'} This screen only reads. <button type="button" class="small" ?disabled=${fetched.busy} @click=${() => setups.renew('', draw)}>Look again</button></p>
    ${fetched.error ? html`<p class="notice bad">${icon('failing')}<span>${fetched.error}</span></p>` : nothing}
    ${found && !found.available ? html`<p class="empty">${icon('info')} ${found.why ?? 'Rialto does not look at hosts here.'}</p>` : nothing}
    ${found?.available ? html`
      <section aria-labelledby="findings"><h2 id="findings">Findings</h2>
        ${(found.findings ?? []).length === 0 ? html`<p class="empty">${icon('ready')} Nothing to mend was found.</p>` : nothing}
        <ul class="findings">${(found.findings ?? []).map(shown)}</ul>
        <p class="soft">These findings are about the files of hosts. <code>rialto doctor</code> looks also at programs, servers and sign-in.</p>
      </section>
      <section aria-labelledby="hosts"><h2 id="hosts">Hosts on this machine</h2>
        ${hosts.length === 0 ? html`<p class="empty">No configuration of a known host was found in the home of the user that runs Rialto.</p>` : nothing}
        <ul class="cards">${hosts.map((host) => html`<li class="card"><h3>${host.title}</h3>
          <p class="soft from">${host.path}</p>
          ${host.servers.length === 0 ? html`<p class="soft">It names no server.</p>` : nothing}
          <dl class="facts wide">${host.servers.map((server) => html`<div><dt class="from">${server.name}</dt><dd>${icon(server.kind === 'unusable' ? 'failing' : server.kind === 'rialto' ? 'ready' : 'info')} <span class="from">${server.points_at ?? '–'}</span> <span class="soft">· ${KINDS[server.kind] ?? server.kind}${server.project ? html` · <span class="from">${server.project}</span>` : nothing}</span></dd></div>`)}</dl>
        </li>`)}</ul>
      </section>` : nothing}
    <section aria-labelledby="how"><h2 id="how">Connect another host</h2>
      <p>Each <a href="#/">destination</a> has the card <em>Use it from…</em> with the text or button for a host.</p></section>`;
}

/** @type {Record<string, { word: string, tone: string, sign: string }>} */
const WEIGHTS = {
  act: { word: 'to fix', tone: 'bad', sign: 'failing' },
  try_later: { word: 'try again later', tone: 'warn', sign: 'part' },
  note: { word: 'to know', tone: 'calm', sign: 'info' },
};

/** @param {import('../../../tests/page/shapes.js').Finding} finding */
function shown({ subject, weight, what, why, cure }) {
  const { word, tone, sign } = WEIGHTS[weight] ?? { word: weight, tone: 'calm', sign: 'info' };
  return html`<li><span class="state ${tone}">${icon(sign)} ${word}</span> <strong class="from">${subject} ${what}</strong><br><span class="soft from">${why}</span><br>
    ${cure.file ? html`in <span class="from">${cure.file}</span>: ` : nothing}${cure.kind === 'do' ? html`<span class="from">→ ${cure.line}</span>` : html`<code class="from">${cure.line}</code>`}</li>`;
}
