// @ts-check
// The signs of the page. Each stands beside its word, so they are hidden from screen readers.

import { svg, html } from './lit-html.js';

/** @type {Record<string, import('./lit-html.js').TemplateResult>} */
const SIGNS = {
  ready: svg`<circle cx="8" cy="8" r="7"/><path class="cut" d="M4.7 8.3l2.3 2.3 4.3-4.8"/>`,
  part: svg`<circle cx="8" cy="8" r="7"/><path class="cut" d="M8 4.2v4.6M8 11.4v.4"/>`,
  starting: svg`<circle class="line" cx="8" cy="8" r="6"/><path d="M8 2a6 6 0 0 1 0 12z"/>`,
  failing: svg`<path d="M8 .9l7.4 13.6H.6z"/><path class="cut" d="M8 5.5v4.3M8 12v.4"/>`,
  stopped: svg`<rect x="2" y="2" width="12" height="12" rx="2"/>`,
  sleeping: svg`<circle class="line" cx="8" cy="8" r="6"/><path class="line" d="M5.5 8h5"/>`,
  unasked: svg`<circle class="line dash" cx="8" cy="8" r="6"/>`,
  withheld: svg`<circle class="line" cx="8" cy="8" r="6"/><path class="line" d="M3.8 12.2l8.4-8.4"/>`,
  asking: svg`<circle cx="8" cy="8" r="7"/><path class="cut" d="M6 6.2a2 2 0 1 1 2.7 2c-.5.2-.7.5-.7 1M8 11.5v.3"/>`,
  info: svg`<circle class="line" cx="8" cy="8" r="6"/><path class="line" d="M8 7.2v3.8M8 4.8v.3"/>`,
  logo: svg`<path d="M.5 11C3 5.5 5.5 3.6 8 3.6s5 1.9 7.5 7.4h-2.7C11.3 8 9.8 6.7 8 6.7S4.7 8 3.2 11z"/><path class="line" d="M.8 13.4h14.4"/>`,
};

/**
 * @param {string} name
 * @returns {import('./lit-html.js').TemplateResult}
 */
export function icon(name) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">${SIGNS[name] ?? SIGNS.info}</svg>`;
}
