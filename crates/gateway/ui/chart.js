// @ts-check
// Small drawings as inline SVG. Sizes are attributes, since the policy of the page forbids styles
// in markup. What a drawing shows also stands beside it as text, or in its label.

import { html, svg, nothing } from './lit-html.js';
import { duration } from './format.js';
import { partsOf } from './words.js';

/** @typedef {{ calls: number, failed: number }} Bucket */
/** @typedef {import('../../../tests/page/shapes.js').Call} Call */

/**
 * Returns calls over time as bars, with the failed part hatched on top.
 * @param {Bucket[] | null} buckets oldest first; `null` if nothing was observed yet
 * @param {string} label
 */
export function sparkline(buckets, label) {
  if (!buckets || buckets.length === 0) return html`<span class="unseen">–</span>`;
  const most = Math.max(1, ...buckets.map((bucket) => bucket.calls));
  const width = 4;
  const bars = buckets.map((bucket, index) => {
    if (bucket.calls === 0) return nothing;
    const height = Math.max(2, (bucket.calls / most) * 28);
    const failed = bucket.failed === 0 ? 0 : Math.max(2, (bucket.failed / most) * 28);
    const x = index * width;
    return svg`<rect class="bar" x=${x} y=${30 - height} width="3" height=${Math.max(0, height - failed)} rx=".6"/>
      ${failed > 0 ? svg`<rect class="bar bad" x=${x} y=${30 - failed} width="3" height=${failed} rx=".6"/>` : nothing}`;
  });
  return html`<svg class="spark" viewBox="0 0 ${buckets.length * width} 31" preserveAspectRatio="none" role="img"
    aria-label=${label}><path class="base" d="M0 30.5h${buckets.length * width}"/>${bars}</svg>`;
}

/**
 * Returns the parts of a call as one bar. Its length is the latency on a logarithmic scale, since
 * calls of a millisecond and of a minute stand in one list.
 * @param {Call} call
 * @param {number} longest the latency that fills the bar
 */
export function callBar(call, longest) {
  const scale = (/** @type {number} */ ms) => Math.log10(1 + ms * 10) / Math.log10(1 + longest * 10);
  const length = Math.max(1.5, 100 * Math.min(1, scale(call.latency_ms)));
  const found = partsOf(call);
  const sum = found.reduce((total, part) => total + part.ms, 0);
  let x = 0;
  const parts = sum === 0
    ? svg`<rect class="part whole" y="1" width=${length} height="10" rx="1"/>`
    : found.map((part) => {
        const width = (part.ms / sum) * length;
        x += width;
        return svg`<rect class="part ${part.word}" x=${x - width} y="1" width=${Math.max(0.6, width)} height="10"/>`;
      });
  return html`<svg class="callbar" viewBox="0 0 100 12" preserveAspectRatio="none" role="img"
    aria-label=${phasesText(call)}>${parts}</svg>`;
}

/**
 * Returns the parts of a call in words.
 * @param {Call} call
 * @returns {string}
 */
export function phasesText(call) {
  const parts = partsOf(call).map((part) => `${part.word} ${duration(part.ms)}`);
  return parts.length === 0 ? `${duration(call.latency_ms)}, parts not observed` : parts.join(' · ');
}

/**
 * Returns how much of a limit is used, as a bar.
 * @param {number} used
 * @param {number} most
 * @param {string} label
 */
export function meter(used, most, label) {
  const share = most === 0 ? 0 : Math.min(1, used / most);
  const tone = share >= 0.9 ? 'bad' : share >= 0.7 ? 'warn' : 'good';
  return html`<svg class="meter ${tone}" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${label}
    ><rect class="rail" width="100" height="8" rx="1"/><rect class="fill" width=${share * 100} height="8" rx="1"/></svg>`;
}
