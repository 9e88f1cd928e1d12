// A certified OpenID provider as an authorization server: `node provider.mjs`.
//
// Listens on a free loopback port and prints `{"issuer": URL}`. Knows two clients: `machine` by a secret, and `person`, for
// which it signs in `alice` without a question, since the test has no user. Every resource under loopback may be asked for, and a
// token is for that resource only. A line `rotate` on stdin makes it sign with a new key from then on; the old ones stay published. Ends
// when its stdin does.

import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath, pathToFileURL } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const testDeps = process.env.RIALTO_TEST_DEPS ?? join(here, '..', '..', '..', '.test-deps');
const require = createRequire(join(testDeps, 'oidc', 'package.json'));
const { Provider, errors } = await import(pathToFileURL(require.resolve('oidc-provider')).href);

const makeKey = (kid) => {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  return { ...privateKey.export({ format: 'jwk' }), kid, use: 'sig', alg: 'RS256' };
};
// The newest first: that is the one it signs with.
const keys = [makeKey('provider-key-1')];

const configuration = {
  cookies: { keys: ['only-for-this-test'] },
  clients: [
    {
      client_id: 'person',
      application_type: 'native',
      token_endpoint_auth_method: 'none',
      grant_types: ['authorization_code'],
      redirect_uris: ['http://127.0.0.1:9/callback'],
      response_types: ['code'],
    },
    {
      client_id: 'machine',
      client_secret: 'machine-secret',
      grant_types: ['client_credentials'],
      redirect_uris: [],
      response_types: [],
    },
  ],
  scopes: ['mcp', 'mcp:call'],
  pkce: { required: () => true },
  findAccount: (_context, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  interactions: { url: (_context, interaction) => `/interaction/${interaction.uid}` },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (_context, resource) => {
        if (!resource.startsWith('http://127.0.0.1:')) throw new errors.InvalidTarget();
        return {
          scope: 'mcp mcp:call',
          audience: resource,
          accessTokenTTL: 600,
          accessTokenFormat: 'jwt',
          jwt: { sign: { alg: 'RS256' } },
        };
      },
    },
  },
};

/** Signs in and consents to every request. */
const finish = async (provider, request, response) => {
  const { prompt, params } = await provider.interactionDetails(request, response);
  if (prompt.name === 'login') {
    return provider.interactionFinished(request, response, { login: { accountId: 'alice' } });
  }
  const grant = new provider.Grant({ accountId: 'alice', clientId: params.client_id });
  if (params.scope) grant.addOIDCScope(params.scope);
  for (const resource of [params.resource].flat().filter(Boolean)) {
    grant.addResourceScope(resource, params.scope ?? '');
  }
  return provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } });
};

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  // Its keys are fixed when it is made, so that a new key means a new one in its place; what it remembers is shared.
  const newProvider = () => new Provider(issuer, { ...configuration, jwks: { keys } });
  let provider = newProvider();
  let answer = provider.callback();
  createInterface({ input: process.stdin }).on('line', (line) => {
    if (line !== 'rotate') return;
    keys.unshift(makeKey(`provider-key-${keys.length + 1}`));
    provider = newProvider();
    answer = provider.callback();
    console.log(JSON.stringify({ kid: keys[0].kid }));
  });
  server.on('request', (request, response) => {
    if (!request.url.startsWith('/interaction/')) return answer(request, response);
    return finish(provider, request, response).catch((error) => {
      response.statusCode = 500;
      response.end(String(error));
    });
  });
  console.log(JSON.stringify({ issuer }));
});
process.stdin.on('end', () => process.exit(0));
