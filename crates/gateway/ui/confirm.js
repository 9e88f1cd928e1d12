// @ts-check
// A button that asks once more before it does something that cannot be undone, in its own place:
// no dialog covers the figures that the decision needs.

import { html } from './lit-html.js';

/** What is being asked, by the key of its button. @type {string | null} */
let asking = null;
/** What the newest of them has done. @type {{ key: string, text: string, failed: boolean } | null} */
let done = null;

/**
 * @param {object} action
 * @param {string} action.key
 * @param {string} action.label
 * @param {string} action.of what it is done to, for screen readers
 * @param {string} action.question
 * @param {() => Promise<string>} action.act returns what was done
 * @param {() => void} draw
 */
export function confirmed({ key, label, of, question, act }, draw) {
  if (asking === key) {
    return html`<span class="confirm" role="group" aria-label=${`${label} ${of}`}>
      <span>${question}</span>
      <button type="button" class="small danger" @click=${async () => {
        asking = null;
        try {
          done = { key, text: await act(), failed: false };
        } catch (error) {
          done = { key, text: error instanceof Error ? error.message : String(error), failed: true };
        }
        draw();
      }}>${label}<span class="unseen"> ${of}</span></button>
      <button type="button" class="small" @click=${() => { asking = null; draw(); }}>Keep</button></span>`;
  }
  return html`<span class="confirm"><button type="button" class="small" @click=${() => { asking = key; done = null; draw(); }}>${label}…<span class="unseen"> ${of}</span></button>
    <span role="status" class=${done?.key === key && done.failed ? 'bad' : 'soft'}>${done?.key === key ? done.text : ''}</span></span>`;
}
