// What the TypeScript servers need to be reached over HTTP. The socket to listen on is inherited in place of standard
// input, so that a server which ends can be started again and no connection is refused meanwhile.

import { createServer } from 'node:http';

const INHERITED = 0;

export const readBody = async (request) => {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  return pieces.length === 0 ? undefined : JSON.parse(Buffer.concat(pieces).toString());
};

export const refuse = (response, status, message) => {
  const error = { jsonrpc: '2.0', id: null, error: { code: -32000, message } };
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(error));
};

export const serve = (answer) => {
  const server = createServer((request, response) => {
    Promise.resolve(answer(request, response)).catch((error) => {
      console.error(error);
      if (!response.headersSent) refuse(response, 500, String(error));
    });
  });
  server.listen({ fd: INHERITED });
};
