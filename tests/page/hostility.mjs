// What a hostile server and a caller without the right can do: nothing.

import { openPage, settled, show } from './browser.mjs';

/** Looks at every text of a hostile server, and calls its tools. */
export async function hostile(browser, stage) {
  const { url, options } = stage;
  const { page, faults } = await openPage(browser, url);
  // An element or an attribute that the server named would be found here.
  const injected = () => page.evaluate(() => [...document.querySelectorAll('*')].filter((one) =>
    ['IFRAME', 'OBJECT', 'EMBED', 'BASE', 'STYLE', 'MARQUEE'].includes(one.tagName) ||
    (one.tagName === 'SCRIPT' && one.getAttribute('src') !== 'app.js') ||
    (one.tagName === 'IMG' && !one.getAttribute('src')?.startsWith('data:image/png;base64,')) ||
    [...one.attributes].some((attribute) => attribute.name.startsWith('on') || attribute.name === 'style') ||
    (one.tagName === 'A' && /^\s*(javascript|data|vbscript):/i.test(one.getAttribute('href') ?? ''))).map((one) => one.outerHTML));
  const texts = {};
  const found = [];
  const look = async (name) => {
    texts[name] = await page.locator('main').innerText();
    found.push(...(await injected()).map((html) => `${name}: ${html}`));
  };
  await show(page, url, `#/destination/${options.name}`);
  stage.report({ open: true });
  if (await page.getByText('The page has not asked this server yet.').first().isVisible()) {
    await page.getByRole('button', { name: /Ask it now|Start it and ask/ }).click();
  }
  await page.locator('.tools li').first().waitFor();
  for (const schema of await page.getByText('Schema', { exact: false }).locator('xpath=ancestor-or-self::summary').all()) await schema.click();
  await look('destination');
  for (const era of ['legacy', 'modern']) {
    await show(page, url, `#/try/${options.name}`);
    await page.getByRole('radio', { name: new RegExp(era) }).check();
    await page.locator('.cards li').first().waitFor();
    await settled(page);
    await look(`tools ${era}`);
    const names = await page.getByLabel('Tool').locator('option').allInnerTexts();
    for (const name of names.slice(1)) {
      await page.getByLabel('Tool').selectOption(name);
      await page.getByRole('button', { name: 'Call', exact: true }).click();
      const ended = page.locator('[aria-labelledby="result"] .state');
      await ended.or(page.locator('.question')).first().waitFor();
      await look(`${era} ${name}`);
      if ((await page.locator('.question').count()) > 0) {
        await page.getByRole('button', { name: name === 'asks' ? 'Answer' : 'Decline', exact: true }).click();
        await page.locator('.question').waitFor({ state: 'detached' });
      }
      await ended.waitFor();
      await look(`${era} ${name} result`);
    }
    for (const message of await page.locator('.messages summary').all()) await message.click();
    await look(`messages ${era}`);
  }
  for (const place of ['#/', '#/calls', '#/sessions', '#/limits', '#/setup']) {
    await show(page, url, place);
    await look(place);
  }
  // A place may name anything as well.
  for (const place of ['#/destination/%3Cimg%20src=x%20onerror=alert(1)%3E', '#/calls?tool=%3Cscript%3E', '#/try/%E0%A4%A/x', '#/__proto__', '#/constructor/x']) {
    await show(page, url, place);
    await look(place);
  }
  const polluted = await page.evaluate(() => /** @type {any} */ ({}).polluted !== undefined);
  return { texts, found, polluted, faults };
}

/** Tries to see something without the admin right, then with it. */
export async function sign_in(browser, { url, options }) {
  const { context, page, faults } = await openPage(browser, url);
  const seen = { texts: [] };
  const bodies = [];
  page.on('response', async (response) => bodies.push(await response.text().catch(() => '')));
  seen.first = (await page.goto(url)).status();
  seen.texts.push(await page.locator('body').innerText());
  // The policy of the form forbids it to ask for anything, so the browser asks beside it.
  const ask = async (path) => {
    const response = await context.request.get(`${url}${path}`);
    bodies.push(await response.text());
    return response.status();
  };
  seen.api = [];
  for (const path of ['api/state', 'api/events', 'api/setup', 'api/destination/files', 'app.js']) seen.api.push(await ask(path));
  const enter = async (token) => {
    await page.locator('input[name="token"]').fill(token);
    const [response] = await Promise.all([
      page.waitForResponse((one) => one.url().endsWith('/sign-in') && one.request().method() === 'POST'),
      page.locator('button, input[type="submit"]').first().click(),
    ]);
    return response.status();
  };
  seen.wrong = await enter('unknown');
  seen.texts.push(await page.locator('body').innerText());
  seen.plain = await enter(options.plain);
  seen.texts.push(await page.locator('body').innerText());
  seen.bodies = bodies.join('\n');
  await page.goto(url);
  seen.admin = await enter(options.admin);
  await page.locator('.cards li').first().waitFor();
  seen.inside = await page.locator('main').innerText();
  seen.cookies = (await context.cookies()).map(({ httpOnly, sameSite }) => ({ httpOnly, sameSite }));
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.locator('input[name="token"]').waitFor();
  seen.out = await ask('api/state');
  return { ...seen, faults };
}
