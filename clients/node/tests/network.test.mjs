// Bad servers and bad networks: what hangs, dies without a word, is far away, full, or not the right one.
//
// The server is for these tests alone: they change its settings, and count what it was asked.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { asMap, LockLost, Locks, LockTimeout, LockUnreachable, libraries, port, run, tester, until } from './stage.mjs';

const costs = JSON.parse(readFileSync(new URL('../../costs.json', import.meta.url), 'utf8')).node;

for (const [library, { open, close }] of Object.entries(libraries)) {
  describe(library, () => {
    const tests = tester(library, 'network');
    const { ask, calls, isFree, newKey, waiting, wired } = tests;

    wired('leaves nothing behind when a server hangs in a try', async (wire, far) => {
      const key = newKey();
      const locks = new Locks(far, { lease: 600_000 });
      await (await locks.acquire(newKey())).release();
      const before = await calls('lock.acquire');
      wire.freeze(true);
      await assert.rejects(locks.tryAcquire(key), LockUnreachable);
      wire.freeze(false);
      await until('the request to arrive', async () => (await calls('lock.acquire')) > before);
      await until('the lock to be free', () => isFree(key));
    });

    wired('leaves nothing behind when a server hangs in a wait', async (wire, far) => {
      const key = newKey();
      const locks = new Locks(far, { lease: 600_000 });
      const first = await new Locks(tests.client).acquire(key);
      const wait = locks.acquire(key, { wait: 500 });
      await until('the wait', async () => (await waiting(key)) === 1);
      wire.freeze(true);
      await assert.rejects(wait, (error) => error instanceof LockUnreachable || error instanceof LockTimeout);
      await first.release();
      wire.freeze(false);
      await until('the lock to be free', () => isFree(key));
    });

    wired('ends a guard that has no answer long before the lease', async (wire, far) => {
      const lock = await new Locks(far, { lease: 600_000 }).acquire(newKey());
      wire.freeze(true);
      const tooLong = sleep(60_000, undefined, { ref: false }).then(() => assert.fail('it has no answer yet'));
      await Promise.race([assert.rejects(lock.guard('PING'), LockUnreachable), tooLong]);
      wire.freeze(false);
    });

    wired('repeats a release that had no answer until it has one', async (wire, far) => {
      const key = newKey();
      const lock = await new Locks(far, { lease: 600_000 }).acquire(key);
      wire.freeze(true);
      await assert.rejects(lock.release(), LockUnreachable);
      // What was sent is gone.
      wire.cut();
      assert.equal(await isFree(key), false);
      wire.freeze(false);
      await until('the lock to be free', () => isFree(key));
    });

    wired('lets a lock end, and gives back what it cannot hand over, when there is no answer', async (wire, far) => {
      const locks = new Locks(far, { lease: 600_000 });
      for (const lose of [() => wire.freeze(true), () => wire.cut()]) {
        const keys = [newKey(), newKey()];
        const [ended, handed] = await Promise.all(keys.map((key) => locks.acquire(key)));
        wire.left = 0;
        lose();
        const outcomes = await Promise.allSettled([ended.releaseAfter(1_000), handed.detach()]);
        for (const { reason } of outcomes) assert.ok(reason instanceof LockUnreachable, reason);
        // What was sent is gone.
        wire.cut();
        for (const key of keys) assert.equal(await isFree(key), false);
        wire.left = Number.POSITIVE_INFINITY;
        wire.freeze(false);
        for (const key of keys) await until('the lock to be free', () => isFree(key));
      }
    });

    wired('has not lost a lock that ended as it should before it was asked again', async (wire, far) => {
      const key = newKey();
      const lock = await new Locks(far).acquire(key);
      wire.answer = () => Buffer.alloc(0);
      const ended = lock.releaseAfter(100);
      await until('its end', () => isFree(key));
      wire.answer = (bytes) => bytes;
      // On a machine that is late both requests may have no answer.
      await ended.catch((error) => assert.ok(error instanceof LockUnreachable, error));
      assert.equal(lock.lost, false);
    });

    // --- renewals that the server reads late ---

    const readLate = async (held) => {
      const before = await calls('lock.extend');
      held.arrive();
      await until('the late renewals', async () => (await calls('lock.extend')) > before);
    };

    /** Or it has ended meanwhile, on a busy machine. */
    const assertEndsIn = async (key, ms) => {
      const info = await tests.info(key);
      const left = info === null ? 0 : asMap(info.holders[0]).ttl_ms;
      assert.ok(left <= ms && (ms < 60_000 || left > ms - 60_000), `${key} ends in ${left} ms, and not in ${ms}`);
    };

    wired('lets a lock end as it was asked to, though a renewal is read later', async (wire, far) => {
      const locks = new Locks(far, { lease: 9_000 });
      const keys = [newKey(), newKey(), newKey(), newKey(), newKey()];
      const [short, long, handed] = await Promise.all(keys.slice(0, 3).map((key) => locks.acquire(key)));
      const both = await locks.acquire(keys.slice(3));
      const held = wire.holdBack('LOCK.EXTEND');
      const before = await calls('lock.extend');
      await until('renewals over a new connection', async () => (await calls('lock.extend')) >= before + keys.length);
      assert.ok(held.isHeld());
      await Promise.all([short.releaseAfter(3_000), long.releaseAfter(600_000), both.releaseAfter(600_000)]);
      const other = new Locks(tests.client, { lease: 600_000 });
      const adopted = await other.adopt({ ...(await handed.detach()), lease: 600_000 });
      await readLate(held);
      await assertEndsIn(keys[0], 3_000);
      for (const key of keys.slice(1)) await assertEndsIn(key, 600_000);
      await adopted.release();
    });

    wired('lets a lock end as it was asked to, though a request on its way is read later', async (wire, far) => {
      const key = newKey();
      const lock = await new Locks(far, { lease: 600_000 }).acquire(key);
      const held = wire.holdBack('LOCK.EXTEND');
      const noted = lock.setNote('late').catch((error) => error);
      await until('the request', held.isHeld);
      // Its connection is given up for another one.
      await lock.check().catch((error) => assert.ok(error instanceof LockUnreachable, error));
      await lock.releaseAfter(100_000);
      await readLate(held);
      await assertEndsIn(key, 100_000);
      wire.cut();
      await noted;
    });

    wired('lets a lock end as it was asked to, though the first request for that is read later', async (wire, far) => {
      const key = newKey();
      const lock = await new Locks(far).acquire(key);
      const held = wire.holdBack('LOCK.EXTEND');
      await lock.releaseAfter(100_000);
      assert.ok(held.isHeld());
      await sleep(1_000);
      const { holders } = await tests.info(key);
      await readLate(held);
      await assertEndsIn(key, asMap(holders[0]).ttl_ms);
    });

    wired('changes no later hold of its owner by a request for the end that is read late', async (wire, far) => {
      const key = newKey();
      const outer = await new Locks(tests.client).acquire(newKey());
      const lock = await new Locks(far).acquire(key, { within: outer });
      const held = wire.holdBack('LOCK.EXTEND');
      await lock.releaseAfter(60_000);
      assert.ok(held.isHeld());
      const later = await new Locks(tests.client, { lease: 600_000 }).acquire(key, { within: outer });
      assert.equal(later.owner, lock.owner);
      await readLate(held);
      await assertEndsIn(key, 600_000);
      await later.release();
      await outer.release();
    });

    /** Locks with a request that the server may read late. */
    const doubted = async (wire, locks, keys) => {
      const held = await Promise.all(keys.map((key) => locks.acquire(key)));
      wire.left = 0;
      wire.cut();
      for (const lock of held) await assert.rejects(lock.setNote('late'), LockUnreachable);
      wire.left = Number.POSITIVE_INFINITY;
      return held;
    };

    wired('lets a lock end, and hands it over, though the answer to that is lost', async (wire, far) => {
      const keys = [newKey(), newKey()];
      const [ended, handed] = await doubted(wire, new Locks(far, { lease: 600_000 }), keys);
      for (const act of [() => ended.releaseAfter(500_000), () => handed.detach()]) {
        let deaf;
        wire.rewrite = (bytes, socket) => {
          if (bytes.includes('LOCK.EXTEND')) deaf ??= socket;
          return bytes;
        };
        wire.answer = (bytes, socket) => (socket === deaf ? Buffer.alloc(0) : bytes);
        const token = await act();
        assert.ok(deaf);
        if (!token) continue;
        const adopted = await new Locks(tests.client).adopt(token);
        assert.ok(adopted.fence > token.fence && token.fence === handed.fence);
        await adopted.release();
      }
      await assertEndsIn(keys[0], 500_000);
    });

    wired('gives back what it cannot hand over, as no answer comes', async (wire, far) => {
      const key = newKey();
      const [lock] = await doubted(wire, new Locks(far, { lease: 600_000 }), [key]);
      const before = await calls('lock.extend');
      const deaf = new Set();
      wire.rewrite = (bytes, socket) => {
        if (bytes.includes('LOCK.EXTEND')) deaf.add(socket);
        return bytes;
      };
      wire.answer = (bytes, socket) => (deaf.has(socket) ? Buffer.alloc(0) : bytes);
      await assert.rejects(lock.detach(), LockUnreachable);
      assert.ok((await calls('lock.extend')) > before);
      await until('the lock to be free', () => isFree(key));
    });

    wired('lets a lock end under its own fence, if no higher one can be had yet', async (wire, far) => {
      const key = newKey();
      const [lock] = await doubted(wire, new Locks(far, { lease: 600_000 }), [key]);
      // After the year 2200.
      const later = (text) => text.replace(/(?<=MINFENCE\r\n\$16\r\n)1/, '8');
      wire.rewrite = (bytes) => Buffer.from(later(bytes.toString('latin1')), 'latin1');
      await lock.releaseAfter(300_000);
      await assertEndsIn(key, 300_000);
    });

    it('gives back what the server refuses to hand over', async () => {
      const [key, user] = [newKey(), newKey()];
      await ask('ACL', 'SETUSER', user, 'on', '>secret', '~*', '+@all');
      const limited = await open(port, { username: user, password: 'secret' });
      const told = [];
      const locks = new Locks(limited, {
        lease: 600_000,
        onTrouble: (error, kind) => told.push([kind, error.message]),
      });
      const lock = await locks.acquire(key);
      await ask('ACL', 'SETUSER', user, '-lock.extend');
      await assert.rejects(lock.detach(), /NOPERM/);
      await until('the lock to be free', () => isFree(key));
      assert.match(told.join(), /^release,.*could not be handed over/);
      close(limited);
      await ask('ACL', 'DELUSER', user);
    });

    wired('keeps a lock that is granted to a second request when the first is answered late', async (wire, far) => {
      const key = newKey();
      const locks = new Locks(far);
      await (await locks.acquire(newKey())).release();
      wire.silence();
      const before = await calls('lock.acquire');
      const lock = await locks.acquire(key);
      wire.freeze(false);
      await until('the first request', async () => (await calls('lock.acquire')) >= before + 2);
      assert.equal(await lock.check(), true);
      await lock.release();
      assert.equal(await isFree(key), true);
    });

    wired('goes on over new connections when all die without a word', async (wire, far) => {
      const keys = [newKey(), newKey(), newKey()];
      const locks = new Locks(far);
      const held = await locks.acquire(keys[0], { lease: 6000 });
      const blocker = await new Locks(tests.client).acquire(keys[1]);
      const waits = [locks.acquire(keys[1]), locks.acquire(keys[1])];
      await until('the waits', async () => (await waiting(keys[1])) === 2);
      await blocker.release();
      for (const wait of waits) await (await wait).release();
      // What was heard of just now would be taken for well.
      await sleep(2_000);
      wire.silence();
      const tried = await locks.tryAcquire(keys[2]);
      assert.equal(await held.check(), true);
      const again = locks.acquire(keys[2], { wait: 20_000 });
      await tried.release();
      await (await again).release();
      const renewals = await calls('lock.extend');
      await until('a renewal', async () => (await calls('lock.extend')) > renewals);
      assert.equal(held.lost, false);
      await held.release();
    });

    wired('keeps 450 locks of a server that is far away, and renews them together', async (wire, far) => {
      const locks = new Locks(far, { lease: 6_000 });
      const held = await Promise.all(Array.from({ length: 450 }, () => locks.acquire(newKey())));
      wire.delay = 100;
      let extends_ = 0;
      let writes = 0;
      wire.rewrite = (bytes) => {
        const found = bytes.toString('latin1').split('LOCK.EXTEND').length - 1;
        extends_ += found;
        if (found > 0) writes += 1;
        return bytes;
      };
      await until('three rounds', () => extends_ >= 450 * 3);
      assert.deepEqual(
        held.filter((lock) => lock.lost),
        [],
      );
      assert.ok(writes < extends_ / 10, `${writes} writes for ${extends_} renewals`);
      await Promise.all(held.map((lock) => lock.release()));
    });

    wired('takes for a free lock what is written down', async (wire, far) => {
      const locks = new Locks(far);
      const key = newKey();
      await (await locks.acquire(key)).release();
      const [asked, opened] = [await calls(), wire.opened];
      for (let turn = 0; turn < 50; turn += 1) await (await locks.acquire(key)).release();
      const requests = ((await calls()) - asked) / 50;
      assert.deepEqual({ requests, connections: wire.opened - opened }, costs.free);
    });

    const contended = async (wire, far, options) => {
      const key = newKey();
      // No grant is so old that it is extended.
      const locks = new Locks(far, { lease: 3_600_000, ...options });
      const takeTurns = (times) =>
        Promise.all(
          Array.from({ length: 8 }, async () => {
            for (let turn = 0; turn < times; turn += 1) await (await locks.acquire(key)).release();
          }),
        );
      await takeTurns(2);
      const [asked, opened] = [await calls(), wire.opened];
      await takeTurns(50);
      // Eight begin without a place to wait on: with a request more each, and perhaps a connection.
      const requests = Math.ceil(((await calls()) - asked - 3 * 8) / 400 - 0.2);
      return { requests, connections: Math.max(0, wire.opened - opened - 8) };
    };

    wired('takes for a lock that others want what is written down', async (wire, far) => {
      assert.deepEqual(await contended(wire, far, { maxBlocking: 32 }), costs.contended);
    });

    wired('takes for one that it is told of what is written down', async (wire, far) => {
      assert.deepEqual(await contended(wire, far, { maxBlocking: 0 }), costs.notified);
    });

    wired('has few connections for many waits, and keeps fewer', async (wire, far) => {
      const key = newKey();
      const locks = new Locks(far, { maxBlocking: 32 });
      const lock = await locks.acquire(key);
      const waits = Array.from({ length: 100 }, () => locks.acquire(key));
      await until('the waits', async () => (await waiting(key)) === 100);
      assert.ok(wire.open <= 1 + 2 + 32, `${wire.open} connections`);
      await lock.release();
      for (const wait of waits) await (await wait).release();
      await until('connections to be closed', () => wire.open <= 1 + 2 + 8);
      await (await locks.acquire(key)).release();
      assert.ok(wire.open <= 1 + 2 + 8, `${wire.open} connections`);
    });

    wired('holds and waits where no more connections can be had', async (wire, far) => {
      const [key, heldKey] = [newKey(), newKey()];
      const locks = new Locks(far);
      const held = await locks.acquire(heldKey, { lease: 6_000 });
      wire.most = wire.open + 2;
      const lock = await locks.acquire(key);
      const waits = Array.from({ length: 6 }, () => locks.acquire(key));
      await until('the waits', async () => (await waiting(key)) === 6);
      const before = await calls('lock.extend');
      await until('a renewal', async () => (await calls('lock.extend')) > before);
      await lock.release();
      await Promise.all(waits.map(async (wait) => (await wait).release()));
      assert.equal(held.lost, false);
      await held.release();
    });

    wired('waits while memory is full, and says so once', async (_wire, far) => {
      const key = newKey();
      const told = [];
      const locks = new Locks(far, { onTrouble: (error, kind) => told.push([kind, error.message]) });
      await ask('CONFIG', 'SET', 'maxmemory', '1');
      try {
        await assert.rejects(locks.tryAcquire(newKey()), /OOM/);
        const wait = locks.acquire(key);
        await sleep(1_000);
        assert.equal(await isFree(key), true);
        await ask('CONFIG', 'SET', 'maxmemory', '0');
        await (await wait).release();
      } finally {
        await ask('CONFIG', 'SET', 'maxmemory', '0');
      }
      assert.deepEqual(
        told.map(([kind]) => kind),
        ['memory'],
      );
      assert.match(told[0][1], /maxmemory/);
    });

    wired('says at the first attempt that there is no server, no module, or no right', async (wire, far) => {
      const told = [];
      const tell = (error, kind) => told.push([kind, error.message]);
      const stop = new AbortController();
      const kinds = () => told.map(([kind]) => kind).join();

      wire.rewrite = (bytes) => Buffer.from(bytes.toString('latin1').replace('LOCK.ACQUIRE', 'LOCK.ACQUIRF'), 'latin1');
      await assert.rejects(new Locks(far, { onTrouble: tell }).acquire(newKey()), /load the module redis-lock/);
      assert.equal(kinds(), 'no-module');

      wire.rewrite = (bytes) => Buffer.from(bytes.toString('latin1').replace('QUEUE', 'OTHER'), 'latin1');
      await assert.rejects(new Locks(far, { onTrouble: tell }).acquire(newKey()), /too old: this helper needs 1\.0/);
      assert.equal(kinds(), 'no-module,old-module');
      told.pop();

      wire.left = 0;
      wire.cut();
      const waits = [1, 2].map(() => new Locks(far, { onTrouble: tell }).acquire(newKey(), { signal: stop.signal }));
      const ends = waits.map((wait) => assert.rejects(wait, { name: 'AbortError' }));
      await until('trouble', () => kinds() === 'no-module,unreachable,unreachable');
      assert.match(told[1][1], /host and port/);
      await sleep(500);
      stop.abort();
      await Promise.all(ends);
      assert.equal(kinds(), 'no-module,unreachable,unreachable');

      const user = newKey();
      await ask('ACL', 'SETUSER', user, 'on', '>secret', '~*', '+@all', '-lock.acquire');
      const other = await open(port, { username: user, password: 'secret' });
      await assert.rejects(new Locks(other, { onTrouble: tell }).acquire(newKey()), /NOPERM/);
      assert.match(told[3].join(), /^no-right.*LOCK\.\*/);
      close(other);
      await ask('ACL', 'DELUSER', user);
    });

    wired('tells of losses and of renewals that fail, and a callback that fails harms nothing', async (wire, far) => {
      const told = [];
      const onTrouble = (_error, kind) => {
        told.push(kind);
        if (told.length % 2 === 0) throw new Error('of the application');
        return Promise.reject(new Error('of the application'));
      };
      const locks = new Locks(far, { onTrouble, lease: 6_000 });
      const keys = [newKey(), newKey()];
      const [kept, lost] = [await locks.acquire(keys[0]), await locks.acquire(keys[1])];
      wire.freeze(true);
      await until('a renewal to fail', () => told.includes('renewal'));
      wire.cut();
      wire.freeze(false);
      const before = await calls('lock.extend');
      await until('renewals', async () => (await calls('lock.extend')) > before);
      await ask('LOCK.BREAK', keys[1]);
      await once(lost.signal, 'abort');
      assert.deepEqual(told, ['renewal', 'lost']);
      await kept.release();
    });

    wired('knows of a loss when the event loop was blocked', async (_wire, far) => {
      const lock = await new Locks(far, { lease: 1_000 }).acquire(newKey());
      const end = performance.now() + 1_000;
      while (performance.now() < end);
      lock.signal.throwIfAborted();
      assert.throws(() => lock.throwIfLost(), LockLost);
      assert.equal(lock.signal.aborted, true);
      await assert.rejects(lock.release(), LockLost);
    });

    wired('shows the loss as the cause of what the body throws', async (_wire, far) => {
      const locks = new Locks(far);
      const lostIn = async (error) => {
        const key = newKey();
        const body = async () => {
          await ask('LOCK.BREAK', key);
          throw error;
        };
        return await locks.using(key, body).catch((thrown) => thrown);
      };
      const plain = new RangeError('of the body');
      assert.equal(await lostIn(plain), plain);
      assert.ok(plain.cause instanceof LockLost);
      const cause = new Error('its own');
      assert.equal((await lostIn(new RangeError('of the body', { cause }))).cause, cause);
      const frozen = Object.freeze(new RangeError('of the body'));
      assert.equal(await lostIn(frozen), frozen);
      assert.equal(await lostIn('no error'), 'no error');
    });

    it('renews no lock that nothing refers to', async () => {
      const key = newKey();
      const words = `'LOCK.INFO', ${JSON.stringify(key)}`;
      const asked = library === 'ioredis' ? `client.call(${words})` : `client.sendCommand([${words}])`;
      const code = `
        await (async () => { await locks.acquire(${JSON.stringify(key)}, { lease: 6000 }); })();
        const kept = await locks.acquire(${JSON.stringify(newKey())}, { lease: 6000 });
        while ((await ${asked}) !== null) {
          await new Promise((resolve) => setTimeout(resolve, 100));
          gc();
        }
        console.log(kept.lost);
        process.exit();`;
      assert.deepEqual(await run(library, code, '--expose-gc'), { status: 0, output: 'false\n' });
    });

    it('is lost when the machine slept for longer than the lease', { skip: process.platform !== 'linux' }, async () => {
      const keys = [newKey(), newKey()].map((key) => JSON.stringify(key));
      const code = `
        const [asked, told] = [
          await locks.acquire(${keys[0]}, { lease: 60_000 }),
          await locks.acquire(${keys[1]}, { lease: 60_000 }),
        ];
        const started = performance.now();
        jump = 70;
        console.log(asked.lost);
        told.signal.addEventListener('abort', () => {
          console.log(performance.now() - started < 19_000);
          process.exit();
        });
        setTimeout(() => {}, 60_000);`;
      assert.deepEqual(await run(library, code), { status: 0, output: 'true\ntrue\n' });
    });
  });
}
