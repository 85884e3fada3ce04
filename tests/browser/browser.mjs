// A browser without a window, for the scripts beside this file. tools/install.sh browser brings what it needs.
import assert from 'node:assert/strict';
import { readFileSync, realpathSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const HOME = fileURLToPath(new URL('../../target/browser/', import.meta.url));
const { chromium } = createRequire(HOME)('playwright-core');

// As long as a busy machine may take; it ends early when all is well.
export const PATIENCE = 120_000;

// Pages that are too narrow, as people see them on a phone.
export const PHONES = [320, 390];

// Runs `test` with a browser, and ends the process with 1 if it fails. An error in a page's script counts as well.
export async function withBrowser(test) {
  const browser = await chromium.launch({
    executablePath: realpathSync(`${HOME}program`),
    // As root, Chromium does not start with its sandbox. The others keep it from asking addresses on the network.
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
      '--disable-dev-shm-usage',
    ],
  });
  try {
    await test(async (options = {}) => {
      const page = await browser.newPage({ viewport: { width: 1100, height: 900 }, ...options });
      page.setDefaultTimeout(PATIENCE);
      page.setDefaultNavigationTimeout(PATIENCE);
      page.on('pageerror', (error) => fail(error));
      page.on('console', (said) => said.type() === 'error' && fail(new Error(`${page.url()}: ${said.text()}`)));
      // Nothing of a page may come from another machine.
      page.on('request', (request) => {
        const { protocol, hostname } = new URL(request.url());
        const isHere = ['file:', 'data:', 'blob:'].includes(protocol) || hostname === '127.0.0.1';
        if (!isHere) fail(new Error(`${page.url()} asks for ${request.url()}`));
      });
      return page;
    });
  } catch (error) {
    fail(error);
  } finally {
    await browser.close();
  }
}

function fail(error) {
  console.error(error);
  process.exitCode = 1;
}

// The page must not be wider than the window. Names the elements that are.
export async function fits(page) {
  const wide = await page.evaluate(() => {
    const room = document.documentElement.clientWidth;
    const scrolls = (node) =>
      node && (/auto|scroll|hidden/.test(getComputedStyle(node).overflowX) || scrolls(node.parentElement));
    const outside = [...document.body.querySelectorAll('*')].filter((node) => {
      const { left, right, width } = node.getBoundingClientRect();
      return width > 0 && right > room + 1 && left < room && !scrolls(node.parentElement);
    });
    const page = document.scrollingElement.scrollWidth;
    return page > room
      ? [`the page has ${page} of ${room}`, ...outside.slice(0, 5).map((node) => node.outerHTML.slice(0, 200))]
      : [];
  });
  assert.deepEqual(wide, [], `${page.url()} is too wide`);
}

// What axe-core finds wrong for people who use a keyboard, a screen reader or strong contrast.
export async function isAccessible(page) {
  const axe = readFileSync(`${HOME}node_modules/axe-core/axe.min.js`, 'utf8');
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, {
      runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'],
    });
    return violations.map(
      ({ id, help, nodes }) =>
        `${id}: ${help}: ${nodes
          .slice(0, 3)
          .map((node) => node.html)
          .join(' ')}`,
    );
  });
  assert.deepEqual(found, [], `${page.url()} is not accessible`);
}
