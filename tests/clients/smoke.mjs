// The locks through node-redis, as its user would write them.
//
// node smoke.mjs PORT: talks to the server on 127.0.0.1:PORT, over RESP2 and RESP3, prints how many checks passed, and
// ends at the first that fails. Never starts a server, never touches a key but its own (smoke:js:*).

import { createRequire } from 'node:module';
import { isDeepStrictEqual } from 'node:util';

// tools/install.sh puts the package under target/, so that the tree stays as it was checked out.
const { createClient, RESP_TYPES } = createRequire(new URL('../../target/node/', import.meta.url))('redis');

// const lock = await Lock.take(client, key); try { ... lock.fence ... } finally { await lock.release(); }
class Lock {
  // null when somebody else holds it.
  static async take(client, key, leaseMs = 30_000) {
    const granted = await client.sendCommand(['LOCK.ACQUIRE', key, '*', 'PX', String(leaseMs)]);
    return granted && new Lock(client, key, ...granted);
  }

  constructor(client, key, owner, fence) {
    Object.assign(this, { client, key, owner, fence });
  }

  release() {
    return this.client.sendCommand(['LOCK.RELEASE', this.key, this.owner, 'FENCE', String(this.fence)]);
  }
}

let checks = 0;

function fail(what, got, want) {
  console.error(`smoke.mjs: ${what}: got`, got, want === undefined ? '' : `want ${String(want)}`);
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
  while (!(await condition())) if (performance.now() > giveUp) fail(`waited in vain for ${what}`, false);
}

async function checkError(what, part, promise) {
  const got = await promise.catch((error) => error);
  if (!(got instanceof Error)) fail(what, got, `an error with ${part}`);
  check(what, got.message, (text) => text.includes(part));
}

const isFence = (value) => Number.isSafeInteger(value) && value > 0;

// A map is an object in RESP3, a flat array in RESP2.
const asMap = (reply) =>
  Array.isArray(reply)
    ? Object.fromEntries(reply.flatMap((name, at) => (at % 2 ? [] : [[String(name), reply[at + 1]]])))
    : reply;

async function smoke(client, protocol) {
  let names = 0;
  const lock = (...args) => client.sendCommand(args.map((arg) => (Buffer.isBuffer(arg) ? arg : String(arg))));
  const freshKey = async () => {
    const key = `smoke:js:${protocol}:${names++}`;
    await client.del(key);
    return key;
  };
  const holderOf = async (...args) => asMap(asMap(await lock('LOCK.INFO', ...args)).holders[0]);

  // A lock as an object; the server makes the owner.
  let key = await freshKey();
  const held = await Lock.take(client, key);
  check('an owner made by the server', held.owner, (owner) => /^[0-9a-f]{32}$/i.test(owner));
  check('its fence', held.fence, isFence);
  check('another owner is refused', await lock('LOCK.ACQUIRE', key, 'other'), null);
  check('and so is another Lock', await Lock.take(client, key), null);
  check('release', await held.release(), 0);
  check('free', await client.exists(key), 0);
  const next = await Lock.take(client, key);
  check('the next hold has a higher fence', next.fence, (fence) => fence > held.fence);
  await next.release();

  // Again by the same owner: one more count, the same fence.
  key = await freshKey();
  let fence = await lock('LOCK.ACQUIRE', key, 'alice', 'PX', 10_000, 'NOTE', 'host-1 pid 42');
  check('take', fence, isFence);
  check('re-enter', await lock('LOCK.ACQUIRE', key, 'alice', 'EX', 20), fence);
  check('and again', await lock('LOCK.RW', key, 'alice', 'WRITE'), fence);
  check('type', await client.type(key), 'redislock');

  // INFO is a map, with maps in it; in RESP2 flat.
  let info = await lock('LOCK.INFO', key);
  check('INFO of this protocol', Array.isArray(info), protocol === 2);
  info = asMap(info);
  check('INFO fence', info.fence, fence);
  check('INFO holding', info.holding, 1);
  check('INFO holders', info.holders.length, 1);
  let holder = asMap(info.holders[0]);
  check('holder: owner', holder.owner, 'alice');
  check('holder: mode', holder.mode, 'write');
  check('holder: reads', holder.reads, 0);
  check('holder: writes', holder.writes, 3);
  check('holder: fence', holder.fence, fence);
  check('holder: lease', holder.ttl_ms, (ms) => ms > 10_000 && ms <= 30_000);
  check('holder: note', holder.note, 'host-1 pid 42');
  check('INFO COUNT 0 lists nobody', asMap(await lock('LOCK.INFO', key, 'COUNT', 0)).holders, []);
  check('INFO of a free key', await lock('LOCK.INFO', await freshKey()), null);

  // EXTEND sets the lease, be it shorter or longer.
  check('extend', await lock('LOCK.EXTEND', key, 'alice', 'PX', 60_000), fence);
  holder = await holderOf(key, 'OWNER', 'alice');
  check('the lease is longer', holder.ttl_ms, (ms) => ms > 50_000 && ms <= 60_000);
  check('extend what one does not hold', await lock('LOCK.EXTEND', key, 'bob', 'PX', 1000), null);

  // FENCE: only this hold.
  check('extend another fence', await lock('LOCK.EXTEND', key, 'alice', 'PX', 1000, 'FENCE', fence - 1), null);
  check('release another fence', await lock('LOCK.RELEASE', key, 'alice', 'FENCE', fence + 1), null);
  check('extend this fence', await lock('LOCK.EXTEND', key, 'alice', 'PX', 60_000, 'FENCE', fence), fence);

  // RELEASE counts down; TO may be sent twice, ALL drops every count.
  check('three counts, release one', await lock('LOCK.RELEASE', key, 'alice'), 2);
  check('release TO 1', await lock('LOCK.RELEASE', key, 'alice', 'TO', 1), 1);
  check('release TO 1, sent again', await lock('LOCK.RELEASE', key, 'alice', 'TO', 1), 1);
  check('release the last', await lock('LOCK.RELEASE', key, 'alice', 'FENCE', fence), 0);
  check('release what one does not hold', await lock('LOCK.RELEASE', key, 'alice'), null);
  await lock('LOCK.ACQUIRE', key, 'alice');
  await lock('LOCK.ACQUIRE', key, 'alice');
  check('release ALL', await lock('LOCK.RELEASE', key, 'alice', 'ALL'), 0);

  // Readers share; a writer does not.
  key = await freshKey();
  const ann = await lock('LOCK.RW', key, 'ann', 'READ');
  const ben = await lock('LOCK.RW', key, 'ben', 'READ');
  check('two readers, each with a fence', ben, (f) => isFence(ann) && f > ann);
  check('a writer is refused', await lock('LOCK.RW', key, 'cid', 'WRITE'), null);
  check('mode', asMap(await lock('LOCK.INFO', key)).mode, 'read');
  check('no upgrade beside another reader', await lock('LOCK.RW', key, 'ann', 'WRITE'), null);
  check('ben leaves', await lock('LOCK.RELEASE', key, 'ben'), 0);

  // The upgrade of a sole reader has a new fence; the way back to read keeps it.
  const written = await lock('LOCK.RW', key, 'ann', 'WRITE');
  check('upgrade', written, (f) => f > ben);
  await checkError('which of the two?', 'READ', lock('LOCK.RELEASE', key, 'ann'));
  check('a reader is refused by the writer', await lock('LOCK.RW', key, 'ben', 'READ'), null);
  check('downgrade', await lock('LOCK.RELEASE', key, 'ann', 'WRITE'), 1);
  check('same fence', await lock('LOCK.RW', key, 'ann', 'READ'), written);
  check('a reader fits again', await lock('LOCK.RW', key, 'ben', 'READ'), (f) => f > written);
  check('a mode not held: the total, unchanged', await lock('LOCK.RELEASE', key, 'ann', 'WRITE'), 2);
  check('ALL of a mode', await lock('LOCK.RELEASE', key, 'ann', 'READ', 'ALL'), 0);

  // Owners, notes and keys are bytes.
  key = Buffer.concat([Buffer.from(await freshKey()), Buffer.from([0x00, 0xff])]);
  await client.del(key);
  const owner = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
  const note = Buffer.from([0xff, 0x00]);
  check('a binary owner', await lock('LOCK.ACQUIRE', key, owner, 'NOTE', note), isFence);
  check("one byte less is another owner's", await lock('LOCK.ACQUIRE', key, owner.subarray(0, 255)), null);
  const bytes = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  holder = asMap(asMap(await bytes.sendCommand(['LOCK.INFO', key, 'OWNER', owner])).holders[0]);
  check('comes back as it was', holder.owner, owner);
  check('and so does the note', holder.note, note);
  check('and releases', await lock('LOCK.RELEASE', key, owner), 0);
  const tooLong = Buffer.concat([owner, note.subarray(1)]);
  await checkError('an owner of 257 bytes', 'LIMIT', lock('LOCK.ACQUIRE', key, tooLong));

  // A lease ends by itself; who comes late gets null, and the fences tell the resource.
  key = await freshKey();
  const late = await lock('LOCK.ACQUIRE', key, 'late', 'PX', 50);
  fence = await lock('LOCK.ACQUIRE', key, 'next', 'BLOCK', 10_000);
  check('taken after the lease', fence, (f) => isFence(f) && f > late);
  check('the late one cannot extend', await lock('LOCK.EXTEND', key, 'late', 'PX', 1000), null);
  check('nor release', await lock('LOCK.RELEASE', key, 'late'), null);

  // Who waits is let in by the release, in order; whose time is up gets null. A connection that waits does nothing
  // else.
  check('waited in vain', await lock('LOCK.ACQUIRE', key, 'bob', 'BLOCK', 20), null);
  const patient = await client.duplicate().connect();
  const waits = patient.sendCommand(['LOCK.ACQUIRE', key, 'carol', 'BLOCK', '0']);
  await waitFor('carol to wait', async () => asMap(await lock('LOCK.INFO', key)).waiting === 1);
  const waiter = asMap(asMap(await lock('LOCK.INFO', key)).waiters[0]);
  check('who waits, without a limit', [waiter.owner, waiter.left_ms], ['carol', null]);
  await checkError('twice', 'RETRY', lock('LOCK.ACQUIRE', key, 'carol', 'BLOCK', 0));
  check('the holder leaves', await lock('LOCK.RELEASE', key, 'next'), 0);
  check('and carol has it', await waits, (f) => f > fence);
  check('nobody holds it again', await lock('LOCK.RELEASE', key, 'carol'), 0);
  await patient.close();

  // A hold that ends with the connection that it was taken over, however long its lease.
  key = await freshKey();
  const worker = await client.duplicate().connect();
  fence = await worker.sendCommand(['LOCK.ACQUIRE', key, 'worker', 'EX', '3600', 'SESSION', '0', 'NOTE', 'host-2']);
  holder = await holderOf(key);
  check('bound to its connection', [holder.session, holder.client], [0, await worker.clientId()]);
  check('it keeps others out', await lock('LOCK.ACQUIRE', key, 'next'), null);
  await worker.close();
  check('closed, it does not', await lock('LOCK.ACQUIRE', key, 'next', 'BLOCK', 10_000), (f) => f > fence);
  check('and the next one leaves', await lock('LOCK.RELEASE', key, 'next'), 0);

  // Several locks in one step: all or none.
  const keys = [await freshKey(), await freshKey(), await freshKey()];
  const [made, fences] = await lock('LOCK.MACQUIRE', keys.length, ...keys, '*', 'PX', 30_000);
  const rise = (all) => all[0] < all[1] && all[1] < all[2];
  check('a fence for each', fences, (all) => all.length === 3 && all.every(isFence) && rise(all));
  check('none, if one is held', await lock('LOCK.MACQUIRE', 2, await freshKey(), keys[2], 'other', 'READ'), null);
  check('extend all', await lock('LOCK.MEXTEND', keys.length, ...keys, made, 'PX', 60_000), fences);
  check('release all', await lock('LOCK.MRELEASE', keys.length, ...keys, made), [0, 0, 0]);
  check('nobody holds them', await lock('LOCK.MRELEASE', keys.length, ...keys, made), [null, null, null]);
  await checkError('twice the same key', 'twice', lock('LOCK.MACQUIRE', 2, key, key, 'other'));

  // An operator takes a lock away, and sees later who lost what.
  check('forget what was', await lock('LOCK.LOG', 'RESET'), 'OK');
  fence = await lock('LOCK.ACQUIRE', key, 'stuck', 'NOTE', 'host-3 pid 7');
  check('break', await lock('LOCK.BREAK', key), 1);
  check('its owner is told so', await lock('LOCK.EXTEND', key, 'stuck', 'PX', 1000), null);
  const lost = (await lock('LOCK.LOG')).map(asMap);
  check('the log', lost.map((row) => [row.reason, row.key, row.owner]), [['break', key, 'stuck']]);
  check('the log: fence and note', [lost[0].fence, lost[0].note], [fence, 'host-3 pid 7']);
  const top = asMap(await lock('LOCK.TOP'));
  check('nobody waits', [top.waits, top.keys], [[], []]);

  // A pipeline, MULTI/EXEC, a script.
  key = await freshKey();
  const other = await freshKey();
  const piped = await client
    .multi()
    .addCommand(['LOCK.ACQUIRE', key, 'p'])
    .addCommand(['LOCK.ACQUIRE', key, 'q'])
    .addCommand(['LOCK.RELEASE', key, 'p'])
    .execAsPipeline();
  check('pipeline', piped, ([p, q, left]) => isFence(p) && q === null && left === 0);
  const together = await client
    .multi()
    .addCommand(['LOCK.ACQUIRE', key, 'm'])
    .set(other, 'written under the lock')
    .addCommand(['LOCK.RELEASE', key, 'm'])
    .exec();
  check('MULTI/EXEC', together, ([m, ok, left]) => isFence(m) && ok === 'OK' && left === 0);
  const script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'PX', ARGV[2])";
  fence = await client.eval(script, { keys: [key], arguments: ['lua', '5000'] });
  check('EVAL', fence, isFence);
  check('EVAL, refused', await client.eval(script, { keys: [key], arguments: ['other', '5000'] }), null);
  check("held by the script's owner", await lock('LOCK.RELEASE', key, 'lua', 'FENCE', fence), 0);

  // Errors have a code to read.
  await checkError('a key of another type', 'WRONGTYPE', lock('LOCK.ACQUIRE', other, 'alice'));
  await checkError('no lease of zero', 'PX', lock('LOCK.ACQUIRE', key, 'alice', 'PX', 0));
  await checkError('an unknown option', 'ERR', lock('LOCK.ACQUIRE', key, 'alice', 'FOREVER'));
  check('and leave no trace', await client.exists(key), 0);
  await checkError('LOCK.HOLD is not for clients', 'LOCK.HOLD', lock('LOCK.HOLD', key, 'alice', 0, 1, 1, 1, 1));

  const mine = [];
  for await (const keys of bytes.scanIterator({ MATCH: 'smoke:js:*' })) mine.push(...keys);
  check('tidy up', await client.del(mine), mine.length);
}

for (const protocol of [2, 3]) {
  const client = createClient({
    RESP: protocol,
    socket: { host: '127.0.0.1', port: Number(process.argv[2]), reconnectStrategy: false },
  });
  client.on('error', (error) => fail('the connection', error.message));
  await client.connect();
  await smoke(client, protocol).catch((error) => fail(`after ${checks} checks`, error.message));
  await client.close();
}
console.log(`smoke.mjs: ${checks} checks passed`);
