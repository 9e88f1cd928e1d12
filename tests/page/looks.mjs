// How the page looks: to axe, at other widths, without scripts, and in pictures.

import { join } from 'node:path';
import { openPage, packages, settled, show } from './browser.mjs';

const { AxeBuilder } = packages('@axe-core/playwright');

/** Calls a tool once. */
async function tryEcho(page, url, name) {
  await show(page, url, `#/try/${name}/echo`);
  await page.locator('.schema-form input').fill('hello');
  await page.getByRole('button', { name: 'Call', exact: true }).click();
  await page.locator('[aria-labelledby="result"] .state').waitFor();
}

/** Opens each screen, with what can be opened on it, and calls `look` with its name. */
async function eachScreen(page, { url, options }, look) {
  const { ready, failing } = options;
  const screens = {
    overview: '#/',
    destination: `#/destination/${ready}`,
    failing: `#/destination/${failing}`,
    calls: '#/calls',
    sessions: '#/sessions',
    limits: '#/limits',
    tools: `#/try/${ready}`,
    form: `#/try/${ready}/count`,
    setup: '#/setup',
    nowhere: '#/nowhere',
  };
  // The list of calls begins when a page is opened.
  await tryEcho(page, url, ready);
  for (const [name, place] of Object.entries(screens)) {
    await show(page, url, place);
    if (name === 'destination') await page.getByRole('button', { name: /^Restart/ }).first().click();
    if (name === 'calls') await page.getByRole('button', { name: /^More/ }).first().click();
    if (name === 'tools') await page.getByRole('link', { name: 'echo', exact: true }).waitFor();
    if (name === 'form') await page.getByRole('button', { name: 'Call', exact: true }).waitFor();
    await look(name);
  }
  await show(page, url, `#/try/${ready}/ask`);
  await page.getByRole('button', { name: 'Call', exact: true }).click();
  await page.getByRole('button', { name: 'Decline' }).waitFor();
  await look('question');
  await page.getByRole('button', { name: 'Decline' }).click();
  await page.locator('[aria-labelledby="result"] .state').waitFor();
  await look('result');
}

/** Returns what axe finds on each screen, light and dark. */
export async function accessible(browser, stage) {
  const found = [];
  const looked = [];
  for (const colorScheme of ['light', 'dark']) {
    const { context, page, faults } = await openPage(browser, stage.url, { colorScheme });
    await eachScreen(page, stage, async (screen) => {
      const { violations } = await new AxeBuilder({ page }).analyze();
      looked.push(`${screen} ${colorScheme}`);
      for (const violation of violations) {
        const where = violation.nodes.slice(0, 3).map((node) => `${node.target} ${node.failureSummary}`);
        found.push({ screen, colorScheme, rule: violation.id, where });
      }
    });
    found.push(...faults);
    await context.close();
  }
  return { found, looked };
}

/** Returns the screens that are wider than the window at 320 pixels, and at 200 % zoom. */
export async function narrow(browser, stage) {
  const wide = [];
  let looked = 0;
  const sizes = [
    { viewport: { width: 320, height: 640 } },
    { viewport: { width: 640, height: 450 }, deviceScaleFactor: 2 },
  ];
  for (const size of sizes) {
    const { context, page } = await openPage(browser, stage.url, size);
    await eachScreen(page, stage, async (screen) => {
      looked += 1;
      const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (over > 0) wide.push(`${screen} at ${size.viewport.width}: ${over} pixels too wide`);
    });
    await context.close();
  }
  return { wide, looked };
}

/** Returns how many animations run, with the default setting and with reduced motion. */
export async function motion(browser, { url }) {
  const moving = {};
  for (const reducedMotion of ['no-preference', 'reduce']) {
    const { context, page } = await openPage(browser, url, { reducedMotion });
    await show(page, url, '#/');
    await page.locator('.live.good').waitFor();
    moving[reducedMotion] = await page.evaluate(() => document.getAnimations().length);
    await context.close();
  }
  return moving;
}

/** Returns what is read where scripts do not run. */
export async function without_scripts(browser, { url }) {
  const { page } = await openPage(browser, url, { javaScriptEnabled: false });
  await page.goto(url);
  return { text: await page.locator('body').innerText(), tables: await page.locator('table').count() };
}

/** Takes the pictures of the documentation into the folder that the options name. */
export async function pictures(browser, stage) {
  const { url, options, report, readOrder } = stage;
  const taken = [];
  // While this page is open, ended calls are kept for the others.
  const keeper = await openPage(browser, url);
  await show(keeper.page, url, '#/calls');
  report({ open: true });
  await readOrder();
  const views = [
    { name: 'page-overview', place: '#/', viewport: { width: 1200, height: 860 }, colorScheme: 'light' },
    { name: 'page-overview-dark', place: '#/', viewport: { width: 1200, height: 860 }, colorScheme: 'dark' },
    { name: 'page-why', place: `#/destination/${options.failing}`, viewport: { width: 1200, height: 760 }, colorScheme: 'light' },
    { name: 'page-calls', place: '#/calls?kind=work', viewport: { width: 1200, height: 760 }, colorScheme: 'light' },
    { name: 'page-narrow', place: '#/', viewport: { width: 320, height: 720 }, colorScheme: 'dark' },
  ];
  for (const { name, place, viewport, colorScheme } of views) {
    const { context, page } = await openPage(browser, url, { viewport, colorScheme, reducedMotion: 'reduce' });
    await show(page, url, place);
    // The last line of a failing server is fetched after the rest.
    if (place === '#/') await page.getByText('last line on stderr').first().waitFor();
    await page.evaluate(() => /** @type {HTMLElement} */ (document.activeElement)?.blur());
    const picture = await page.screenshot({ path: join(options.folder, `${name}.png`) });
    taken.push({ name, bytes: picture.length });
    await context.close();
  }
  const { context, page } = await openPage(browser, url, { viewport: { width: 1200, height: 760 }, colorScheme: 'dark', reducedMotion: 'reduce' });
  await show(page, url, `#/try/${options.ready}/ask`);
  await page.getByRole('button', { name: 'Call', exact: true }).click();
  await page.getByRole('button', { name: 'Decline' }).waitFor();
  await settled(page);
  const picture = await page.screenshot({ path: join(options.folder, 'page-try.png') });
  taken.push({ name: 'page-try', bytes: picture.length });
  await page.getByRole('button', { name: 'Decline' }).click();
  await context.close();
  return taken;
}
