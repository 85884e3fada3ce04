// While clients of another kind of lock run: needs a server with the module on 127.0.0.1:REDIS_LOCK_PORT.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { LockMisuse, Locks, LockTimeout, libraries, Wire } from './stage.mjs';

const others = createRequire(new URL('../../../target/redlock/node/', import.meta.url));
const { default: Redlock } = others('redlock');
const { Mutex } = others('redis-semaphore');
const { open, send, close } = libraries.ioredis;
const TTL = 60_000;
const KEY = 'migrating';
const NEXT = `${KEY}:v2`;

/** Locks of today, by the library that makes them. They throw when others have the lock. */
const OLD = {
  'node-redlock': (client) => new Redlock([client], { retryCount: 0 }).on('error', () => undefined),
  'redis-semaphore': (client) => ({
    acquire: async ([key]) => {
      const mutex = new Mutex(client, key, { lockTimeout: TTL, acquireAttemptsLimit: 1, refreshInterval: 0 });
      await mutex.acquire();
      return mutex;
    },
  }),
};
/** The function of the page which takes both. It waits for nothing here. */
function fromPage(redlock, locks) {
  const [, code] = /```js\n(async function withBoth.*?)\n```/s.exec(
    readFileSync(new URL('../README.md', import.meta.url), 'utf8'),
  );
  return new Function('redlock', 'locks', `return ${code.replace('5_000', '0')}`)(redlock, locks);
}

/** Where the library writes its lock. */
const PLACE = { 'node-redlock': KEY, 'redis-semaphore': `mutex:${KEY}` };

for (const [library, make] of Object.entries(OLD)) {
  describe(`beside ${library}`, () => {
    let client;
    let locks;
    let phases;
    before(async () => {
      client = await open();
      locks = new Locks(client);
      const old = make(client);
      const withBoth = fromPage(old, locks);
      const held = (taking) => taking.then((lock) => () => lock.release());
      // Each gives what releases.
      phases = {
        old: () => held(old.acquire([KEY], TTL)),
        both: () =>
          new Promise((resolve, reject) => {
            const work = () => new Promise((end) => resolve(() => Promise.all([end(), done])));
            const done = withBoth(KEY, work);
            done.catch(reject);
          }),
        next: () => held(locks.acquire(NEXT, { wait: 0 })),
      };
    });
    after(() => close(client));

    it('keeps out the release before and the one after, by both locks', async () => {
      const pairs = [
        ['old', 'both'],
        ['both', 'old'],
        ['both', 'both'],
        ['both', 'next'],
        ['next', 'both'],
      ];
      for (const [holder, other] of pairs) {
        const release = await phases[holder]();
        await assert.rejects(phases[other](), undefined, `${holder}, ${other}`);
        await release();
        // Nothing is left of either.
        assert.equal(await send(client, 'EXISTS', PLACE[library], NEXT), 0, `${holder}, ${other}`);
      }
      // So no process of the first may run beside one of the last.
      const [first, last] = [await phases.old(), await phases.next()];
      await first();
      await last();
    });

    it('waits for its lock on the same key, if asked to', async () => {
      const key = PLACE[library];
      const release = await phases.old();
      await assert.rejects(locks.acquire(key, { wait: 5_000 }), /WRONGTYPE/);
      const options = { oldClients: true };
      assert.equal(await locks.tryAcquire(key, options), null);
      // Over a wire of its own, which counts what it asks.
      const wire = await new Wire().listen();
      let asked = 0;
      wire.rewrite = (bytes) => {
        asked += String(bytes).split('LOCK.ACQUIRE').length - 1;
        return bytes;
      };
      const far = await open(wire.port);
      await assert.rejects(new Locks(far).acquire(key, { ...options, wait: 3_000 }), LockTimeout);
      // After pauses of 0.1 s, 0.2 s and so on.
      assert.ok(asked >= 2 && asked <= 7, String(asked));
      close(far);
      wire.close();
      for (const maxBlocking of [8, 0]) {
        let took = false;
        const kinds = [];
        const mine = new Locks(client, { maxBlocking, onTrouble: (_, kind) => kinds.push(kind) });
        const wait = mine.acquire(key, options).then((lock) => {
          took = true;
          return lock;
        });
        await sleep(300);
        assert.equal(took, false);
        if (maxBlocking === 8) await release();
        else await send(client, 'DEL', key);
        const lock = await wait;
        assert.equal(await lock.check(), true);
        assert.deepEqual(kinds, []);
        // An old client waits as for one of its own.
        await assert.rejects(phases.old());
        await lock.release();
        // A hash, as of Redisson.
        await send(client, 'HSET', key, 'uuid:1', '1');
      }
      await send(client, 'DEL', key);
      await assert.rejects(locks.acquire(key, { oldClients: 1 }), LockMisuse);
    });
  });
}
