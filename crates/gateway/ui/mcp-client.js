// @ts-check
// A client of MCP over Streamable HTTP, in either era, that shows every message as it was sent.

import { sendMcp } from './api.js';

/** @typedef {'legacy' | 'modern'} Era */
/** @typedef {Record<string, any>} Message */
/** @typedef {{ at: number, direction: 'sent' | 'received', status: number | null, text: string }} Seen */
/**
 * @typedef {object} Handlers
 * @property {(seen: Seen) => void} onMessage
 * @property {(progress: { progress: number, total?: number, message?: string }) => void} onProgress
 * @property {(notification: Message) => void} onNotification
 * @property {(question: { method: string, params: any }) => Promise<any>} onQuestion returns the result, or throws to refuse
 */

export const REVISIONS = { legacy: '2025-11-25', modern: '2026-07-28' };
const INFO = { name: 'rialto-page', title: 'Rialto page', version: '1' };
const META = 'io.modelcontextprotocol';
/** How often a server may come back with questions or ask for another try. */
const ROUNDS = 10;

/** What the server answered instead of a result. */
export class RpcError extends Error {
  /** @param {Message} error */
  constructor(error) {
    super(String(error.message ?? 'an error without a text'));
    this.error = error;
  }
}

export class McpClient {
  /**
   * @param {string} name
   * @param {Era} era
   * @param {Handlers} handlers
   */
  constructor(name, era, handlers) {
    this.name = name;
    this.era = era;
    this.handlers = handlers;
    this.ids = 0;
    /** @type {string | null} */
    this.session = null;
    /** @type {string} */
    this.revision = REVISIONS[era];
    /** @type {Promise<void> | null} */
    this.opening = null;
    /** Requests that wait, by id. @type {Map<number, { resolve: (result: any) => void, reject: (error: Error) => void }>} */
    this.waiting = new Map();
  }

  /** Returns all tools that a client is shown. */
  async listTools() {
    const tools = [];
    let cursor;
    // A server could name a next page for ever.
    for (let pages = 0; pages < 50; pages += 1) {
      const result = await this.request('tools/list', cursor === undefined ? {} : { cursor });
      if (Array.isArray(result.tools)) tools.push(...result.tools);
      cursor = result.nextCursor;
      if (typeof cursor !== 'string') break;
    }
    return tools;
  }

  /**
   * @param {import('../../../tests/page/shapes.js').Tool} tool
   * @param {Record<string, unknown>} values
   * @param {AbortSignal} signal
   */
  callTool(tool, values, signal) {
    const headers = this.era === 'modern' ? mirrored(tool.inputSchema, values) : {};
    return this.request('tools/call', { name: tool.name, arguments: values }, { signal, headers, progress: true });
  }

  /**
   * @param {string} method
   * @param {Message} params
   * @param {{ signal?: AbortSignal, headers?: Record<string, string>, progress?: boolean }} [options]
   */
  async request(method, params, options = {}) {
    if (this.era === 'legacy') {
      await (this.opening ??= this.initialize());
      return this.send(method, params, options);
    }
    let extra = {};
    for (let round = 0; round < ROUNDS; round += 1) {
      const result = await this.send(method, { ...params, ...extra }, options);
      if (result?.resultType !== 'input_required') return result;
      /** @type {Record<string, unknown>} */
      const responses = {};
      for (const [key, question] of Object.entries(result.inputRequests ?? {})) {
        responses[key] = await this.handlers.onQuestion(/** @type {any} */ (question));
      }
      if (Object.keys(responses).length === 0) await new Promise((resume) => setTimeout(resume, 250));
      extra = {
        inputResponses: responses,
        ...(result.requestState === undefined ? {} : { requestState: result.requestState }),
      };
    }
    throw new Error(`The server asked ${ROUNDS} times and gave no result.`);
  }

  async initialize() {
    try {
      const result = await this.send('initialize', {
        protocolVersion: REVISIONS.legacy,
        capabilities: { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} },
        clientInfo: INFO,
      });
      if (typeof result.protocolVersion === 'string') this.revision = result.protocolVersion;
      await this.post({ jsonrpc: '2.0', method: 'notifications/initialized' });
    } catch (error) {
      this.opening = null;
      throw error;
    }
  }

  /**
   * Sends a request and returns its result.
   * @param {string} method
   * @param {Message} params
   * @param {{ signal?: AbortSignal, headers?: Record<string, string>, progress?: boolean }} [options]
   * @returns {Promise<any>}
   */
  async send(method, params, { signal, headers = {}, progress = false } = {}) {
    const id = (this.ids += 1);
    /** @type {Message} */
    const meta = progress ? { progressToken: id } : {};
    if (this.era === 'modern') {
      meta[`${META}/protocolVersion`] = REVISIONS.modern;
      meta[`${META}/clientInfo`] = INFO;
      meta[`${META}/clientCapabilities`] = { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} };
    }
    const message = { jsonrpc: '2.0', id, method, params: Object.keys(meta).length > 0 ? { ...params, _meta: meta } : params };
    const answer = new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
    // The answer may come before the body has ended, and the body may end without it.
    this.post(message, { signal, headers: { ...this.routing(method, params), ...headers } }).then(
      () => this.settle(id, new Error('The response ended without an answer.')),
      (error) => this.settle(id, error),
    );
    const cancel = () => {
      if (this.era === 'legacy') void this.post({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: id } }).catch(() => {});
    };
    signal?.addEventListener('abort', cancel, { once: true });
    try {
      return await answer;
    } finally {
      signal?.removeEventListener('abort', cancel);
    }
  }

  /** @param {number} id @param {Error} error */
  settle(id, error) {
    this.waiting.get(id)?.reject(error);
    this.waiting.delete(id);
  }

  /** @param {string} method @param {Message} params @returns {Record<string, string>} */
  routing(method, params) {
    if (this.era === 'legacy') return {};
    const name = params.name ?? params.uri;
    return { 'Mcp-Method': method, ...(typeof name === 'string' ? { 'Mcp-Name': headerValue(name) } : {}) };
  }

  /**
   * @param {Message} message
   * @param {{ signal?: AbortSignal, headers?: Record<string, string> }} [options]
   */
  async post(message, { signal, headers = {} } = {}) {
    const body = JSON.stringify(message);
    this.seen('sent', body, null);
    const response = await sendMcp(this.name, 'POST', {
      Accept: 'application/json, text/event-stream',
      ...(this.session ? { 'Mcp-Session-Id': this.session } : {}),
      ...(message.method === 'initialize' ? {} : { 'MCP-Protocol-Version': this.revision }),
      ...headers,
    }, body, signal);
    this.session = response.headers.get('Mcp-Session-Id') ?? this.session;
    if (response.headers.get('Content-Type')?.startsWith('text/event-stream')) {
      await this.readEvents(response);
      return;
    }
    const text = await response.text();
    if (text !== '') this.seen('received', text, response.status);
    if (text.startsWith('{')) this.take(text);
    if (!response.ok && !text.includes('"jsonrpc"')) throw new Error(`HTTP ${response.status}${text ? `: ${text.slice(0, 500)}` : ''}`);
  }

  /** @param {Response} response */
  async readEvents(response) {
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { done, value } = (await reader?.read()) ?? { done: true, value: '' };
      if (done) return;
      const events = (rest + value.replaceAll('\r\n', '\n')).split('\n\n');
      rest = events.pop() ?? '';
      for (const event of events) {
        const data = event.split('\n').filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trimStart()).join('\n');
        if (data === '') continue;
        this.seen('received', data, response.status);
        this.take(data);
      }
    }
  }

  /** @param {string} text */
  take(text) {
    /** @type {Message} */
    let message;
    try {
      message = JSON.parse(text);
    } catch {
      return;
    }
    if (typeof message.method === 'string') {
      if (message.id !== undefined) void this.answer(message);
      else if (message.method === 'notifications/progress') this.handlers.onProgress(message.params ?? {});
      else this.handlers.onNotification(message);
      return;
    }
    const waiting = this.waiting.get(message.id);
    if (!waiting) return;
    this.waiting.delete(message.id);
    if (message.error) waiting.reject(new RpcError(message.error));
    else waiting.resolve(message.result ?? {});
  }

  /** @param {Message} request */
  async answer(request) {
    /** @type {Message} */
    const response = { jsonrpc: '2.0', id: request.id };
    try {
      response.result = request.method === 'ping' ? {} : await this.handlers.onQuestion({ method: request.method, params: request.params });
    } catch (error) {
      response.error = { code: -1, message: error instanceof Error ? error.message : 'refused' };
    }
    await this.post(response).catch(() => {});
  }

  /** Ends the session, if there is one. It also works while the page is being left. */
  end() {
    if (!this.session) return;
    const headers = { 'Mcp-Session-Id': this.session, 'MCP-Protocol-Version': this.revision };
    this.session = null;
    this.opening = null;
    void sendMcp(this.name, 'DELETE', headers).catch(() => {});
  }

  /**
   * @param {'sent' | 'received'} direction
   * @param {string} text
   * @param {number | null} status
   */
  seen(direction, text, status) {
    this.handlers.onMessage({ at: Date.now(), direction, status, text });
  }
}

/**
 * Returns a value as a header may carry it (2026-07-28, HTTP, "Mirrored headers").
 * @param {string} value
 */
function headerValue(value) {
  if (/^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/.test(value) && !/^=\?base64\?.*\?=$/.test(value)) return value;
  const bytes = new TextEncoder().encode(value);
  return `=?base64?${btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''))}?=`;
}

/**
 * Returns the headers for arguments that the schema of a tool marks with `x-mcp-header`.
 * @param {any} schema
 * @param {any} values
 * @param {number} [depth]
 * @returns {Record<string, string>}
 */
function mirrored(schema, values, depth = 0) {
  /** @type {Record<string, string>} */
  const headers = {};
  if (typeof schema?.properties !== 'object' || typeof values !== 'object' || values === null || depth > 8) return headers;
  for (const [name, property] of Object.entries(schema.properties)) {
    const value = Object.hasOwn(values, name) ? values[name] : undefined;
    const header = property?.['x-mcp-header'];
    if (typeof header === 'string' && /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(header) && ['string', 'number', 'boolean'].includes(typeof value)) {
      headers[`Mcp-Param-${header}`] = headerValue(String(value));
    }
    Object.assign(headers, mirrored(property, value, depth + 1));
  }
  return headers;
}
