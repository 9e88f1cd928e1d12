// Chromium for the tests of the page, and a watch on everything that a page must not do.

import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const packages = createRequire(join(process.env.RIALTO_TEST_DEPS, 'page', 'package.json'));
const { chromium } = packages('playwright-core');

/** Without these, Chromium looks for hosts of its maker at every start. */
const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

/** Runs `act` with a browser, which ends with it. */
export async function withBrowser(act) {
  const libraries = process.env.RIALTO_TEST_CHROMIUM_LIBRARIES;
  const profile = mkdtempSync(join(tmpdir(), 'rialto-page-'));
  const browser = await chromium.launch({
    executablePath: process.env.RIALTO_TEST_CHROMIUM,
    args: FLAGS,
    env: { ...process.env, HOME: profile, ...(libraries ? { LD_LIBRARY_PATH: libraries } : {}) },
  });
  try {
    return await act(browser);
  } catch (error) {
    // What was on the page when a step waited in vain.
    for (const page of browser.contexts().flatMap((context) => context.pages())) {
      const text = await page.locator('body').innerText().catch(() => '');
      process.stderr.write(`${page.url()}\n${text.slice(0, 3000)}\n`);
    }
    throw error;
  } finally {
    await browser.close();
    rmSync(profile, { recursive: true, force: true });
  }
}

/**
 * Opens an empty page of which everything is noted that no page of Rialto may do: an error, a
 * violation of the policy, a dialog, a request to another origin.
 */
export async function openPage(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  const faults = [];
  page.on('pageerror', (error) => faults.push(`error: ${error.stack ?? error}`));
  page.on('dialog', (dialog) => {
    faults.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on('console', (message) => {
    // Chromium reports each violation of the policy here too.
    if (message.type() === 'error' && !/Failed to load resource|ERR_/.test(message.text())) faults.push(`console: ${message.text()}`);
  });
  page.on('request', (request) => {
    const to = new URL(request.url());
    if (!['blob:', 'data:'].includes(to.protocol) && to.origin !== new URL(url).origin) faults.push(`request: ${request.url()}`);
  });
  page.setDefaultTimeout(60_000);
  return { context, page, faults };
}

/** Goes to a screen and waits until what it fetches is there. */
export async function show(page, url, place) {
  await page.goto(`${url}${place}`);
  await page.locator('main h1').waitFor();
  await settled(page);
}

export async function settled(page) {
  await page.waitForFunction(() => {
    const main = document.querySelector('main');
    return main && !/Waiting for the first figures|Being fetched|Being looked at|Asking for its tools/.test(main.textContent ?? '');
  });
}

/** Returns the texts of a list of facts below a heading, by name. */
export function factsOf(page, heading) {
  return page.evaluate((wanted) => {
    const section = [...document.querySelectorAll('section')].find((one) => one.querySelector('h2')?.textContent?.trim().startsWith(wanted));
    const entries = [...(section?.querySelectorAll('dl > div') ?? [])].map((one) => [
      one.querySelector('dt')?.textContent?.trim(),
      one.querySelector('dd')?.textContent?.trim(),
    ]);
    return Object.fromEntries(entries);
  }, heading);
}

/** Returns the number that a text begins with. */
export function numberOf(text) {
  return Number((text ?? '').replaceAll(',', '').match(/^\d+/)?.[0] ?? NaN);
}
