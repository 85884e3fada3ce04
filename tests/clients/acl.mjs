// The locks through node-redis, as the user that docs/operations/acl.md makes for applications.
//
// node acl.mjs PORT NAME PASSWORD: talks to the server on 127.0.0.1:PORT, over RESP2 and RESP3, prints how many checks
// passed, and ends at the first that fails. Never starts a server, never touches a key but lock:acl:*.

import { createRequire } from 'node:module';
import { isDeepStrictEqual } from 'node:util';

const { createClient } = createRequire(new URL('../../target/node/', import.meta.url))('redis');

let checks = 0;

function check(what, got, want) {
  if (!(typeof want === 'function' ? want(got) : isDeepStrictEqual(got, want))) {
    console.error(`acl.mjs: ${what}: got`, got, `want ${String(want)}`);
    process.exit(1);
  }
  checks += 1;
}

const asMap = (reply) =>
  Array.isArray(reply)
    ? Object.fromEntries(reply.flatMap((name, at) => (at % 2 ? [] : [[String(name), reply[at + 1]]])))
    : reply;

const [port, username, password] = process.argv.slice(2);
for (const RESP of [2, 3]) {
  const settings = { socket: { host: '127.0.0.1', port: Number(port) }, RESP, username, password, name: 'worker' };
  const client = await createClient(settings).on('error', (error) => check('no error', error, null)).connect();
  const other = await client.duplicate().connect();
  const lock = (...args) => client.sendCommand(args.map(String));
  const refused = async (...args) => {
    const reply = await lock(...args).catch((error) => error.message);
    check(args.join(' '), reply, (text) => String(text).startsWith('NOPERM '));
  };
  const key = 'lock:acl:k';

  check('ping', await client.ping(), 'PONG');
  const fence = await lock('LOCK.ACQUIRE', key, 'alice', 'PX', 60_000, 'SESSION', 5_000);
  check('its fence', fence, (f) => Number.isSafeInteger(f) && f > 0);
  check('no replica', await lock('WAIT', 0, 0), 0);
  check('refused', await lock('LOCK.ACQUIRE', key, 'bob'), null);
  const waits = other.sendCommand(['LOCK.ACQUIRE', key, 'bob', 'BLOCK', '20000']);
  let ended = false;
  waits.finally(() => (ended = true)).catch(() => {});
  while (asMap(await lock('LOCK.INFO', key)).waiting === 0 && !ended);
  check('alice leaves', await lock('LOCK.RELEASE', key, 'alice'), 0);
  check('bob has it', await waits, (f) => f > fence);
  check('release', await lock('LOCK.RELEASE', key, 'bob'), 0);
  check('several', await lock('LOCK.MACQUIRE', 2, key, `${key}:second`, 'carol'), (fences) => fences.length === 2);
  check('release them', await lock('LOCK.MRELEASE', 2, key, `${key}:second`, 'carol'), [0, 0]);
  await refused('LOCK.ACQUIRE', `other:${key}`, 'alice');
  await refused('LOCK.MACQUIRE', 2, key, `other:${key}`, 'alice');
  await refused('LOCK.BREAK', key);
  await refused('LOCK.TOP');
  await refused('LOCK.LOG', 'RESET');
  await refused('LOCK.HOLD', key, 'alice', 0, 0);
  await refused('SET', key, 'x');
  await other.close();
  await client.close();
}
console.log(`acl.mjs: ${checks} checks passed`);
