// @ts-check
// The words of the page for what was observed. Each state has a word and a sign beside its colour.

/** @typedef {import('../../../tests/page/shapes.js').Destination} Destination */
/** @typedef {'good' | 'warn' | 'bad' | 'calm'} Tone */
/** @typedef {{ word: string, note: string, sign: string, tone: Tone, rank: number }} State */

/** @type {Record<string, State>} */
const STATES = {
  failed: { word: 'failing', note: 'the server cannot be used', sign: 'failing', tone: 'bad', rank: 0 },
  backing_off: { word: 'restarting', note: 'the server ended and is started again after a pause', sign: 'failing', tone: 'bad', rank: 1 },
  part: { word: 'partly ready', note: 'some members cannot be used', sign: 'part', tone: 'warn', rank: 2 },
  removed: { word: 'removed', note: 'a reload removed it; open calls may finish', sign: 'stopped', tone: 'warn', rank: 3 },
  starting: { word: 'starting', note: 'the server was started and has not answered yet', sign: 'starting', tone: 'warn', rank: 4 },
  running: { word: 'running', note: 'the server runs and has not answered anything yet', sign: 'starting', tone: 'warn', rank: 4 },
  ready: { word: 'ready', note: 'the server has answered', sign: 'ready', tone: 'good', rank: 5 },
  unstarted: { word: 'not started', note: 'starts at first call', sign: 'sleeping', tone: 'calm', rank: 6 },
  idle_stopped: { word: 'stopped', note: 'after being idle; starts at next call', sign: 'sleeping', tone: 'calm', rank: 6 },
  unasked: { word: 'not asked yet', note: 'Rialto connects at first call', sign: 'unasked', tone: 'calm', rank: 6 },
  stopped: { word: 'stopped', note: 'the server was ended', sign: 'stopped', tone: 'calm', rank: 6 },
};

/**
 * Returns the state of a destination in words.
 * @param {Destination} destination
 * @returns {State}
 */
export function stateOf(destination) {
  if (!destination.configured) return named('removed');
  if (destination.state === 'failed' || destination.state === 'backing_off') return named(destination.state);
  if (destination.members && destination.error) return named(destination.ready ? 'part' : 'failed');
  if (destination.state === 'idle' || destination.state === 'stopped') {
    if (destination.resting?.startsWith('stopped')) return named('idle_stopped');
    // A remote server has no process, so there is nothing to start: it was not asked.
    return named(destination.start === null ? 'unasked' : 'unstarted');
  }
  return named(destination.state);
}

/**
 * @param {string} state
 * @returns {State}
 */
export function named(state) {
  return STATES[state] ?? { word: state.replaceAll('_', ' '), note: '', sign: 'info', tone: 'calm', rank: 4 };
}

/** The three words for what is not there, which mean three different things. */
export const ABSENCES = [
  { word: 'not asked yet', sign: 'unasked', means: 'no client has made Rialto ask the server for it' },
  { word: 'not started (starts at first call)', sign: 'sleeping', means: 'the server does not run, and nothing is wrong' },
  { word: 'withheld by policy', sign: 'withheld', means: 'the server offers it, and the configuration does not show it to clients' },
];

/** @type {Record<string, string>} */
const PROCESSES = {
  shared: 'one process for all clients',
  per_session: 'one process for each session',
  per_identity: 'one process for each caller',
};

/**
 * @param {Destination} destination
 * @returns {string}
 */
export function processOf(destination) {
  if (destination.transport === 'aggregate') return 'none of its own';
  if (destination.transport !== 'stdio') return 'remote server';
  return PROCESSES[destination.process] ?? destination.process;
}

/** @type {Record<string, string>} */
const TRANSPORTS = {
  stdio: 'program (stdio)',
  streamable_http: 'remote (Streamable HTTP)',
  sse: 'remote (HTTP+SSE)',
  aggregate: 'aggregate',
};

/**
 * @param {string} transport
 * @returns {string}
 */
export function transportOf(transport) {
  return TRANSPORTS[transport] ?? transport;
}

/** @type {Record<string, { word: string, tone: Tone, sign: string }>} */
const OUTCOMES = {
  ok: { word: 'ok', tone: 'good', sign: 'ready' },
  error: { word: "server's error", tone: 'warn', sign: 'part' },
  refused: { word: 'refused', tone: 'bad', sign: 'withheld' },
  timeout: { word: 'timed out', tone: 'bad', sign: 'failing' },
  crashed: { word: 'server crashed', tone: 'bad', sign: 'failing' },
  unavailable: { word: 'unavailable', tone: 'bad', sign: 'failing' },
  too_large: { word: 'too large', tone: 'bad', sign: 'failing' },
  invalid: { word: 'invalid answer', tone: 'bad', sign: 'failing' },
  cancelled: { word: 'cancelled', tone: 'calm', sign: 'stopped' },
  disconnected: { word: 'client left', tone: 'calm', sign: 'stopped' },
  closed: { word: 'closed', tone: 'calm', sign: 'stopped' },
};

/**
 * @param {string} outcome
 * @returns {{ word: string, tone: Tone, sign: string }}
 */
export function outcomeOf(outcome) {
  return OUTCOMES[outcome] ?? { word: outcome.replaceAll('_', ' '), tone: 'calm', sign: 'info' };
}

export const OUTCOME_NAMES = Object.keys(OUTCOMES);

/** The parts of a call, in their order. `of` goes on from the word, `waits` completes "most of it: …". */
export const PHASES = /** @type {const} */ ([
  { key: 'waited_ms', word: 'waited', of: 'for its turn at the server', waits: 'waited for its turn at the server' },
  { key: 'starting_ms', word: 'starting', of: 'of its server', waits: 'waited for the server to start' },
  { key: 'server_ms', word: 'server', of: 'worked on it', waits: 'the server worked on it' },
  { key: 'streaming_ms', word: 'streaming', of: 'of the answer', waits: 'the answer was being sent' },
]);

/** What is left of a call where the server's work and the sending of its answer cannot be separated. */
const REST = { word: 'server and streaming', waits: 'the server worked on it, and its answer was being sent' };

/**
 * Returns the parts of a call that took time, in their order; none if they were not observed.
 * @param {import('../../../tests/page/shapes.js').Call} call
 * @returns {{ word: string, waits: string, ms: number }[]}
 */
export function partsOf(call) {
  /** @type {{ word: string, waits: string, ms: number }[]} */
  const known = PHASES.flatMap(({ key, word, waits }) => {
    const ms = call[key];
    return ms === null || ms === undefined ? [] : [{ word, waits, ms }];
  });
  if (known.length === 0) return [];
  const rest = call.latency_ms - known.reduce((sum, part) => sum + part.ms, 0);
  if (call.server_ms === null && rest > 0) known.push({ ...REST, ms: rest });
  return known.filter((part) => part.ms > 0);
}

/** @type {Record<string, string>} */
const LIMITS = {
  sessions: 'sessions of the gateway',
  sessions_per_principal: 'sessions of one caller',
  calls: 'calls at once',
  calls_per_principal: 'calls at once of one caller',
  streams: 'listening streams',
  streams_per_principal: 'listening streams of one caller',
  streams_per_session: 'listening streams of one session',
  connections: 'connections',
  connections_per_address: 'connections from one address',
  buffered_bytes: 'bytes that wait to be read',
  max_sessions: 'sessions of the destination',
  max_children: 'processes of the destination',
  listens: 'open listens',
  requests_per_minute: 'requests of one caller in a minute',
  session_requests_per_minute: 'requests of one session in a minute',
  refused_credentials_per_minute: 'refused credentials in a minute',
};

/**
 * @param {string} name
 * @returns {string}
 */
export function limitOf(name) {
  return LIMITS[name] ?? name.replaceAll('_', ' ');
}
