// The page of examples/job-queue, as a person sees it.
//
//   job_queue.mjs URL shows STOCK HOLDER WAITER,WAITER   the card of the stock shows them, in this order
//   job_queue.mjs URL lost STOCK WORKER REASON           a row of the table of losses says so
//   job_queue.mjs URL kill                               kills a holder; the next one in the queue holds the lock
//   job_queue.mjs URL freeze                             freezes a holder; its late write is refused
//   job_queue.mjs URL fits                               on a phone; light and dark; with a keyboard
//   job_queue.mjs URL wide OWNER OWNER                   these are seen, on a phone, too
//   job_queue.mjs URL picture FILE                       freezes a holder, and then takes the picture for the documents
import assert from 'node:assert/strict';
import { fits, isAccessible, PATIENCE, PHONES, withBrowser } from './browser.mjs';

const [url, what, ...args] = process.argv.slice(2);

// What the card of a stock says.
const readCard = (page, stock) =>
  page.locator(`.card[data-stock="${stock}"]`).evaluate((card) => ({
    holder: card.querySelector('.holder .worker')?.textContent ?? null,
    waiters: [...card.querySelectorAll('.queue li')].map((item) => item.textContent),
    lease: card.querySelector('.lease').textContent,
    amount: card.querySelector('.amount').textContent,
  }));

// Reads until the condition holds, and returns what was read then.
const until = async (page, read, holds, title) => {
  let last;
  for (const end = Date.now() + PATIENCE; Date.now() < end; ) {
    last = await read();
    if (holds(last)) return last;
    await page.waitForTimeout(20);
  }
  assert.fail(`waited in vain for ${title}; at last it was ${JSON.stringify(last)}`);
};

const rowsOf = (page, id) => page.locator(`#${id} tr`).evaluateAll((rows) => rows.map((row) => row.textContent));

// A row of a table with all of these words.
const row = (page, id, ...words) =>
  until(
    page,
    () => rowsOf(page, id),
    (rows) => rows.some((text) => words.every((word) => text.includes(word))),
    `${words.join(', ')} in ${id}`,
  );

// Presses a button at a worker that holds a lock while others wait. Until it is pressed, the worker may have given
// the lock back: then it is another one's turn. Returns the card as it was.
const press = async (page, button, effect) => {
  for (let attempt = 0; attempt < 10; attempt++) {
    for (const stock of ['apples', 'pears']) {
      const card = await readCard(page, stock);
      if (!card.holder || !card.waiters.length || !card.lease.startsWith('renewed')) continue;
      await page.getByRole('button', { name: `${button} ${card.holder}`, exact: true }).click();
      await page.locator(`#workers li[data-worker="${card.holder}"] .doing.bad`).waitFor();
      const after = await readCard(page, stock);
      if (after.holder === card.holder && after.lease.startsWith(effect)) return { ...card, stock };
    }
    await page.waitForTimeout(200);
  }
  assert.fail(`no holder to ${button}`);
};

const shows = async (page, stock, holder, waiters) => {
  await until(
    page,
    () => readCard(page, stock),
    (card) => card.holder === holder && card.waiters.join() === waiters,
    `${holder} and ${waiters}`,
  );
  for (const waiter of waiters.split(',')) await row(page, 'waits', waiter, stock);
};

const kill = async (page) => {
  const { stock, holder, waiters } = await press(page, 'Kill', 'killed');
  // The killed one does not release, so nobody has the lock before its lease ends. Then the first in the queue has it.
  const next = await until(
    page,
    () => readCard(page, stock),
    (card) => card.holder !== holder && card.holder,
    'the next',
  );
  assert.equal(next.holder, waiters[0]);
  await row(page, 'lost', holder, stock, 'lapse');
  // Of a worker that is gone nothing is left; a new one takes its place.
  await page.locator(`#workers li[data-worker="${holder}"]`).waitFor({ state: 'detached' });
  await page.getByRole('button', { name: 'Add a worker' }).click();
  await page.locator('#workers li[data-worker="worker 5"]').waitFor();
};

const freeze = async (page) => {
  const { stock, holder } = await press(page, 'Freeze', 'frozen');
  await page.getByRole('button', { name: `Wake ${holder}`, exact: true }).waitFor();
  await row(page, 'lost', holder, stock, 'lapse');
  await row(page, 'refused', holder, stock, 'is older than');
  await page.getByRole('button', { name: `Freeze ${holder}`, exact: true }).waitFor();
  await page.getByText(`${holder} was late`).waitFor();
  for (const each of ['apples', 'pears'])
    assert.match((await readCard(page, each)).amount, /^\d+ after \d+ writes: no update lost$/);
};

const fitsEverywhere = async (open) => {
  for (const colorScheme of ['light', 'dark']) {
    const page = await open({ colorScheme, reducedMotion: 'reduce' });
    await page.goto(url);
    await page.locator('#writes tr:nth-child(3)').waitFor();
    await page.locator('#waits .worker').first().waitFor();
    await fits(page);
    await isAccessible(page);
    for (const width of PHONES) {
      await page.setViewportSize({ width, height: 800 });
      await fits(page);
    }
    await isAccessible(page);
    // The buttons are made once: an update takes no focus away.
    await page.getByRole('button', { name: 'Add a worker' }).focus();
    await page.keyboard.press('Tab');
    const focused = () => page.evaluate(() => document.activeElement.getAttribute('aria-label'));
    const label = await focused();
    assert.match(label, /^Freeze worker/);
    const before = await rowsOf(page, 'writes');
    await until(
      page,
      () => rowsOf(page, 'writes'),
      (rows) => rows.join() !== before.join(),
      'another write',
    );
    assert.equal(await focused(), label);
  }
};

const wide = async (page, ...owners) => {
  for (const owner of owners) await page.locator('main').getByText(owner).first().waitFor();
  for (const width of PHONES) {
    await page.setViewportSize({ width, height: 800 });
    await fits(page);
  }
};

const picture = async (page, file) => {
  await freeze(page);
  await press(page, 'Kill', 'killed');
  await page.screenshot({ path: file, fullPage: true });
};

await withBrowser(async (open) => {
  if (what === 'fits') return fitsEverywhere(open);
  const page = await open();
  await page.goto(url);
  await page.locator('.card[data-stock="pears"]').waitFor();
  const steps = { shows, kill, freeze, wide, picture, lost: (...words) => row(words[0], 'lost', ...words.slice(1)) };
  await steps[what](page, ...args);
});
