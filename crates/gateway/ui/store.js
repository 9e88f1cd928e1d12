// @ts-check
// What the page knows, and how it learns it. One event stream feeds it; every figure keeps the
// moment at which it was received, so that its age can be shown.

import { fetchState } from './api.js';

/** @typedef {import('../../../tests/page/shapes.js').Snapshot} Snapshot */
/** @typedef {import('../../../tests/page/shapes.js').Call} Call */
/** @typedef {import('../../../tests/page/shapes.js').Session} Session */
/** @typedef {'connecting' | 'live' | 'lost' | 'paused'} Link */

/** How many ended calls the page keeps. Older ones are dropped. */
export const CALLS_KEPT = 10_000;

/** The last five minutes, in parts of ten seconds. */
const BUCKETS = 30;
const BUCKET_MS = 10_000;

export const store = {
  /** @type {Snapshot | null} */
  state: null,
  /** What the stream leaves out. @type {import('../../../tests/page/shapes.js').PageFacts | null} */
  facts: null,
  /** When `state` was received, by the clock of the page. */
  received: 0,
  /** @type {Link} */
  link: 'connecting',
  /** When the link was lost. */
  lost: 0,
  /** What the gateway answered instead of a stream. @type {string | null} */
  refused: null,
  /** Ended calls, oldest first. @type {Call[]} */
  calls: [],
  /** Calls that were counted and not listed. */
  skipped: 0,
  /** Since when calls are listed without a gap, by the clock of the page. @type {number | null} */
  since: null,
  /** @type {{ pid: number, at: number } | null} */
  restarted: null,
  /** Sessions by destination, fetched while they are shown. @type {{ lists: Map<string, Session[]>, received: number } | null} */
  sessions: null,
};

/** @type {() => void} */
let changed = () => {};
/** @type {EventSource | null} */
let source = null;

/**
 * Opens the stream, and closes it while the page is hidden: a browser has few connections.
 * @param {() => void} onChange
 */
export function start(onChange) {
  changed = onChange;
  document.addEventListener('visibilitychange', () => (document.hidden ? pause() : open()));
  if (document.hidden) store.link = 'paused';
  else open();
}

function pause() {
  source?.close();
  source = null;
  store.link = 'paused';
  changed();
}

function open() {
  if (source) return;
  source = new EventSource('api/events');
  source.addEventListener('open', () => {
    store.link = 'live';
    store.refused = null;
    changed();
    if (!store.facts) void learnFacts();
  });
  source.addEventListener('error', () => {
    if (store.link !== 'lost') {
      store.link = 'lost';
      store.lost = Date.now();
    }
    // The browser tries again by itself after a broken stream, and never after a refusal.
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(probe, 2000);
    }
    changed();
  });
  source.addEventListener('state', (event) => takeState(JSON.parse(event.data)));
  source.addEventListener('calls', (event) => takeCalls(JSON.parse(event.data)));
}

/** Fetches the account of the reader; without an answer the next stream is as good a time. */
async function learnFacts() {
  try {
    store.facts = (await fetchState()).page;
    changed();
  } catch (error) {
    console.warn(error);
  }
}

/** Asks why the stream was refused, then opens it again. */
async function probe() {
  try {
    takeState(await fetchState());
    store.refused = null;
  } catch (error) {
    store.refused = error instanceof Error && 'status' in error ? error.message : null;
    changed();
  }
  if (!document.hidden) open();
}

/** @param {Snapshot} state */
function takeState(state) {
  const before = store.state;
  if (before && (before.pid !== state.pid || state.up_ms + 1000 < before.up_ms)) {
    store.restarted = { pid: state.pid, at: Date.now() - state.up_ms };
    store.sessions = null;
  }
  if (before && before.pid === state.pid) noteBetween(before, state);
  // The stream has no sessions; those that were fetched stay until newer ones are.
  store.state = state;
  store.received = Date.now();
  changed();
}

/** @param {{ calls: Call[], skipped: number, since_ms: number | null, replay?: boolean }} batch */
export function takeCalls(batch) {
  const { calls } = batch;
  for (const call of calls) call.at = Date.parse(call.ts);
  if (batch.replay) {
    // What ended before the page was opened is in no counter that it saw.
    if (store.since === null) {
      for (const call of calls) if (isCounted(call)) note(call.destination, call.at, 1, call.reason === null ? 0 : 1);
    }
    // The ring repeats calls that the page may have: of those it keeps what is older.
    const first = calls[0]?.ts;
    store.calls = first ? store.calls.filter((call) => call.ts < first) : store.calls;
  }
  store.calls.push(...calls);
  if (store.calls.length > CALLS_KEPT) store.calls.splice(0, store.calls.length - CALLS_KEPT);
  store.skipped += batch.skipped ?? 0;
  if (typeof batch.since_ms === 'number') store.since = Date.now() - batch.since_ms;
  changed();
}

/** Fetches the sessions, which the stream leaves out. */
export async function fetchSessions() {
  const state = await fetchState();
  const lists = new Map(state.destinations.map((one) => [one.name, one.session_list]));
  store.sessions = { lists, received: Date.now() };
  takeState(state);
}

/**
 * Returns the age that a figure of the newest snapshot has by now.
 * @param {number | null | undefined} ms
 * @returns {number | null}
 */
export function aged(ms) {
  return ms === null || ms === undefined ? null : ms + (Date.now() - store.received);
}

/** @param {string} name */
export function destinationOf(name) {
  return store.state?.destinations.find((one) => one.name === name) ?? null;
}

/**
 * Returns whether it is a call of a client's user, not a handshake, a list or a stream.
 * @param {Call} call
 */
export function isWork(call) {
  const method = call.mcp_method ?? '';
  return method.startsWith('tools/call') || method === 'prompts/get' || method === 'resources/read' || method === 'completion/complete';
}

/** Calls by destination and part of ten seconds. @type {Map<string, Map<number, { calls: number, failed: number }>>} */
const history = new Map();

/**
 * @param {string} name
 * @param {number} at
 * @param {number} calls
 * @param {number} failed
 */
function note(name, at, calls, failed) {
  if (calls <= 0 && failed <= 0) return;
  let parts = history.get(name);
  if (!parts) history.set(name, (parts = new Map()));
  const part = Math.floor(at / BUCKET_MS);
  const bucket = parts.get(part) ?? { calls: 0, failed: 0 };
  bucket.calls += calls;
  bucket.failed += failed;
  parts.set(part, bucket);
  for (const old of parts.keys()) if (old <= part - BUCKETS) parts.delete(old);
}

/**
 * Counts what ended between two snapshots: the counters are exact where the list of calls is cut.
 * @param {Snapshot} before
 * @param {Snapshot} state
 */
function noteBetween(before, state) {
  for (const one of state.destinations) {
    const old = before.destinations.find((other) => other.name === one.name);
    if (!old) continue;
    const failed = failedOf(one) - failedOf(old);
    note(one.name, Date.now(), Math.max(one.calls.ended - old.calls.ended, failed), failed);
  }
}

/** @param {import('../../../tests/page/shapes.js').Destination} destination */
export function failedOf(destination) {
  return destination.failures.reduce((sum, failure) => sum + failure.count, 0);
}

/**
 * Returns the calls of the last five minutes in parts of ten seconds, oldest first.
 * @param {string} name
 * @param {number} now
 */
export function bucketsOf(name, now) {
  const parts = history.get(name);
  const last = Math.floor(now / BUCKET_MS);
  return Array.from({ length: BUCKETS }, (_, index) => parts?.get(last - BUCKETS + 1 + index) ?? NOTHING);
}

const NOTHING = { calls: 0, failed: 0 };

/** @param {Call} call */
function isCounted(call) {
  return call.http_method === 'POST' && call.outcome !== 'closed';
}

/**
 * Returns the callers with the most calls within the last five minutes.
 * @param {number} now
 * @returns {{ name: string, caller: string, client: string | null, calls: number, failed: number, destinations: string[] }[]}
 */
export function callers(now) {
  /** @type {Map<string, { name: string, caller: string, client: string | null, calls: number, failed: number, destinations: string[] }>} */
  const found = new Map();
  for (let index = store.calls.length - 1; index >= 0; index -= 1) {
    const call = store.calls[index];
    if (!call || now - call.at > BUCKETS * BUCKET_MS) break;
    if (!isWork(call)) continue;
    const key = JSON.stringify([call.client, call.principal]);
    let entry = found.get(key);
    if (!entry) {
      entry = { name: call.client ?? call.principal, caller: call.principal, client: call.client, calls: 0, failed: 0, destinations: [] };
      found.set(key, entry);
    }
    entry.calls += 1;
    if (call.outcome !== 'ok') entry.failed += 1;
    if (!entry.destinations.includes(call.destination)) entry.destinations.push(call.destination);
  }
  return [...found.values()].sort((one, other) => other.calls - one.calls);
}
