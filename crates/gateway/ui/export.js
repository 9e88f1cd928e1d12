// @ts-check
// Calls as files: HAR, which browsers and proxies read, and the lines of the audit log.

/** @typedef {import('../../../tests/page/shapes.js').Call} Call */
/** @typedef {import('../../../tests/page/shapes.js').Snapshot} Snapshot */

/**
 * Returns calls as JSON lines, in the form in which the gateway sent them.
 * @param {Call[]} calls
 * @returns {string}
 */
export function toJsonl(calls) {
  return calls.map((call) => `${JSON.stringify({ ...call, at: undefined })}\n`).join('');
}

/**
 * Returns calls as HAR 1.2. What was not observed is -1, as the format wants.
 * @param {Call[]} calls
 * @param {Snapshot | null} state
 */
export function toHar(calls, state) {
  return {
    log: {
      version: '1.2',
      creator: { name: 'Rialto', version: state?.rialto ?? '' },
      entries: calls.map((call) => entry(call, state)),
    },
  };
}

/**
 * @param {Call} call
 * @param {Snapshot | null} state
 */
function entry(call, state) {
  const url = `${state?.url ?? 'http://localhost'}/${call.destination}/mcp`;
  const before = (call.waited_ms ?? 0) + (call.starting_ms ?? 0);
  return {
    startedDateTime: new Date(call.at - call.latency_ms).toISOString(),
    time: call.latency_ms,
    request: {
      method: call.http_method,
      url,
      httpVersion: 'HTTP/1.1',
      cookies: [],
      headers: [],
      queryString: [],
      headersSize: -1,
      bodySize: call.request_bytes,
      ...(call.request_body ? { postData: { mimeType: 'application/json', text: call.request_body } } : {}),
    },
    response: {
      status: call.status_code,
      statusText: '',
      httpVersion: 'HTTP/1.1',
      cookies: [],
      headers: [],
      content: {
        size: call.response_bytes,
        mimeType: 'application/json',
        ...(call.response_body ? { text: call.response_body } : {}),
      },
      redirectURL: '',
      headersSize: -1,
      bodySize: call.response_bytes,
    },
    cache: {},
    // Where the server's work and its answer cannot be separated, both are in `wait`.
    timings: {
      blocked: call.waited_ms === null ? -1 : before,
      dns: -1,
      connect: -1,
      send: 0,
      wait: call.server_ms ?? call.latency_ms - before,
      receive: call.streaming_ms ?? 0,
      ssl: -1,
    },
    _call: { ...call, at: undefined },
  };
}

/**
 * Has the browser save a file.
 * @param {string} name
 * @param {string} type
 * @param {string} text
 */
export function download(name, type, text) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
