// @ts-check
// What a screen has fetched, with its age: fetched when it is shown first, and again while it is
// shown.

/**
 * @template T
 * @typedef {object} Fetched
 * @property {T | null} value
 * @property {number} received when `value` came, by the clock of the page
 * @property {string | null} error why the newest try failed
 * @property {boolean} busy
 * @property {number} tried
 */

/**
 * Returns a reader of what `fetch` gets. It fetches again when the newest is older than `every`.
 * @template T
 * @param {(name: string) => Promise<T>} fetch
 * @param {number} every in milliseconds; `Infinity` for once
 */
export function remembered(fetch, every) {
  /** @type {Map<string, Fetched<T>>} */
  const known = new Map();

  /** @param {string} name @returns {Fetched<T>} */
  function entry(name) {
    let found = known.get(name);
    if (!found) {
      found = { value: null, received: 0, error: null, busy: false, tried: 0 };
      known.set(name, found);
    }
    return found;
  }

  /**
   * @param {string} name
   * @param {() => void} draw
   * @param {(name: string) => Promise<T>} [by]
   */
  async function renew(name, draw, by = fetch) {
    const found = entry(name);
    if (found.busy) return;
    found.busy = true;
    found.tried = Date.now();
    try {
      found.value = await by(name);
      found.received = Date.now();
      found.error = null;
    } catch (error) {
      found.error = error instanceof Error ? error.message : String(error);
    }
    found.busy = false;
    draw();
  }

  return {
    /**
     * @param {string} name
     * @param {() => void} draw
     */
    read(name, draw) {
      const found = entry(name);
      if (!found.busy && Date.now() - found.tried >= every) void renew(name, draw);
      return found;
    },
    renew,
  };
}
