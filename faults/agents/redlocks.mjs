// A client of a lock over several servers, for the scene quorum of faults: node-redlock with ioredis.
//
//     redlocks.mjs node-redlock CONFIG
//
// The lines that it writes and reads are those of agent.py.

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const root = new URL('../../', import.meta.url);
const Redis = createRequire(new URL('target/node/', root))('ioredis');
const { default: Redlock } = createRequire(new URL('target/redlock/node/', root))('redlock');

const config = JSON.parse(process.argv[3]);
const { urls, key, lease_ms: lease, wait_ms: wait, boot_ahead_us: ahead } = config;

// Node.js has no CLOCK_BOOTTIME; the program says how far that is ahead.
const now = () => Number(process.hrtime.bigint() / 1000n) + ahead;
const say = (event, fields = {}) => process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const told = async () => (await lines.next()).value;

// One server may take a twentieth of the lease to answer.
const limit = lease / 20;
const options = { commandTimeout: limit, connectTimeout: limit, lazyConnect: true };
const clients = urls.map((url) => new Redis(url, options).on('error', () => {}));
await Promise.all(clients.map((client) => client.connect().catch(() => {})));
// Its default is 10 attempts, 200 ms apart: about as long as the other clients wait.
const redlock = new Redlock(clients, { retryCount: Math.ceil(wait / 200) });

let number = 0;
for (;;) {
  say('next');
  const task = JSON.parse((await told()) ?? '{"do": "end"}');
  if (task.do !== 'take') break;
  const asked = now();
  try {
    await hear(await redlock.acquire([key], lease), asked, task.hold_ms * 1000, task.work_ms);
  } catch (error) {
    say('failed', { why: error.name });
  }
}
process.exit(0);

/** When a lock's validity ends. Its `expiration` is a moment of the wall clock. */
function end(lock) {
  return now() + (lock.expiration - Date.now()) * 1000;
}

async function hear(first, asked, holdUs, work) {
  let lock = first;
  number += 1;
  const start = now();
  let until = end(lock);
  say('held', { hold: number, fences: [], asked, at: start, until });
  while (now() < start + holdUs) {
    const checked = now();
    if (until - checked < (lease * 1000) / 2) {
      // As its documents show it.
      lock = await lock.extend(lease).catch(() => lock);
      if (lock.expiration > 0) until = end(lock);
    }
    if (now() >= until) {
      say('lost', { hold: number, at: now() });
      break;
    }
    await sleep(work);
    say('write', { hold: number, asked: checked, at: checked, until });
    if ((await told()) !== 'yes') break;
  }
  say('releasing', { hold: number, at: now() });
  const released = await lock.release().then(
    () => true,
    () => false,
  );
  say('released', { hold: number, ok: released });
}
