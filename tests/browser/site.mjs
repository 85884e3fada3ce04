// The site of make docs, as a person reads it.
//
//   site.mjs FOLDER navigation   the parts stand in their order, and lead to their pages
//   site.mjs FOLDER search       the search finds the page about fences
//   site.mjs FOLDER tabs         a block in several languages shows one, and all pages the one that was chosen
//   site.mjs FOLDER phone        no page is wider than a phone
//   site.mjs FOLDER dark         dark where the reader's system is, with a switch; accessible in both
//   site.mjs FOLDER picture FILE PAGE WIDTH SCHEME
import assert from 'node:assert/strict';
import { createReadStream, existsSync, readdirSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { extname, join } from 'node:path';
import { fits, isAccessible, PHONES, withBrowser } from './browser.mjs';

const [folder, what, ...args] = process.argv.slice(2);
const KINDS = { '.html': 'text/html', '.css': 'text/css', '.js': 'text/javascript', '.svg': 'image/svg+xml' };

// The pages, below `at`.
const pagesOf = (at) =>
  readdirSync(at, { recursive: true })
    .filter((name) => name.endsWith('.html') && !name.startsWith('_'))
    .sort();

const serve = () =>
  new Promise((resolve) => {
    const server = createServer((request, response) => {
      const file = join(folder, decodeURIComponent(new URL(request.url, 'http://127.0.0.1').pathname));
      const found = existsSync(file) && statSync(file).isFile();
      response.writeHead(found ? 200 : 404, { 'Content-Type': KINDS[extname(file)] ?? 'application/octet-stream' });
      if (found) createReadStream(file).pipe(response);
      else response.end();
    });
    server.listen(0, '127.0.0.1', () => resolve(server));
  });

const PARTS = ['Guide', 'Commands', 'Reference', 'Operations', 'What to rely on', 'Internals', 'The project'];

const navigation = async (open, url) => {
  const page = await open();
  await page.goto(`${url}index.html`);
  const tree = page.locator('.sidebar-tree');
  const captions = await tree.locator('.caption').allInnerTexts();
  assert.deepEqual(
    captions.map((text) => text.toLowerCase()),
    PARTS.map((text) => text.toLowerCase()),
  );
  // A page has the name that it gives itself.
  const names = await tree.locator('li a').allInnerTexts();
  for (const name of ['First lock', 'LOCK.ACQUIRE', 'Errors', 'Installing', 'Guarantees', 'Deadlocks', 'A job queue']) {
    assert.ok(names.includes(name), `${name} is not among ${names}`);
  }
  await tree.getByRole('link', { name: 'First lock', exact: true }).click();
  await page.getByRole('heading', { level: 1, name: 'First lock' }).waitFor();
  // A file that is no document is a page as well.
  await page.goto(`${url}docs/operations/configuring.html`);
  await page.locator('article a[href*="redis.conf"]').first().click();
  await page.locator('pre', { hasText: 'lock.default-lease-ms' }).waitFor();
};

const search = async (open, url) => {
  const page = await open();
  await page.goto(`${url}index.html`);
  await page.locator('.sidebar-search').fill('fence');
  await page.locator('.sidebar-search').press('Enter');
  const found = page.locator('ul.search li > a');
  await found.filter({ hasText: /^Fencing$/ }).waitFor();
  const titles = await found.allInnerTexts();
  const first = titles.slice(0, 5);
  assert.ok(first.includes('Fencing') || first.includes('Fences'), `the first ones are ${first}`);
  // Files that are no documents would stand before what a reader looks for.
  assert.deepEqual(
    titles.filter((title) => title.startsWith('src/')),
    [],
  );
  await found.filter({ hasText: /^Fencing$/ }).click();
  await page.getByRole('heading', { level: 1, name: 'Fencing' }).waitFor();
};

// They begin with a lock in each language.
const FIRST_PAGES = ['first-lock', 'waiting', 'readers-writers', 'semaphores', 'several-keys', 'losing-a-lock'];

const tabs = async (open, url) => {
  const page = await open();
  const shown = async (article) =>
    article.locator('[role=tabpanel]:visible').evaluateAll((nodes) => nodes.map((node) => node.classList[0]));
  await page.goto(`${url}docs/guide/first-lock.html`);
  const article = page.locator('article');
  assert.deepEqual(await shown(article), ['highlight-python']);
  await article.getByRole('tab', { name: 'Java', exact: true }).click();
  assert.deepEqual(await shown(article), ['highlight-java']);
  // Other pages begin with what was chosen here; the keyboard goes on from there.
  await page.goto(`${url}docs/guide/waiting.html`);
  assert.deepEqual(await shown(article), ['highlight-java']);
  await article.getByRole('tab', { name: 'Java', exact: true }).press('ArrowRight');
  assert.deepEqual(await shown(article), ['highlight-go']);
  await article.getByRole('tab', { name: 'Go', exact: true }).press('ArrowRight');
  await article.getByRole('tab', { name: 'Rust', exact: true }).press('ArrowRight');
  assert.deepEqual(await shown(article), ['highlight-python'], 'the first one follows the last');
  await isAccessible(page);
  for (const name of FIRST_PAGES) {
    await page.goto(`${url}docs/guide/${name}.html`);
    const labels = await article.getByRole('tablist').first().getByRole('tab').allInnerTexts();
    assert.deepEqual(labels, ['Python', 'Node.js', 'Java', 'Go', 'Rust'], name);
  }
  // Without scripts nothing is hidden.
  const plain = await open({ javaScriptEnabled: false });
  await plain.goto(`${url}docs/guide/first-lock.html`);
  for (const language of ['python', 'js', 'java', 'go', 'rust']) {
    assert.ok(await plain.locator(`article .highlight-${language}`).first().isVisible(), language);
  }
  assert.equal(await plain.locator('[role=tab]').count(), 0);
};

const phone = async (open, url) => {
  const page = await open();
  for (const name of pagesOf(folder)) {
    await page.goto(url + name);
    for (const width of PHONES) {
      await page.setViewportSize({ width, height: 800 });
      await fits(page);
    }
  }
};

const dark = async (open, url) => {
  const backgroundOf = (page) =>
    page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).map(Number));
  const isDark = (color) => Math.max(...color) < 80;
  for (const colorScheme of ['light', 'dark']) {
    const page = await open({ colorScheme });
    for (const name of ['index.html', 'docs/guide/fencing.html', 'docs/reference/info-fields.html']) {
      await page.goto(url + name);
      assert.equal(isDark(await backgroundOf(page)), colorScheme === 'dark', `${name} in ${colorScheme}`);
      await isAccessible(page);
    }
    // The switch goes from the system's choice to a fixed one, and on.
    const seen = new Set();
    for (let press = 0; press < 3; press++) {
      await page.locator('.theme-toggle:visible').first().click();
      seen.add(isDark(await backgroundOf(page)));
    }
    assert.equal(seen.size, 2, 'the switch changes nothing');
  }
};

const picture = async (open, url) => {
  const [file, name, width, colorScheme] = args;
  const page = await open({ viewport: { width: Number(width), height: 900 }, colorScheme });
  await page.goto(url + name);
  await page.waitForTimeout(500);
  await page.screenshot({ path: file });
};

const server = await serve();
await withBrowser((open) =>
  ({ navigation, search, tabs, phone, dark, picture })[what](open, `http://127.0.0.1:${server.address().port}/`),
);
server.closeAllConnections();
server.close();
