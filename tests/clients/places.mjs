// Waiting with QUEUE through node-redis or ioredis with its defaults. The program shares one connection: acquisitions
// ask on it without BLOCK. With BLOCK each has a duplicate of that connection.
//
// node places.mjs PORT redis|ioredis: talks to the server on 127.0.0.1:PORT, prints how many checks passed, and ends at
// the first that fails. Never starts a server, never touches a key but its own (places:js:*).

import { randomUUID } from 'node:crypto';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';

const require = createRequire(new URL('../../target/node/', import.meta.url));
const [port, library] = [Number(process.argv[2]), process.argv[3]];
const WAITERS = 6;
let checks = 0;

function fail(what, got, want) {
  console.error(`places.mjs: ${what}: got`, got, want === undefined ? '' : `want ${String(want)}`);
  process.exit(1);
}

// want: a value, or a function that says whether it will do.
function check(what, got, want) {
  if (!(typeof want === 'function' ? want(got) : isDeepStrictEqual(got, want))) fail(what, got, want);
  checks += 1;
}

// Asks until it is so. The limit is for a server that never says so, not for a busy machine.
async function waitFor(what, condition) {
  const giveUp = performance.now() + 120_000;
  while (!(await condition())) {
    if (performance.now() > giveUp) fail(`waited in vain for ${what}`, false);
    await sleep(5);
  }
}

// What differs between the libraries. Both tell of a broken connection by an event, and connect again.
const libraries = {
  redis: {
    open: () => require('redis').createClient({ socket: { host: '127.0.0.1', port } }).on('error', () => {}).connect(),
    duplicate: (client) => client.duplicate().on('error', () => {}).connect(),
    send: (client, args) => client.sendCommand(args.map(String)),
    close: (client) => client.close(),
  },
  ioredis: {
    open: async () => new (require('ioredis'))(port, '127.0.0.1').on('error', () => {}),
    duplicate: async (client) => client.duplicate().on('error', () => {}),
    send: (client, args) => client.call(...args),
    close: (client) => client.quit(),
  },
};
const { open, duplicate, send, close } = libraries[library];

// A map is an object in RESP3, a flat array in RESP2.
const asMap = (reply) =>
  Array.isArray(reply)
    ? Object.fromEntries(reply.flatMap((name, at) => (at % 2 ? [] : [[String(name), reply[at + 1]]])))
    : reply;
const lockInfo = async (client, key) => asMap(await send(client, ['LOCK.INFO', key]));
const waitersOf = async (client, key) => (await lockInfo(client, key)).waiters.map(asMap);

// Sends it again when the connection broke, as a program does. The error of a reply has a code.
async function again(client, args) {
  for (;;) {
    try {
      return await send(client, args);
    } catch (error) {
      if (/^[A-Z]+ /.test(error.message)) throw error;
      await sleep(10);
    }
  }
}

// One acquisition, with an owner of its own.
class Waiter {
  constructor(client, key, options, pauseMs) {
    Object.assign(this, { client, key, options, pauseMs, owner: randomUUID() });
  }

  // The guide's loop.
  async acquire() {
    const words = ['LOCK.ACQUIRE', this.key, this.owner, 'PX', 30_000, ...this.options, 'QUEUE', 10_000];
    for (;;) {
      const fence = await again(this.client, words);
      if (fence !== null) return fence;
      await sleep(this.pauseMs);
    }
  }

  // Some work under the lock. Returns what was seen meanwhile.
  async run() {
    const fence = await this.acquire();
    const info = await lockInfo(this.client, this.key);
    await sleep(200);
    return { fence, info, left: await send(this.client, ['LOCK.RELEASE', this.key, this.owner]) };
  }
}

// Six wait in line, and their connections break. All ask again and again, then the lock is given back.
async function line(judge, key, newWaiter, whileTheyWait) {
  check('the first holder', await send(judge, ['LOCK.ACQUIRE', key, 'first', 'PX', 600_000]), (fence) => fence > 0);
  const waiters = [];
  const results = [];
  const join = async () => {
    const waiter = await newWaiter();
    waiters.push(waiter);
    results.push(waiter.run());
    await waitFor('it to wait', async () => (await waitersOf(judge, key)).length === waiters.length);
  };
  for (let number = 0; number < WAITERS; number += 1) await join();
  await whileTheyWait();
  await join();
  const owners = (await waitersOf(judge, key)).map((waiter) => String(waiter.owner));
  check('all stand where they stood', owners, waiters.map((waiter) => waiter.owner));
  check('the first holder leaves', await send(judge, ['LOCK.RELEASE', key, 'first']), 0);
  const ended = await Promise.all(results);

  const fences = ended.map((result) => result.fence);
  check('first come, first served', fences, (got) => got.every((fence, at) => at === 0 || got[at - 1] < fence));
  ended.forEach(({ fence, info, left }, at) => {
    const seen = info.holders.map(asMap).map((h) => [String(h.owner), h.fence, h.reads, h.writes, h.offered]);
    check('one holder, granted once', seen, [[waiters[at].owner, fence, 0, 1, 0]]);
    check('nothing is left of it', left, 0);
  });
  check('the lock is free', await send(judge, ['LOCK.INFO', key]), null);
  return waiters;
}

const judge = await open();
const shared = await open();
// Every connection breaks once, when both lines stand.
let standing = 0;
async function breakAll() {
  standing += 1;
  await waitFor('both lines to stand', () => standing >= 2);
  if (standing === 2) {
    standing = 3;
    const closed = await send(judge, ['CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes']);
    check('connections closed', closed, (count) => count >= 1 + WAITERS);
  }
}

const polled = 'places:js:polled';
const polling = line(
  judge,
  polled,
  async () => new Waiter(shared, polled, [], 100),
  async () => {
    await breakAll();
    for (let number = 0; number < 50; number += 1) {
      check('a plain GET beside them', await again(shared, ['GET', 'places:js:plain']), null);
      const clients = (await waitersOf(judge, polled)).map((waiter) => waiter.client);
      check('no request holds up the connection', clients, Array(WAITERS).fill(null));
      await sleep(100);
    }
  },
);

const parked = 'places:js:parked';
const duplicates = [];
const blocking = line(
  judge,
  parked,
  async () => {
    duplicates.push(await duplicate(shared));
    return new Waiter(duplicates.at(-1), parked, ['BLOCK', 3_000], 0);
  },
  async () => {
    const before = await waitersOf(judge, parked);
    await breakAll();
    await waitFor('all to ask over other connections', async () =>
      (await waitersOf(judge, parked)).every(({ client }, at) => ![null, before[at].client].includes(client)),
    );
    // BLOCK is over at least once.
    const [after] = await waitersOf(judge, parked);
    await waitFor('the first of them to have asked again', async () => {
      const [now] = await waitersOf(judge, parked);
      return now.client !== null && now.waited_ms > after.waited_ms + 5_000;
    });
  },
);

await Promise.all([polling, blocking]);
await Promise.all([judge, shared, ...duplicates].map(close));
console.log(`places.mjs: ${checks} checks passed`);
