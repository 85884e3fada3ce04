// The helper as an application in Node.js uses it. What all languages have in common is in tests/helpers.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { before, describe, it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  compiled,
  LockError,
  LockLost,
  LockMisuse,
  Locks,
  LockTimeout,
  LockUnreachable,
  libraries,
  port,
  run,
  tester,
  until,
  Wire,
} from './stage.mjs';

for (const [library, { open, send, close, strings }] of Object.entries(libraries)) {
  describe(library, () => {
    const tests = tester(library, 'node');
    const { ask, calls, info, keyOf, newKey, waiting, wired } = tests;
    let locks;
    before(() => {
      locks = new Locks(tests.client);
    });

    it('runs the body under the lock, and gives its value', async () => {
      const key = newKey();
      const value = await locks.using(key, async (signal, lock) => {
        assert.equal(signal, lock.signal);
        assert.equal((await info(key)).fence, lock.fence);
        return 'done';
      });
      assert.equal(value, 'done');
      assert.equal(await info(key), null);
    });

    wired('throws what the body throws, also if the lock is lost or cannot be released', async (wire, far) => {
      const key = newKey();
      const body = (spoil) => async () => {
        await spoil();
        throw new RangeError('of the body');
      };
      for (const spoil of [() => undefined, () => ask('LOCK.BREAK', key), () => wire.close()]) {
        await assert.rejects(new Locks(far).using(key, { lease: 1000 }, body(spoil)), /^RangeError: of the body$/);
      }
    });

    it('says at the end that the lock was lost, whatever the body returned', async () => {
      const key = newKey();
      const body = async () => ask('LOCK.BREAK', key);
      const isLoss = (error) => error instanceof LockLost && error instanceof LockError && error.name === 'LockLost';
      await assert.rejects(locks.using(key, body), isLoss);
    });

    it('throws LockLost where a function that took the signal says AbortError', async () => {
      const stop = new AbortController();
      const lease = { lease: 1000 };
      const slept = (key, isStopped) => async (signal) => {
        const asleep = sleep(60_000, undefined, { signal: AbortSignal.any([signal, stop.signal]) });
        if (isStopped) stop.abort();
        else await ask('LOCK.BREAK', key);
        await asleep;
      };
      const lost = newKey();
      await assert.rejects(locks.using(lost, lease, slept(lost)), LockLost);
      // What the body makes of the loss is its own, and so is another AbortError, whether the lock is held or lost.
      const wrapped = newKey();
      const wraps = async (signal) => {
        await ask('LOCK.BREAK', wrapped);
        if (!signal.aborted) await once(signal, 'abort');
        throw new RangeError('of the body', { cause: signal.reason });
      };
      await assert.rejects(locks.using(wrapped, lease, wraps), RangeError);
      const stopped = newKey();
      const isOwn = (error) => error.name === 'AbortError' && error.cause === stop.signal.reason;
      await assert.rejects(locks.using(stopped, lease, slept(stopped, true)), isOwn);
      const own = Object.assign(new Error('of the body'), { name: 'AbortError' });
      for (const spoil of [() => undefined, (key) => ask('LOCK.BREAK', key)]) {
        const key = newKey();
        const body = async () => {
          await spoil(key);
          throw own;
        };
        await assert.rejects(locks.using(key, lease, body), (error) => error === own);
      }
    });

    wired('takes a new connection when its own was closed while nobody used it', async (wire, far) => {
      const key = newKey();
      const own = new Locks(far);
      const lock = await own.acquire(key);
      for (const use of [() => own.tryAcquire(newKey()), () => lock.check(), () => lock.guard('PING')]) {
        wire.cut();
        await sleep(100);
        const inner = await use();
        if (inner.release) await inner.release();
      }
      await lock.release();
    });

    it('tries once, or waits as long as it may', async () => {
      const key = newKey();
      const lock = await locks.acquire(key);
      assert.equal(await locks.tryAcquire(key), null);
      assert.equal(await locks.tryAcquire(key, { wait: 50 }), null);
      await assert.rejects(locks.acquire(key, { wait: 0 }), LockTimeout);
      assert.equal(await waiting(key), 0);
      await lock.release();
      const next = await locks.tryAcquire(key);
      assert.ok(next.fence > lock.fence && Number.isSafeInteger(next.fence));
      await next.release();
    });

    it('leaves the queue when the signal is aborted, and throws its reason', async () => {
      const key = newKey();
      const lock = await locks.acquire(key);
      const control = new AbortController();
      const wait = locks.acquire(key, { signal: control.signal });
      await until('the wait', async () => (await waiting(key)) === 1);
      // It looks like a reply of the server.
      control.abort(new Error('STOP says the application'));
      await assert.rejects(wait, /STOP says the application/);
      assert.equal(await waiting(key), 0);
      await lock.release();
      await assert.rejects(locks.acquire(key, { signal: AbortSignal.abort() }), { name: 'AbortError' });
      assert.equal(await info(key), null);
    });

    wired('sends nothing more once it is cancelled', async (wire, far) => {
      const key = newKey();
      const lock = await locks.acquire(key);
      const own = new Locks(far, { maxBlocking: 1 });
      assert.equal(await own.tryAcquire(key), null);
      const control = new AbortController();
      wire.isSlow = true;
      const ended = own.acquire(key, { signal: control.signal }).catch((error) => error);
      await until('a connection to be on its way', async () => wire.slow === 1 && (await waiting(key)) === 1);
      control.abort();
      await until('the place to end', async () => (await waiting(key)) === 0);
      wire.freeze(false);
      const seen = [];
      const watch = async () => seen.push(await waiting(key));
      while ((await Promise.race([ended, watch()])) instanceof Error === false);
      assert.ok(!seen.includes(1), 'the wait that is given up does not begin again');
      await lock.release();
    });

    it('releases once, however often it is asked', async () => {
      const key = newKey();
      const lock = await locks.acquire(key);
      assert.equal(lock.release(), lock.release());
      await lock.release();
      await lock[Symbol.asyncDispose]();
      assert.equal(lock.lost, false);
      assert.equal(lock.signal.aborted, false);
      assert.equal(await lock.check(), false);
      await assert.rejects(lock.guard('SET', key, '1'), LockMisuse);
    });

    it('disposes: a loss is thrown, a server that is gone is not', async () => {
      const key = newKey();
      const lock = await locks.acquire(key);
      await lock[Symbol.asyncDispose]();
      assert.equal(await info(key), null);

      const lost = await locks.acquire(key);
      await ask('LOCK.BREAK', key);
      await assert.rejects(lost[Symbol.asyncDispose](), LockLost);

      const wire = await new Wire().listen();
      const far = await open(wire.port);
      const cut = await new Locks(far).acquire(key);
      wire.close();
      await cut[Symbol.asyncDispose]();
      close(far);
      await ask('LOCK.BREAK', key);
    });

    const block = compiled(`export default async (locks, key, body) => {
      await using lock = await locks.acquire(key);
      await using none = await locks.tryAcquire(key);
      return await body(lock, none);
    }`);
    it('is released at the end of its block by await using', { skip: block === undefined }, async () => {
      const key = newKey();
      const module = `data:text/javascript,${encodeURIComponent(block)}`;
      const { default: run } = await import(module);
      const fence = await run(locks, key, async (lock, none) => {
        assert.equal(none, null);
        return lock.fence;
      });
      assert.ok(fence > 0);
      assert.equal(await info(key), null);
      await assert.rejects(
        run(locks, key, async () => ask('LOCK.BREAK', key)),
        LockLost,
      );
    });

    it('guards writes of text, numbers and bytes', async () => {
      const key = newKey();
      const lock = await locks.acquire(key);
      assert.equal(await lock.guard('SET', `${key}:data`, Buffer.from('41')), 'OK');
      assert.equal(await lock.guard('INCRBY', `${key}:data`, 1), 42);
      assert.equal(await lock.guard('GET', `${key}:data`), '42');
      await assert.rejects(lock.guard('LPUSH', `${key}:data`, 'x'), /^\w*: ?WRONGTYPE/);
      await lock.release();
      await ask('DEL', `${key}:data`);
    });

    it('refuses what cannot be meant, before anything is sent', async () => {
      const key = newKey();
      const outer = await locks.acquire(key);
      const wrong = [
        { lease: 30 },
        { lease: Number.NaN },
        { wait: -1 },
        { wait: '2000' },
        { limit: 1.5 },
        { limit: 2, take: 3 },
        { take: 2 },
        { limit: 2, shared: true },
        { within: outer },
        { within: {} },
      ];
      for (const options of wrong)
        await assert.rejects(locks.acquire(key, options), LockMisuse, JSON.stringify(options));
      await assert.rejects(locks.acquire([key, key]), LockMisuse);
      await assert.rejects(locks.acquire([]), LockMisuse);
      for (const none of [undefined, null, {}, 'redis://', [], () => undefined])
        assert.throws(() => new Locks(none), TypeError);
      assert.throws(() => new Locks(tests.client, { maxBlocking: -1 }), LockMisuse);
      await assert.rejects(locks.acquire(key, { lease: '5000' }), {
        message: 'lease must be a number of milliseconds',
      });
      await outer.release();
      await assert.rejects(locks.acquire(newKey(), { within: outer }), LockMisuse);
    });

    it('refuses the arguments of other libraries, and options that it does not know', async () => {
      const key = newKey();
      const body = () => assert.fail('the body runs');
      const misuse = (message) => ({ name: 'LockMisuse', message });
      const noObject = misuse('options must be an object');
      for (const options of [5000, null, 'report', body]) {
        await assert.rejects(locks.acquire([key], options), noObject);
        await assert.rejects(locks.tryAcquire([key], options), noObject);
        await assert.rejects(locks.using([key], options, body), noObject);
        assert.throws(() => new Locks(tests.client, options), noObject);
      }
      for (const name of ['leese', 'retryCount', 'toString']) {
        const unknown = misuse(`unknown option "${name}"`);
        const options = { wait: 0, [name]: 5000 };
        await assert.rejects(locks.acquire(key, options), unknown);
        await assert.rejects(locks.tryAcquire(key, options), unknown);
        await assert.rejects(locks.using(key, options, body), unknown);
        assert.throws(() => new Locks(tests.client, options), unknown);
      }
      await assert.rejects(locks.acquire(key, AbortSignal.timeout(1)), LockMisuse);
      const noBody = misuse('body must be a function: using(keys, options, body)');
      for (const rest of [[], [{}], [{}, {}], [{}, undefined], [5000], [5000, { retryCount: 1 }, body]])
        await assert.rejects(locks.using([key], ...rest), noBody, JSON.stringify(rest));
      assert.equal(await info(key), null);
      assert.equal(await locks.using(key, undefined, () => 'done'), 'done');
      await (await locks.acquire(key, undefined)).release();
    });

    it('has fences as numbers, whatever the client makes of numbers', async () => {
      const own = await open(port, strings());
      const keys = [`{${newKey()}}a`, `{${keyOf()}}b`];
      const prefixed = new Locks(own);
      const lock = await prefixed.acquire(keys);
      assert.deepEqual(lock.fences.map(Number.isSafeInteger), [true, true]);
      assert.equal((await info(prefixed.keyPrefix + keys[1])).fence, lock.fences[1]);
      assert.deepEqual(lock.keys, keys);
      await lock.release();
      close(own);
    });

    wired('waits by asking again where it gets no connection of its own', async (wire, far) => {
      const key = newKey();
      const lock = await locks.acquire(key);
      let last = lock;
      for (const options of [{}, { maxBlocking: 1 }]) {
        wire.left = 1;
        const wait = new Locks(far, options).acquire(key);
        await until('the place', async () => (await waiting(key)) === 1);
        await until('other connections to be refused', () => wire.left === 0);
        await last.release();
        const next = await wait;
        assert.ok(next.fence > last.fence);
        last = next;
      }
      await last.release();
    });

    wired('sends nothing later than it should', async (wire, far) => {
      const key = newKey();
      const own = new Locks(far);
      await (await own.acquire(key)).release();
      wire.left = 0;
      wire.cut();
      await assert.rejects(own.acquire(key, { wait: 0 }), LockUnreachable);
      wire.left = 9;
      // The library itself is connected again. Nothing was kept for it.
      assert.equal(await send(far, 'PING'), 'PONG');
      assert.equal(await info(key), null);
      await (await own.acquire(key)).release();
    });

    wired('renews on one server while another hangs', async (wire, far) => {
      const [near, distant] = [newKey(), newKey()];
      const hanging = await new Locks(far).acquire(distant, { lease: 1000 });
      const lock = await locks.acquire(near, { lease: 6000 });
      wire.freeze(true);
      const before = await calls('lock.extend');
      await once(hanging.signal, 'abort');
      await until('renewals', async () => (await calls('lock.extend')) >= before + 2);
      assert.equal(lock.lost, false);
      await lock.release();
      await assert.rejects(hanging.release(), LockLost);
    });

    wired('releases what a cancel left behind, before its owner asks again', async (wire, far) => {
      const [key, outerKey] = [newKey(), newKey()];
      const outer = await locks.acquire(outerKey, { lease: 60_000 });
      const other = await locks.acquire(key);
      const control = new AbortController();
      const own = new Locks(far);
      const wait = own.acquire(key, { within: outer, signal: control.signal });
      await until('the wait', async () => (await waiting(key)) === 1);
      wire.freeze(true);
      control.abort();
      await assert.rejects(wait, { name: 'AbortError' });
      // The place is there still: the server has not heard of the cancel.
      await other.release();
      const offered = (await info(key)).fence;
      wire.cut();
      wire.freeze(false);
      const inner = await own.acquire(key, { within: outer });
      assert.ok(inner.fence > offered, 'a new hold, and not the one that the cancelled wait was granted');
      await inner.release();
      await outer.release();
    });

    it('keeps a process alive while it waits, and not while it holds', async () => {
      const key = newKey();
      const lock = await locks.acquire(key);
      const code = `
        const lock = await locks.acquire(${JSON.stringify(key)}, { lease: 3_600_000 });
        console.log(lock.fence);
        client.${library === 'ioredis' ? 'disconnect' : 'destroy'}();`;
      const running = run(library, code);
      await until('the other process to wait', async () => (await waiting(key)) === 1);
      await lock.release();
      const { status, output } = await running;
      assert.equal(status, 0);
      assert.equal(Number(output), (await info(key)).fence, 'what is not released stays until its lease ends');
      await ask('LOCK.BREAK', key);
    });

    it('leaves no connection and no timer behind', async () => {
      const code = `
        const use = () => locks.using(${JSON.stringify(newKey())}, () => undefined);
        for (let turn = 0; turn < 3; turn += 1) await use();
        // One of them waits.
        await Promise.all([use(), use()]);
        client.${library === 'ioredis' ? 'disconnect' : 'destroy'}();
        const handles = () => process.getActiveResourcesInfo().filter((name) => !/^Pipe|^Timeout/.test(name)).join();
        for (let turn = 0; turn < 50 && handles(); turn += 1) await new Promise((resolve) => setTimeout(resolve, 10));
        console.log(handles());`;
      assert.deepEqual(await run(library, code), { status: 0, output: '\n' });
    });
  });
}
