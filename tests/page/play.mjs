// Plays one scenario: node play.mjs SCENARIO URL [OPTIONS]. URL is that of the page, OPTIONS are JSON.
// It prints what it saw as JSON lines, and waits for lines where a scenario needs the test to act. The
// judge is the test.

import { createInterface } from 'node:readline';
import { withBrowser } from './browser.mjs';
import * as hostility from './hostility.mjs';
import * as looks from './looks.mjs';
import * as truth from './truth.mjs';
import * as use from './use.mjs';

const SCENARIOS = { ...hostility, ...looks, ...truth, ...use };

const [name, url, options = '{}'] = process.argv.slice(2);
const scenario = SCENARIOS[name];
if (!scenario) throw new Error(`there is no scenario ${name}`);
const input = createInterface({ input: process.stdin });
const lines = input[Symbol.asyncIterator]();

const stage = {
  url,
  options: JSON.parse(options),
  report: (value) => process.stdout.write(`${JSON.stringify(value)}\n`),
  readOrder: async () => JSON.parse((await lines.next()).value ?? 'null'),
};
try {
  const seen = await withBrowser((browser) => scenario(browser, stage));
  stage.report({ done: seen ?? null });
} finally {
  input.close();
}
