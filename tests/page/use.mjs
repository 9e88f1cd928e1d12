// The page as people use it: with the keyboard alone, to find something out, to try a tool.

import { readFileSync } from 'node:fs';
import { openPage, settled, show } from './browser.mjs';

/** Returns what has the focus, as a screen reader would name it, and whether the focus is seen. */
function focused(page) {
  return page.evaluate(() => {
    const element = document.activeElement;
    if (!element || element === document.body) return null;
    const style = getComputedStyle(element);
    const label = element.getAttribute('aria-label') ?? /** @type {any} */ (element).labels?.[0]?.textContent ?? element.textContent ?? '';
    return {
      tag: element.tagName.toLowerCase(),
      name: label.replace(/\s+/g, ' ').trim(),
      seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
    };
  });
}

/** Presses Tab until something with this name has the focus. */
async function tabTo(page, name, unseen, most = 200) {
  for (let presses = 0; presses < most; presses += 1) {
    await page.keyboard.press('Tab');
    const at = await focused(page);
    if (!at) continue;
    if (!at.seen) unseen.push(`${at.tag} ${at.name}`);
    if (name.test(at.name)) return at;
  }
  throw new Error(`Tab never reached ${name}`);
}

/** Uses every screen without a mouse. */
export async function keyboard(browser, { url, options }) {
  const { page, faults } = await openPage(browser, url);
  const unseen = [];
  const done = [];
  await show(page, url, '#/');
  await tabTo(page, /^Skip to the content$/, unseen);
  await page.keyboard.press('Enter');
  done.push(['skip', await page.evaluate(() => document.activeElement?.id)]);

  await tabTo(page, new RegExp(`^Why it fails.*${options.failing}`), unseen);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Why it fails' }).waitFor();
  done.push(['why', (await focused(page))?.name]);

  await page.keyboard.press('Control+Home');
  await tabTo(page, /^Rialto$/, unseen, 400);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Destinations' }).waitFor();
  await tabTo(page, new RegExp(`^Details of ${options.ready}$`), unseen, 400);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Use it from…' }).waitFor();
  await tabTo(page, /^Cursor$/, unseen);
  await page.keyboard.press('Enter');
  done.push(['use', await page.locator('.snippet').innerText()]);

  await tabTo(page, /^Restart… process/, unseen);
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'Keep' }).waitFor();
  await tabTo(page, /^Keep$/, unseen, 400);
  await page.keyboard.press('Enter');

  await page.goto(`${url}#/try/${options.ready}`);
  await settled(page);
  await tabTo(page, /^Tool/, unseen);
  await page.keyboard.type('echo');
  await page.keyboard.press('Enter');
  await page.locator('#arguments').waitFor();
  await tabTo(page, /^text/, unseen);
  await page.keyboard.type('typed by hand');
  await page.keyboard.press('Enter');
  await page.locator('[aria-labelledby="result"] pre').waitFor();
  done.push(['result', await page.locator('[aria-labelledby="result"] pre').first().innerText()]);

  await tabTo(page, /^Calls( .*)?$/, unseen, 400);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Calls', exact: true }).waitFor();
  await tabTo(page, /^Kind/, unseen);
  await page.keyboard.press('ArrowDown');
  await page.waitForFunction(() => location.hash.includes('kind=work'));
  done.push(['filtered', (await focused(page))?.name]);
  await tabTo(page, /^More about/, unseen);
  await page.keyboard.press('Enter');
  await page.locator('.about').waitFor();
  done.push(['more', (await focused(page))?.name]);

  for (const screen of ['Sessions', 'Limits', 'Set-up']) {
    await tabTo(page, new RegExp(`^${screen}$`), unseen, 400);
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { level: 1, name: new RegExp(`^${screen}`) }).waitFor();
    // All that can have the focus comes before the first link of the page again.
    await tabTo(page, /^Rialto$/, unseen, 400);
    done.push([screen, await page.evaluate(() => location.hash)]);
  }

  return { done: Object.fromEntries(done), unseen, faults };
}

/** Tries tools as a client of one era, and answers what they ask. */
export async function try_it(browser, { url, options }) {
  const { page, faults } = await openPage(browser, url);
  await show(page, url, `#/try/${options.name}`);
  await page.getByRole('radio', { name: new RegExp(options.era) }).check();
  await page.getByRole('link', { name: 'echo', exact: true }).waitFor();
  const result = page.locator('[aria-labelledby="result"]');
  const form = page.locator('[aria-labelledby="arguments"] .schema-form');
  const state = result.locator('.state');
  const choose = async (tool) => {
    await page.getByLabel('Tool').selectOption(tool);
    await page.locator('#arguments', { hasText: tool }).waitFor();
  };
  const call = () => page.getByRole('button', { name: 'Call', exact: true }).click();
  const seen = {};

  await choose('echo');
  await form.getByLabel('text').fill('hello <b>there</b>');
  await call();
  await state.waitFor();
  seen.echo = await result.locator('pre').first().innerText();

  await choose('add');
  await form.getByLabel(/^a/).fill('2');
  await call();
  seen.missing = await page.locator('.schema-form .bad', { hasText: 'required' }).first().innerText();
  await form.getByLabel(/^b/).fill('2.5');
  await call();
  await state.waitFor();
  seen.sum = await result.innerText();

  await choose('count');
  await form.getByLabel(/^steps/).fill('3');
  await form.getByLabel(/^delay_ms/).fill('300');
  await call();
  await result.getByRole('progressbar').waitFor();
  await state.waitFor();
  seen.progress = await result.locator('.progress').innerText();

  await choose('ask');
  await call();
  await page.locator('.question').waitFor();
  seen.question = await page.locator('.question').innerText();
  const field = page.locator('.question input, .question textarea, .question select').first();
  if ((await field.count()) > 0) {
    if (await field.evaluate((one) => one.tagName === 'SELECT')) await field.selectOption({ index: 1 });
    else await field.fill('by hand');
  }
  await page.locator('.question').getByRole('button', { name: 'Answer' }).click();
  await state.waitFor();
  seen.answered = await result.locator('pre').first().innerText();

  await choose('sample');
  await form.getByLabel(/^prompt/).fill('two and two');
  await call();
  await page.locator('.question').waitFor();
  seen.sampling = await page.locator('.question').innerText();
  await page.getByLabel(/Answer of the model/).fill('four, I think');
  await page.locator('.question').getByRole('button', { name: 'Answer' }).click();
  await state.waitFor();
  seen.sampled = await result.locator('pre').first().innerText();

  await choose('count');
  await form.getByLabel(/^steps/).fill('600');
  await form.getByLabel(/^delay_ms/).fill('1000');
  await call();
  await page.getByRole('button', { name: 'Cancel' }).click();
  await state.waitFor();
  seen.cancelled = await state.innerText();

  await page.locator('.messages li').first().waitFor();
  await page.locator('.messages summary').first().click();
  seen.raw = await page.locator('.messages').innerText();
  seen.first = await page.locator('.messages pre').first().textContent();
  seen.versions = await page.locator('.messages pre').allTextContents();
  return { ...seen, faults };
}

/** Exports the calls that are listed, in both formats. */
export async function exported(browser, { url, report }) {
  const { page, faults } = await openPage(browser, url);
  await show(page, url, '#/calls?kind=work');
  report({ open: true });
  await page.locator('.tail .row').nth(1).waitFor();
  await page.getByRole('button', { name: 'Pause' }).click();
  const files = {};
  for (const format of ['HAR', 'JSONL']) {
    const download = page.waitForEvent('download');
    await page.getByRole('button', { name: `Export ${format}` }).click();
    files[format] = readFileSync(await (await download).path(), 'utf8');
  }
  return { har: JSON.parse(files.HAR), jsonl: files.JSONL.trimEnd().split('\n').map((line) => JSON.parse(line)), faults };
}

/** Finds out what a new user wants to know, by clicking on what is seen. */
export async function new_user(browser, { url, options, report, readOrder }) {
  const { page, faults } = await openPage(browser, url);
  const found = {};
  await page.goto(url);
  await settled(page);
  await page.getByRole('heading', { name: /calls most$/ }).waitFor();
  report({ open: true });
  await readOrder();
  await page.locator('[aria-labelledby="slow"] li', { hasText: options.slow }).waitFor();

  found.headline = await page.locator('h1').innerText();
  await page.locator('.alarms').getByText('last line on stderr').waitFor();
  found.alarms = await page.locator('.alarms').innerText();
  await page.getByRole('link', { name: new RegExp(`Why it fails.*${options.failing}`) }).click();
  await page.getByRole('heading', { name: 'Why it fails' }).waitFor();
  await settled(page);
  found.why = await page.locator('[aria-labelledby="why"]').innerText();

  await page.getByRole('link', { name: 'Overview' }).first().click();
  const callers = page.locator('section', { hasText: 'calls most' }).locator('li');
  await callers.first().waitFor();
  found.most = await callers.first().innerText();

  const slow = page.locator('[aria-labelledby="slow"] li');
  found.slowest = await slow.first().innerText();
  await slow.first().getByRole('link').click();
  await page.locator('.about').waitFor();
  found.slow = await page.locator('.about').innerText();

  await page.getByRole('link', { name: 'Overview' }).first().click();
  await page.getByRole('link', { name: options.ready, exact: true }).first().click();
  await page.getByRole('heading', { name: 'Use it from…' }).waitFor();
  await settled(page);
  await page.getByRole('button', { name: 'Cursor', exact: true }).click();
  found.cursor = await page.locator('[aria-labelledby="use"]').innerText();
  found.button = await page.getByRole('link', { name: 'Add to Cursor' }).getAttribute('href');
  await page.getByLabel('Another host').selectOption({ label: 'Zed' });
  found.other = await page.locator('.snippet', { hasText: options.key }).innerText();
  return { ...found, faults };
}

/** Restarts a process and ends a session, each after a second question. */
export async function act(browser, { url, options, report, readOrder }) {
  const { page, faults } = await openPage(browser, url);
  const seen = {};
  await show(page, url, `#/destination/${options.name}`);
  await page.getByRole('button', { name: /^Restart…/ }).click();
  await page.getByRole('button', { name: /^Restart process/ }).click();
  // The button of the old process goes away with it.
  await page.getByRole('button', { name: /^Restart process/ }).waitFor({ state: 'detached' });
  report({ restarted: true });
  await readOrder();
  await show(page, url, '#/sessions');
  seen.before = await page.locator('tbody tr').count();
  const row = page.locator('tbody tr', { hasText: options.client });
  await row.getByRole('button', { name: /^End…/ }).click();
  await row.getByRole('button', { name: /^End session/ }).click();
  await row.waitFor({ state: 'detached' });
  seen.after = await page.locator('tbody tr').count();
  return { ...seen, faults };
}

/** Reads what the cards show in the place of what is not there. */
export async function absences(browser, { url }) {
  const { page, faults } = await openPage(browser, url);
  await show(page, url, '#/');
  const seen = {};
  for (const card of await page.locator('.cards > li').all()) {
    seen[await card.locator('h3').innerText()] = await card.innerText();
  }
  seen.legend = await page.locator('.legend').innerText();
  return { ...seen, faults };
}

/** Reads what is wrong with the hosts of this machine, and which limits were reached. */
export async function set_up(browser, { url }) {
  const { page, faults } = await openPage(browser, url);
  await show(page, url, '#/setup');
  const findings = await page.locator('[aria-labelledby="findings"]').innerText();
  const hosts = await page.locator('[aria-labelledby="hosts"]').innerText();
  await show(page, url, '#/limits');
  const limits = await page.locator('tbody tr').first().innerText();
  return { findings, hosts, limits, faults };
}
