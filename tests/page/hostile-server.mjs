// A legacy MCP server over stdio of which every text attacks the page that shows it.

import { createInterface } from 'node:readline';

const MARKUP = '<img src=x onerror="alert(1)"><script>alert(2)</script><svg onload=alert(3)></svg>';
const LINK = 'javascript:alert(4)';
const TURNED = '\u202etxet denrut\u2066';
const LONG = 'W'.repeat(5000);

const schema = JSON.parse(`{
  "type": "object",
  "title": "</title><script>alert(5)</script>",
  "properties": {
    "__proto__": { "type": "string", "description": "pollutes", "default": "polluted" },
    "constructor": { "type": "object", "properties": { "prototype": { "type": "object", "properties": { "polluted": { "type": "string", "default": "yes" } } } } },
    "\\"><script>alert(6)</script>": { "type": "string", "title": "<b onmouseover=alert(7)>bold</b>", "default": "\\" autofocus onfocus=alert(8) x=\\"" },
    "choice": { "enum": ["<option onclick=alert(9)>", "</select><script>alert(10)</script>"], "default": "<option onclick=alert(9)>" },
    "loop": { "$ref": "#/properties/loop" },
    "away": { "$ref": "https://attacker.example/schema.json" },
    "many": { "type": "array", "items": { "enum": ["<i>one</i>", "two"] } },
    "deep": { "type": "object", "properties": { "deep": { "type": "object", "properties": { "deep": { "type": "object", "properties": { "deep": { "type": "object", "properties": { "deep": { "type": "string" } } } } } } } } }
  }
}`);

const tools = [
  { name: 'markup', title: MARKUP, description: `${MARKUP} ${LINK} ${TURNED} ${LONG}`, inputSchema: schema },
  { name: 'asks', description: MARKUP, inputSchema: { type: 'object' } },
  { name: 'leads', description: MARKUP, inputSchema: { type: 'object' } },
  { name: 'fails', title: `${MARKUP}`, inputSchema: { type: 'object' }, annotations: { title: MARKUP, destructiveHint: MARKUP } },
  { name: 'shapes', description: { toString: 'not a text' }, inputSchema: 'not a schema' },
];

const results = {
  markup: {
    content: [
      { type: 'text', text: MARKUP },
      { type: 'image', mimeType: 'image/svg+xml', data: btoa(`<svg xmlns="http://www.w3.org/2000/svg" onload="alert(11)"/>`) },
      { type: 'image', mimeType: 'image/png"onerror="alert(12)', data: '"><script>alert(13)</script>' },
      { type: 'image', mimeType: 'image/png', data: '"><script>alert(14)</script>' },
      { type: 'resource_link', uri: LINK, name: MARKUP },
      { type: MARKUP },
      null,
    ],
    structuredContent: { [MARKUP]: MARKUP },
  },
  shapes: { content: 'no list' },
};

/** Tools that wait for an answer of the client, by the id of the question. */
const waiting = new Map();
let asked = 0;

const send = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);

process.stderr.write(`${MARKUP}\n\u001b[31m${TURNED}\u001b[0m\n`);
createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method, params, result, error } = JSON.parse(line);
  if (method === 'initialize') {
    const info = { name: MARKUP, title: `${MARKUP}${TURNED}`, version: '</code>' };
    send({ id, result: { protocolVersion: '2025-06-18', capabilities: { tools: {}, logging: {}, [MARKUP]: {} }, serverInfo: info, instructions: `${MARKUP} ${LINK}` } });
  } else if (method === 'tools/list') {
    send({ id, result: { tools } });
  } else if (method === 'tools/call') {
    const { name } = params;
    const token = params._meta?.progressToken;
    if (token !== undefined) send({ method: 'notifications/progress', params: { progressToken: token, progress: 1, total: 2, message: MARKUP } });
    if (name === 'asks' || name === 'leads') {
      asked += 1;
      waiting.set(asked, id);
      const question = name === 'asks'
        ? { message: MARKUP, requestedSchema: schema }
        : { mode: 'url', message: MARKUP, url: LINK, elicitationId: MARKUP };
      send({ id: asked, method: 'elicitation/create', params: question });
    } else if (name === 'fails') {
      send({ id, error: { code: -32000, message: MARKUP, data: { [MARKUP]: MARKUP } } });
    } else {
      send({ id, result: results[name] ?? {} });
    }
  } else if (method === undefined && waiting.has(id)) {
    send({ id: waiting.get(id), result: { content: [{ type: 'text', text: `${MARKUP} ${JSON.stringify(result ?? error)}` }] } });
    waiting.delete(id);
  } else if (id !== undefined && method !== undefined) {
    send({ id, error: { code: -32601, message: MARKUP } });
  }
});
