// An official TypeScript client of which one call fails: `node failures.mjs SDK ERA URL SCENARIO`.
//
// SDK is `typescript1` or `typescript2`; URL is Rialto in front of the stub server. Prints one JSON line with what the
// client observed. The scenarios are those of `../python/failures.py`.

import { createRequire } from 'node:module';
import { join } from 'node:path';
import * as sdk1 from './sdk1.mjs';
import * as sdk2 from './sdk2.mjs';

const [sdkName, era, url, scenario] = process.argv.slice(2);
const { adapt, folder } = { typescript1: sdk1, typescript2: sdk2 }[sdkName];
const sdk = adapt(createRequire(join(process.env.RIALTO_TEST_DEPS, folder, 'package.json')), era);
const DEADLINE_MS = 60_000;

const client = sdk.newClient({ name: 'failures', version: '1' }, {});

const call = async (name, args, options) => {
  const result = await sdk.callTool(client, { name, arguments: args }, options);
  return result.content.map(({ text }) => text).join('\n');
};

// Returns what the client threw for one call, which has ended.
const failureIn = ({ status, value, reason: error }) => {
  if (status === 'fulfilled') throw new Error(`the call was answered with ${value.slice(0, 100)}`);
  const { code, data, message } = error;
  return { type: error.constructor.name, code, reason: data?.reason ?? null, message };
};
const settled = async (answer) => (await Promise.allSettled([answer]))[0];
const failureOf = async (answer) => failureIn(await settled(answer));

// Returns a call that the server has begun and does not answer before `release`. It is wrapped, or `await` would wait for
// its end; and settled, or its error would end the process before a scenario looks at it.
const held = async () => {
  const options = { onprogress: () => {}, resetTimeoutOnProgress: true };
  const neighbour = settled(call('hold', { marker: 'neighbour', every_ms: 250 }, options));
  await call('wait_held', { marker: 'begun', held: 'neighbour' });
  return { neighbour };
};

// One call fails while another is in flight.
const beside = async (tool, args) => {
  const { neighbour } = await held();
  const failure = await failureOf(call(tool, { marker: 'failing', ...args }));
  const next = await call('release', { marker: 'next' });
  const { status, value, reason } = await neighbour;
  if (status === 'rejected') throw reason;
  return { failure, next, neighbour: value };
};

const scenarios = {
  oversized: () => beside('big', { bytes: 200_000 }),

  timeout: () => beside('never', {}),

  // Both calls were with the process that ended, so each gets its own error. Later calls are answered.
  async crash() {
    const { neighbour } = await held();
    const failure = await failureOf(call('exit', { marker: 'failing', code: 3 }));
    const neighbours = failureIn(await neighbour);
    const after = ['next', 'and the one beside it'].map((marker) => call('echo', { marker }));
    return { failure, neighbour: neighbours, next: await Promise.all(after) };
  },

  // Four crashes use up all restarts. Later calls are refused one by one.
  async unavailable() {
    const crashes = [];
    for (let number = 0; number < 4; number++) {
      crashes.push(await failureOf(call('exit', { marker: `crash ${number}` })));
    }
    const refused = [];
    for (let number = 0; number < 2; number++) {
      refused.push(await failureOf(call('echo', { marker: `refused ${number}` })));
    }
    return { crashes, refused };
  },
};

// The server cannot be had, so that connecting fails.
const connectFails = async () => {
  const { status, reason } = await settled(client.connect(new sdk.Transport(new URL(url))));
  if (status === 'fulfilled') throw new Error('the client has connected');
  return { message: String(reason?.message ?? reason) };
};

const deadline = setTimeout(() => {
  console.error(`scenario ${scenario} did not end within ${DEADLINE_MS} ms`);
  process.exit(1);
}, DEADLINE_MS);

try {
  let observed;
  if (scenario === 'connect_fails') {
    observed = await connectFails();
  } else {
    if (!Object.hasOwn(scenarios, scenario)) throw new Error(`no scenario ${scenario}`);
    await client.connect(new sdk.Transport(new URL(url)));
    observed = await scenarios[scenario]();
  }
  clearTimeout(deadline);
  process.stdout.write(`${JSON.stringify(observed)}\n`, () => process.exit(0));
} catch (error) {
  console.error(error);
  process.exit(1);
}
