// Whether the page tells what is: while clients call, after a restart, and where there is much.

import { readFileSync } from 'node:fs';
import { factsOf, numberOf, openPage, show } from './browser.mjs';

/** Reads the figures of a destination whenever the test asks for them. */
export async function figures(browser, { url, options, report, readOrder }) {
  const { page, faults } = await openPage(browser, url);
  await show(page, url, `#/destination/${options.name}`);
  report({ open: true });
  for (;;) {
    const order = await readOrder();
    if (!order?.messages) break;
    // The stream brings changes a few times a second: a figure may be late, and never early.
    await page.waitForFunction((least) => {
      const term = [...document.querySelectorAll('dt')].find((one) => one.textContent === 'Messages');
      return Number((term?.nextElementSibling?.textContent ?? '').replaceAll(',', '').match(/^\d+/)?.[0]) >= least;
    }, order.messages);
    const facts = await factsOf(page, 'Traffic');
    report({
      messages: numberOf(facts['Messages']),
      in_flight: numberOf(facts['In flight']),
      sessions: numberOf(facts['Sessions']),
      parked: numberOf(facts['Parked']),
      failures: facts['Failures'],
    });
  }
  return { faults };
}

/** Reads the figures of the whole gateway, once it shows so many calls. */
export async function totals(browser, { url, options }) {
  const { page, faults } = await openPage(browser, url);
  await show(page, url, '#/');
  const figure = (name) => page.locator('.totals > div', { has: page.locator('dt', { hasText: new RegExp(`^${name}$`) }) }).locator('.value');
  await figure('Calls').filter({ hasText: new RegExp(`^${options.calls}$`) }).waitFor();
  return { failures: await figure('Failures').innerText(), faults };
}

/** Watches the page over a restart of the gateway. */
export async function restart(browser, { url, report }) {
  const { page, faults } = await openPage(browser, url);
  await show(page, url, '#/');
  report({ headline: await page.locator('h1').innerText() });
  await page.getByText('not live').waitFor();
  report({ lost: await page.locator('.notices').innerText(), still: await page.locator('.cards > li').count() });
  await page.getByText('Rialto was restarted').waitFor();
  await page.locator('.live.good').waitFor();
  const notice = await page.locator('.notices').innerText();
  await page.getByRole('button', { name: 'Dismiss' }).click();
  await page.getByText('Rialto was restarted').waitFor({ state: 'detached' });
  return { notice, faults };
}

/** Counts what the browser has to hold while the test has many sessions open. */
export async function many_sessions(browser, { url, options }) {
  const { page, faults } = await openPage(browser, url);
  await show(page, url, '#/sessions');
  await page.getByText(`of ${options.sessions}`).waitFor();
  const nodes = await page.evaluate(() => document.getElementsByTagName('*').length);
  const clients = new Set();
  let pages = 0;
  for (;;) {
    pages += 1;
    for (const row of await page.locator('tbody th code').allInnerTexts()) clients.add(row);
    const next = page.getByRole('button', { name: 'Next' });
    if (await next.isDisabled()) break;
    await next.click();
    const from = Number(pages) * 50 + 1;
    await page.getByText(`${from.toLocaleString('en')}–`).waitFor();
  }
  const one = [...clients][0];
  await page.getByLabel('Find').fill(one);
  await page.locator('tbody tr').nth(1).waitFor({ state: 'detached' });
  return { nodes, pages, sessions: clients.size, found: await page.locator('tbody tr').count(), faults };
}

/** Feeds the tail with more calls than it keeps, and counts what the browser has to hold. */
export async function many_calls(browser, { url, options }) {
  const { page, faults } = await openPage(browser, url);
  await page.route('**/ui/api/events', async (route) => {
    const state = await (await route.fetch({ url: `${url}api/state` })).text();
    const calls = Array.from({ length: options.calls }, (_, index) => ({
      ts: new Date(Date.now() - (options.calls - index) * 10).toISOString(),
      destination: options.name,
      session: '36972ccffaf4',
      principal: `caller-${index % 7}`,
      http_method: 'POST',
      mcp_method: 'tools/call',
      tool: `tool_${index % 300}`,
      rpc_id: index,
      status_code: 200,
      outcome: index % 100 === 0 ? 'timeout' : 'ok',
      reason: index % 100 === 0 ? 'timeout' : null,
      latency_ms: index % 1000,
      request_bytes: 100,
      response_bytes: 100,
      client: `client ${index % 5}`,
      waited_ms: 1,
      starting_ms: 0,
      server_ms: index % 1000,
      streaming_ms: 0,
    }));
    const event = (name, data) => `event: ${name}\ndata: ${data}\n\n`;
    const body = `retry: 6000000\n${event('state', state)}${event('calls', JSON.stringify({ calls, skipped: 0, since_ms: 1000, replay: true }))}`;
    await route.fulfill({ contentType: 'text/event-stream', body });
  });
  await show(page, url, '#/calls');
  await page.locator('.tail .row').nth(1).waitFor();
  const listed = await page.locator('.bar .soft').innerText();
  const count = () => page.evaluate(() => document.getElementsByTagName('*').length);
  const nodes = { calls: await count() };
  await page.getByLabel('Outcome').selectOption('timeout');
  await page.getByText('100 calls listed').waitFor();
  const filtered = await page.locator('.bar .soft').innerText();
  await page.getByRole('link', { name: 'Show all' }).click();
  const download = page.waitForEvent('download');
  await page.getByRole('button', { name: 'Export JSONL' }).click();
  const lines = readFileSync(await (await download).path(), 'utf8').trimEnd().split('\n');
  await show(page, url, '#/');
  nodes.overview = await count();
  return { nodes, listed, filtered, exported: lines.length, newest: JSON.parse(lines.at(-1)).rpc_id, faults };
}
