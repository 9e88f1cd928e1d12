// @ts-check
// The addresses of the gateway. All are relative to the page, since a proxy may put a path in front.

import { remembered } from './remembered.js';

/** @typedef {import('../../../tests/page/shapes.js').Snapshot} Snapshot */
/** @typedef {import('../../../tests/page/shapes.js').Detail} Detail */
/** @typedef {import('../../../tests/page/shapes.js').Setup} Setup */

/** What every writing request carries, which a form of another site cannot send. */
const WRITES = { 'X-Rialto-Page': '1', 'Content-Type': 'application/json' };

/** An answer of the gateway that is no success. */
export class Refusal extends Error {
  /**
   * @param {number} status
   * @param {string} text
   */
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/**
 * @param {string} path
 * @param {RequestInit} [options]
 * @returns {Promise<any>}
 */
async function ask(path, options) {
  const response = await fetch(path, { cache: 'no-store', ...options });
  // The sign-in has run out; the gateway answers the page itself with its form.
  if (response.status === 401) location.reload();
  if (response.status === 204) return null;
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Refusal(response.status, body?.error ?? `HTTP ${response.status}`);
  return body;
}

/**
 * @param {string} path
 * @param {object} [body]
 * @returns {Promise<any>}
 */
function write(path, body = {}) {
  return ask(path, { method: 'POST', headers: WRITES, body: JSON.stringify(body) });
}

/** @param {unknown} value @returns {value is Record<string, any>} */
const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
/** @param {unknown} value */
const text = (value) => (typeof value === 'string' ? value : undefined);
/** @param {unknown} value @returns {any[]} */
const list = (value) => (Array.isArray(value) ? value : []);

/**
 * Returns the tools of a list as the page may rely on them: what a server declares has any shape.
 * @param {unknown} value
 * @returns {import('../../../tests/page/shapes.js').Tool[]}
 */
export function toolsOf(value) {
  return list(value).filter((tool) => isObject(tool) && typeof tool.name === 'string').map((tool) => ({
    name: tool.name,
    title: text(tool.title),
    description: text(tool.description),
    inputSchema: tool.inputSchema,
    outputSchema: tool.outputSchema,
    annotations: isObject(tool.annotations) ? tool.annotations : {},
  }));
}

/** @param {Detail} detail @returns {Detail} */
function checked(detail) {
  const { read } = detail;
  if (!read) return detail;
  const server = isObject(read.server) ? { name: text(read.server.name), title: text(read.server.title), version: text(read.server.version) } : null;
  return {
    ...detail,
    read: {
      ...read,
      server,
      instructions: text(read.instructions) ?? null,
      capabilities: isObject(read.capabilities) ? read.capabilities : null,
      tools: toolsOf(read.tools),
      prompts: list(read.prompts),
      resources: list(read.resources),
      resource_templates: list(read.resource_templates),
    },
  };
}

/** @param {string} name */
const of = (name) => `api/destination/${encodeURIComponent(name)}`;

/** @returns {Promise<Snapshot>} */
export const fetchState = () => ask('api/state');
/** @param {string} name @returns {Promise<Detail>} */
const fetchDetail = async (name) => checked(await ask(of(name)));
/** @param {string} name @returns {Promise<Detail>} */
export const readNow = async (name) => checked(await write(`${of(name)}/read`));
/** @param {string} name @param {number | null} pid @returns {Promise<{ restarted: number }>} */
export const restart = (name, pid) => write(`${of(name)}/restart`, pid === null ? {} : { pid });
/** @param {string} name @param {string} session @returns {Promise<{ ended: boolean }>} */
export const endSession = (name, session) => write(`${of(name)}/end-session`, { session });
/** @returns {Promise<Setup>} */
const fetchSetup = () => ask('api/setup');
export const details = remembered(fetchDetail, 5000);
export const setups = remembered(fetchSetup, 60_000);
export const signOut = () => write('sign-out');

/**
 * Sends one request of MCP through the endpoint of the page.
 * @param {string} name
 * @param {string} method
 * @param {Record<string, string>} headers
 * @param {string} [body]
 * @param {AbortSignal} [signal]
 */
export function sendMcp(name, method, headers, body, signal) {
  return fetch(`api/mcp/${encodeURIComponent(name)}`, {
    method,
    headers: { ...WRITES, ...headers },
    body,
    signal,
    cache: 'no-store',
    // The end of a session is sent while the page is being left.
    keepalive: method === 'DELETE',
  });
}
