// Takes locks with a library for Node.js as fast as it can, as README.md says.
//
// SPDX-License-Identifier: MIT

import { once } from 'node:events';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const root = new URL('../../', import.meta.url);
const libraries = createRequire(new URL('target/node/', root));
const rivals = createRequire(new URL('target/redlock/node/', root));
const plan = JSON.parse(process.argv[2]);
const LEASE_MS = 10_000;
const FOREVER = 1_000_000;

const ioredis = async () => {
  const client = new (libraries('ioredis'))(plan.url);
  await once(client, 'ready');
  return client;
};

/** Each makes a function that takes the lock of a key, and returns what gives it back. */
const kinds = {
  'redis-lock-client, node-redis': async () => own(libraries('redis').createClient({ url: plan.url })),
  'redis-lock-client, ioredis': async () => own(new (libraries('ioredis'))(plan.url, { lazyConnect: true })),
  'node-redlock': async () => {
    const redlock = new (rivals('redlock').default)([await ioredis()], { retryCount: FOREVER });
    return async (key) => {
      const lock = await redlock.acquire([key], LEASE_MS);
      return () => lock.release();
    };
  },
  'redis-semaphore': async () => {
    const { Mutex } = rivals('redis-semaphore');
    const client = await ioredis();
    return async (key) => {
      const mutex = new Mutex(client, key, { lockTimeout: LEASE_MS, acquireTimeout: FOREVER });
      await mutex.acquire();
      return () => mutex.release();
    };
  },
};

/** The helper makes its own connections, by the settings of a client that is not connected itself. */
async function own(client) {
  const { Locks } = await import(new URL('target/helpers/node/redis-lock.js', root).href);
  const locks = new Locks(client, { lease: LEASE_MS, maxBlocking: plan.blocking });
  return async (key) => {
    const lock = await locks.acquire(key);
    return () => lock.release();
  };
}

const take = await kinds[plan.kind.replace(' by NOTIFY', '')]();
const locks = plan.keys.map(() => 0);
let failed = 0;
let longest = 0;
const had = plan.keys.map(
  (key, owner) =>
    new Promise((first) => {
      (async () => {
        for (;;) {
          const begin = performance.now();
          try {
            const release = await take(key);
            longest = Math.max(longest, performance.now() - begin);
            if (plan.hold_ms > 0) await sleep(plan.hold_ms);
            await release();
            locks[owner] += 1;
            first();
          } catch {
            failed += 1;
          }
        }
      })();
    }),
);
await Promise.all(had);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
console.log(JSON.stringify({ ready: true }));
await lines.next();

locks.fill(0);
failed = longest = 0;
const cpu = process.cpuUsage();
const begin = performance.now();
await sleep(plan.seconds * 1_000);
const { user, system } = process.cpuUsage(cpu);
const seconds = (performance.now() - begin) / 1_000;
const result = { locks, failed, longest: longest / 1_000, seconds, cpu: (user + system) / 1_000_000 };
console.log(JSON.stringify(result));
await lines.next();
process.exit(0);
