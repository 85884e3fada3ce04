// The replies of the commands through node-redis: what type each has, and what may be sent.
//
// node smoke.mjs PORT: talks to the server on 127.0.0.1:PORT, over RESP2 and RESP3, prints how many checks passed, and
// ends at the first that fails. Never starts a server, never touches a key but its own (smoke:js:*).

import { createRequire } from 'node:module';
import { isDeepStrictEqual } from 'node:util';

// tools/install.sh puts the package under target/, so that the tree stays as it was checked out.
const { createClient, RESP_TYPES } = createRequire(new URL('../../target/node/', import.meta.url))('redis');

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

  // Fences are safe integers, refusals are null; the server makes the owner.
  const key = await freshKey();
  const [owner, first] = await lock('LOCK.ACQUIRE', key, '*', 'PX', 30_000);
  check('an owner made by the server', owner, (made) => /^[0-9a-f]{32}$/i.test(made));
  check('its fence', first, isFence);
  check('another owner is refused', await lock('LOCK.ACQUIRE', key, 'other'), null);
  check('extend', await lock('LOCK.EXTEND', key, owner, 'PX', 60_000, 'FENCE', first), first);
  check('extend what one does not hold', await lock('LOCK.EXTEND', key, 'bob', 'PX', 1000), null);
  check('again, for reading', await lock('LOCK.RW', key, owner, 'READ'), first);
  await checkError('which of the two?', 'READ', lock('LOCK.RELEASE', key, owner));
  check('release one', await lock('LOCK.RELEASE', key, owner, 'READ'), 1);
  check('release the last', await lock('LOCK.RELEASE', key, owner, 'FENCE', first), 0);
  check('release what one does not hold', await lock('LOCK.RELEASE', key, owner), null);

  // INFO is a map, with maps in it; in RESP2 flat.
  let fence = await lock('LOCK.ACQUIRE', key, 'alice', 'PX', 10_000, 'NOTE', 'host-1 pid 42');
  check('type', await client.type(key), 'redislock');
  let info = await lock('LOCK.INFO', key);
  check('INFO of this protocol', Array.isArray(info), protocol === 2);
  info = asMap(info);
  check('INFO', [info.fence, info.holding, info.mode, info.holders.length], [fence, 1, 'write', 1]);
  let holder = asMap(info.holders[0]);
  check('holder: owner, mode, note', [holder.owner, holder.mode, holder.note], ['alice', 'write', 'host-1 pid 42']);
  check('holder: counts and fence', [holder.reads, holder.writes, holder.fence], [0, 1, fence]);
  check('holder: lease', holder.ttl_ms, (ms) => ms > 0 && ms <= 10_000);
  check('INFO COUNT 0 lists nobody', asMap(await lock('LOCK.INFO', key, 'COUNT', 0)).holders, []);
  check('INFO of a free key', await lock('LOCK.INFO', await freshKey()), null);

  // Owners, notes and keys are bytes.
  const binary = Buffer.concat([Buffer.from(await freshKey()), Buffer.from([0x00, 0xff])]);
  await client.del(binary);
  const anyBytes = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
  const note = Buffer.from([0xff, 0x00]);
  check('a binary owner', await lock('LOCK.ACQUIRE', binary, anyBytes, 'NOTE', note), isFence);
  check("one byte less is another owner's", await lock('LOCK.ACQUIRE', binary, anyBytes.subarray(0, 255)), null);
  const bytes = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  holder = asMap(asMap(await bytes.sendCommand(['LOCK.INFO', binary, 'OWNER', anyBytes])).holders[0]);
  check('comes back as it was', [holder.owner, holder.note], [anyBytes, note]);
  check('and releases', await lock('LOCK.RELEASE', binary, anyBytes), 0);
  const tooLong = Buffer.concat([anyBytes, note.subarray(1)]);
  await checkError('an owner of 257 bytes', 'LIMIT', lock('LOCK.ACQUIRE', binary, tooLong));

  // Who waits is let in by the release; whose time is up gets null. A connection that waits does nothing else.
  check('waited in vain', await lock('LOCK.ACQUIRE', key, 'bob', 'BLOCK', 20), null);
  const patient = await client.duplicate().connect();
  const waits = patient.sendCommand(['LOCK.ACQUIRE', key, 'carol', 'BLOCK', '0']);
  await waitFor('carol to wait', async () => asMap(await lock('LOCK.INFO', key)).waiting === 1);
  const waiter = asMap(asMap(await lock('LOCK.INFO', key)).waiters[0]);
  check('who waits, without a limit', [waiter.owner, waiter.left_ms], ['carol', null]);
  check('the holder leaves', await lock('LOCK.RELEASE', key, 'alice'), 0);
  check('and carol has it', await waits, (f) => f > fence);
  check('nobody holds it again', await lock('LOCK.RELEASE', key, 'carol'), 0);
  await patient.close();

  // A hold that ends with the connection that it was taken over, however long its lease.
  const worker = await client.duplicate().connect();
  fence = await worker.sendCommand(['LOCK.ACQUIRE', key, 'worker', 'EX', '3600', 'SESSION', '0']);
  holder = asMap(asMap(await lock('LOCK.INFO', key)).holders[0]);
  check('bound to its connection', [holder.session, holder.client], [0, await worker.clientId()]);
  await worker.close();
  check('closed, it is free', await lock('LOCK.ACQUIRE', key, 'next', 'BLOCK', 10_000), (f) => f > fence);
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

  // An operator takes a lock away, and sees later who lost what.
  check('forget what was', await lock('LOCK.LOG', 'RESET'), 'OK');
  fence = await lock('LOCK.ACQUIRE', key, 'stuck', 'NOTE', 'host-3 pid 7');
  check('break', await lock('LOCK.BREAK', key), 1);
  const lost = (await lock('LOCK.LOG')).map(asMap);
  check('the log', lost.map((row) => [row.reason, row.key, row.owner]), [['break', key, 'stuck']]);
  check('the log: fence and note', [lost[0].fence, lost[0].note], [fence, 'host-3 pid 7']);
  const top = asMap(await lock('LOCK.TOP'));
  check('nobody waits', [top.waits, top.keys], [[], []]);

  // A pipeline, MULTI/EXEC, a script.
  const other = await freshKey();
  for (const run of ['execAsPipeline', 'exec']) {
    const replies = await client
      .multi()
      .addCommand(['LOCK.ACQUIRE', key, 'p'])
      .addCommand(['LOCK.ACQUIRE', key, 'q'])
      .set(other, 'written under the lock')
      .addCommand(['LOCK.RELEASE', key, 'p'])
      [run]();
    check(run, replies, ([p, ...rest]) => isFence(p) && isDeepStrictEqual(rest, [null, 'OK', 0]));
  }
  const script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'PX', ARGV[2])";
  fence = await client.eval(script, { keys: [key], arguments: ['lua', '5000'] });
  check('EVAL', fence, isFence);
  check('EVAL, refused', await client.eval(script, { keys: [key], arguments: ['other', '5000'] }), null);
  check("held by the script's owner", await lock('LOCK.RELEASE', key, 'lua', 'FENCE', fence), 0);

  // Errors have a code to read.
  await checkError('a key of another type', 'WRONGTYPE', lock('LOCK.ACQUIRE', other, 'alice'));
  await checkError('an unknown option', 'ERR', lock('LOCK.ACQUIRE', key, 'alice', 'FOREVER'));
  check('and leave no trace', await client.exists(key), 0);

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
