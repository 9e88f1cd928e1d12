// @ts-check
// Texts for figures. What was not observed is a dash, never a zero.

export const NOT_OBSERVED = '–';

/**
 * Returns a length of time in the largest unit that keeps two digits.
 * @param {number | null | undefined} ms
 * @returns {string}
 */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return NOT_OBSERVED;
  if (ms < 1) return `${Math.round(ms * 100) / 100} ms`;
  if (ms < 10) return `${Math.round(ms * 10) / 10} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 9.95) return `${Math.round(seconds * 10) / 10} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = seconds / 60;
  if (minutes < 120) return `${Math.round(minutes)} min`;
  const hours = minutes / 60;
  return hours < 48 ? `${Math.round(hours)} h` : `${Math.round(hours / 24)} d`;
}

/**
 * Returns an age in whole seconds, since finer ones change while they are read.
 * @param {number | null | undefined} ms
 * @returns {string}
 */
export function age(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return NOT_OBSERVED;
  return ms < 1500 ? 'now' : `${duration(Math.round(ms / 1000) * 1000)} ago`;
}

/**
 * @param {number | null | undefined} bytes
 * @returns {string}
 */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return NOT_OBSERVED;
  if (bytes < 1000) return `${bytes} B`;
  const units = ['kB', 'MB', 'GB', 'TB'];
  let value = bytes;
  let unit = -1;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value < 10 ? Math.round(value * 10) / 10 : Math.round(value)} ${units[unit]}`;
}

/**
 * @param {number | null | undefined} value
 * @returns {string}
 */
export function count(value) {
  return value === null || value === undefined ? NOT_OBSERVED : value.toLocaleString('en');
}

/**
 * Returns a number with its noun: `1 session`, `3 sessions`.
 * @param {number} value
 * @param {string} noun
 * @param {string} [plural]
 * @returns {string}
 */
export function plural(value, noun, plural) {
  return `${count(value)} ${value === 1 ? noun : plural ?? `${noun}s`}`;
}

/**
 * Returns the time of day of a timestamp, in the zone of the reader.
 * @param {string | number} when
 * @returns {string}
 */
export function clock(when) {
  const date = new Date(when);
  if (Number.isNaN(date.getTime())) return NOT_OBSERVED;
  return date.toLocaleTimeString('en-GB');
}

/**
 * Returns a list as a sentence has it.
 * @param {string[]} items
 * @returns {string}
 */
export function listed(items) {
  if (items.length < 2) return items.join('');
  return `${items.slice(0, -1).join(', ')} and ${items[items.length - 1]}`;
}
