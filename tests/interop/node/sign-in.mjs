// An official TypeScript client that signs in: `node sign-in.mjs SDK GRANT URL OTHER`.
//
// SDK is `typescript1` or `typescript2`, GRANT `code` (a user in a browser) or `machine` (a secret). Finds
// the authorization server by itself from the answers of URL, gets a token, calls the tool `echo` there, which asks for more than the first
// token allows, and then shows the same token at OTHER. Prints one JSON line with what it observed.

import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const [sdkName, grant, url, other] = process.argv.slice(2);

const here = dirname(fileURLToPath(import.meta.url));
const testDeps = process.env.RIALTO_TEST_DEPS ?? join(here, '..', '..', '..', '.test-deps');
const folder = { typescript1: 'node', typescript2: 'node2' }[sdkName];
const require = createRequire(join(testDeps, folder, 'package.json'));

const load = () => {
  if (sdkName === 'typescript2') return require('@modelcontextprotocol/client');
  return {
    ...require('@modelcontextprotocol/sdk/client/index.js'),
    ...require('@modelcontextprotocol/sdk/client/streamableHttp.js'),
    ...require('@modelcontextprotocol/sdk/client/auth-extensions.js'),
  };
};
const { Client, StreamableHTTPClientTransport, ClientCredentialsProvider } = load();

/** What a browser does with an address: follows it, with cookies, to where it ends up at us. */
const browse = async (address, destination) => {
  const cookies = new Map();
  for (let hop = 0; hop < 20; hop += 1) {
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const response = await fetch(address, { redirect: 'manual', headers: { cookie } });
    for (const line of response.headers.getSetCookie()) {
      const [name, ...value] = line.split(';')[0].split('=');
      cookies.set(name, value.join('='));
    }
    const location = response.headers.get('location');
    if (!location) throw new Error(`the browser is stuck at ${address}: ${response.status} ${await response.text()}`);
    address = new URL(location, address);
    if (address.href.startsWith(destination)) return address;
  }
  throw new Error('the browser goes in circles');
};

/** A user in front of a browser. */
class User {
  redirectUrl = 'http://127.0.0.1:9/callback';
  clientMetadata = {
    client_name: 'rialto-interop',
    application_type: 'native',
    redirect_uris: [this.redirectUrl],
    grant_types: ['authorization_code'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  };
  clientInformation() { return { client_id: 'person' }; }
  tokens() { return this.held; }
  saveTokens(tokens) { this.held = tokens; }
  saveCodeVerifier(verifier) { this.verifier = verifier; }
  codeVerifier() { return this.verifier; }
  async redirectToAuthorization(address) { this.returned = await browse(address, this.redirectUrl); }
}

const provider = grant === 'code'
  ? new User()
  : new ClientCredentialsProvider({ clientId: 'machine', clientSecret: 'machine-secret', scope: 'mcp mcp:call' });

const seen = [];
let signIns = 0;

/** Opens a client and uses it. Where that leads to the user instead, the user has come back with a code by now: goes on with that. */
const signedIn = async (use) => {
  const transport = new StreamableHTTPClientTransport(new URL(url), {
    authProvider: provider,
    fetch: async (input, init) => {
      const response = await fetch(input, init);
      seen.push({
        path: new URL(input).pathname,
        status: response.status,
        challenge: response.headers.get('www-authenticate'),
      });
      return response;
    },
  });
  const client = new Client({ name: 'rialto-interop', version: '1.0.0' });
  try {
    await client.connect(transport);
    return await use(client);
  } catch (error) {
    if (!provider.returned || signIns > 2) throw error;
    signIns += 1;
    const returned = provider.returned.searchParams;
    provider.returned = undefined;
    if (!returned.get('code')) throw new Error(`signing in failed: ${returned}`);
    await transport.finishAuth(returned.get('code'), returned.get('iss') ?? undefined);
    return signedIn(use);
  }
};

const answer = await signedIn((client) => client.callTool({ name: 'echo', arguments: { text: 'signed in' } }));
const { access_token: token } = await provider.tokens();
const elsewhere = await fetch(other, {
  method: 'POST',
  headers: {
    'content-type': 'application/json',
    accept: 'application/json, text/event-stream',
    authorization: `Bearer ${token}`,
  },
  body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'echo', arguments: { text: 'x' } } }),
});
const claims = JSON.parse(Buffer.from(token.split('.')[1], 'base64url').toString());
console.log(JSON.stringify({
  text: answer.content[0].text,
  signIns,
  challenges: seen.filter(({ challenge }) => challenge),
  audience: claims.aud,
  subject: claims.sub,
  elsewhere: { status: elsewhere.status, challenge: elsewhere.headers.get('www-authenticate') },
}));
process.exit(0);
