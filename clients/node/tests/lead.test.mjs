// Leading: on the server in memory, with its clock; and by a program, on a server that goes away.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { FakeServer, helper, LockLost, LockMisuse, Locks, libraries, modules, startServer, until } from './stage.mjs';

const LEASE = 30_000;
/** Works until it is told to stop. */
const work = (signal) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));

describe('a leader', () => {
  it('leads again after each term, with a higher fence, until its work returns a value', async () => {
    const server = new FakeServer();
    const terms = [];
    const value = await new Locks(server, { wait: 0 }).lead('k', (signal, lock) => {
      assert.deepEqual(server.holders('k'), [lock.owner]);
      assert.equal(signal, lock.signal);
      terms.push(lock.fence);
      return terms.length < 3 ? undefined : 'done';
    });
    assert.equal(value, 'done');
    assert.deepEqual(new Set(terms).size, 3);
    assert.deepEqual(
      terms,
      terms.toSorted((a, b) => a - b),
    );
    assert.deepEqual(server.holders('k'), []);
  });

  it('lets those lead between its terms that wait', async () => {
    const server = new FakeServer();
    const order = [];
    const lead = (name) =>
      new Locks(server).lead('k', async () => {
        order.push(name);
        await until('the other one', () => order.length >= 5 || server.waiting('k') === 1);
        return order.length >= 5 ? name : undefined;
      });
    await Promise.all([lead('a'), lead('b')]);
    assert.match(order.join(''), /^(ab)+a?$/);
  });

  it('steps down before its lease is over when the server goes away', async () => {
    const server = new FakeServer();
    const stop = new AbortController();
    const terms = [];
    const over = [];
    const leading = new Locks(server).lead('k', { signal: stop.signal }, async (signal, { fence }) => {
      terms.push(fence);
      await work(signal).finally(() => over.push([fence, signal.reason]));
    });
    await until('the first term', () => terms.length === 1);
    server.stop();
    await server.advance(29_000);
    assert.deepEqual(over, []);
    // The server has the lock for 30 s.
    await server.advance(900);
    await until('the end of the term', () => over.length === 1);
    assert.ok(over[0][1] instanceof LockLost);
    server.start();
    await server.advance(LEASE);
    await until('the next term', () => terms.length === 2);
    assert.ok(terms[1] > terms[0]);
    stop.abort();
    await assert.rejects(leading, (error) => error === stop.signal.reason);
    assert.equal(over.length, 2);
    assert.deepEqual(server.holders('k'), []);
  });

  it('steps down at its next renewal when its lock is broken, and another one leads', async () => {
    const server = new FakeServer();
    const stop = new AbortController();
    const terms = [];
    const over = [];
    const lead = () =>
      new Locks(server).lead('k', { signal: stop.signal }, async (signal, { fence }) => {
        terms.push(fence);
        // No matter what its work throws at the end of the term.
        await sleep(3_600_000, undefined, { signal, ref: false }).finally(() => over.push(fence));
      });
    const both = [lead(), lead()].map((each) => each.catch((error) => error));
    await until('one leader', () => terms.length === 1 && server.waiting('k') === 1);
    server.lose('k');
    await server.advance(0);
    await until('another one', () => terms.length === 2);
    await server.advance(LEASE / 3);
    await until('the end of the first', () => over.length === 1);
    assert.deepEqual(over, [terms[0]]);
    assert.ok(terms[1] > terms[0]);
    await until('that it waits for its next term', () => server.waiting('k') === 1);
    stop.abort();
    for (const error of await Promise.all(both)) assert.equal(error, stop.signal.reason);
  });

  it('begins no term before the work of the one before has ended', async () => {
    const server = new FakeServer();
    let terms = 0;
    let end;
    const leading = new Locks(server).lead('k', async (signal) => {
      terms += 1;
      if (terms === 2) return 'led';
      await once(signal, 'abort');
      await new Promise((resolve) => {
        end = resolve;
      });
    });
    await until('the first term', () => terms === 1);
    server.lose('k');
    await server.advance(LEASE / 3);
    await until('its end', () => end);
    await server.advance(LEASE);
    assert.equal(terms, 1);
    assert.deepEqual(server.holders('k'), []);
    end();
    assert.equal(await leading, 'led');
  });

  it('ends with what its work throws, and with a value of a term that was lost', async () => {
    const server = new FakeServer();
    const locks = new Locks(server);
    await assert.rejects(
      locks.lead('k', () => {
        throw new RangeError('of the work');
      }),
      RangeError,
    );
    assert.deepEqual(server.holders('k'), []);
    // The loss of another lock is an error of the work.
    const other = await locks.acquire('other');
    server.lose('other');
    await assert.rejects(
      locks.lead('k', () => other.release()),
      LockLost,
    );
    const value = await locks.lead('k', async () => {
      server.lose('k');
      return 'late';
    });
    assert.equal(value, 'late');
  });

  it('refuses a limit to its wait, and what is no work', async () => {
    const locks = new Locks(new FakeServer());
    await assert.rejects(
      locks.lead('k', { wait: 5 }, () => 1),
      LockMisuse,
    );
    await assert.rejects(locks.lead('k', {}), LockMisuse);
    await assert.rejects(
      locks.lead('k', { ttl: 5 }, () => 1),
      LockMisuse,
    );
  });
});

/** The program, with both packages where this checkout has them. It says what becomes of its terms. */
function leader(url) {
  const text = readFileSync(new URL('../examples/leader.mjs', import.meta.url), 'utf8');
  const redis = new URL('node_modules/redis/dist/index.js', `file://${modules}`).href;
  const script = text.replace("'redis-lock-client'", JSON.stringify(helper)).replace("'redis'", JSON.stringify(redis));
  const child = spawn(process.execPath, ['--input-type=module', '--eval', script, 'x', url, 'leader', '3000']);
  const said = [];
  createInterface({ input: child.stdout }).on('line', (line) => said.push(line));
  let trouble = '';
  child.stderr.on('data', (text) => {
    trouble += text;
  });
  const term = () => Number(said.findLast((line) => line.startsWith('leads'))?.split(' ')[1] ?? 0);
  return { child, said, term, closed: once(child, 'close'), trouble: () => trouble };
}

describe('a program that leads', { skip: process.env.REDIS_LOCK_MODULE === undefined }, () => {
  it('steps down when its lock is broken, and when the server goes away', async () => {
    const server = await startServer();
    const { open, send, close } = libraries.ioredis;
    const client = await open(server.port);
    const waits = async () => {
      const info = await send(client, 'LOCK.INFO', 'leader');
      return info[info.indexOf('waiting') + 1] === 1;
    };
    const leaders = [leader(server.url), leader(server.url)];
    try {
      await until('a leader', () => leaders.some(({ term }) => term()));
      const [first, second] = leaders[0].term() ? leaders : leaders.toReversed();
      await until('the other one waits', waits);
      const term = first.term();
      await send(client, 'LOCK.BREAK', 'leader');
      await until('the other one leads', () => second.term());
      assert.ok(second.term() > term);
      await until('the first one steps down', () => first.said.includes(`over ${term}`));
      // It leads again when the other one ends by itself.
      await until('the first one waits', waits);
      second.child.kill('SIGTERM');
      assert.deepEqual(await second.closed, [0, null], second.trouble());
      await until('the first one leads again', () => first.term() > second.term());
      close(client);
      await server.stop();
      await until('the first one steps down', () => first.said.at(-1) === `over ${first.term()}`);
      first.child.kill('SIGTERM');
      assert.deepEqual(await first.closed, [0, null], first.trouble());
    } finally {
      for (const { child } of leaders) child.kill('SIGKILL');
      await server.stop();
    }
  });
});
