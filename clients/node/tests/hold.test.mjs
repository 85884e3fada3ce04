// What a program may do with a lock that it holds, on the server in memory.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, it } from 'node:test';
import {
  FakeServer,
  helper,
  LockDeadlock,
  LockLost,
  LockMisuse,
  Locks,
  LockTimeout,
  LockUnreachable,
  testing,
  until,
} from './stage.mjs';

const LEASE = 30_000;
const HOUR = 3_600_000;

describe('a lock that is held', () => {
  it('is lost at its max while work runs, and the next owner has it', async () => {
    const server = new FakeServer();
    const kinds = [];
    const locks = new Locks(server, { onTrouble: (error, kind) => kinds.push([kind, error.message]) });
    // Counted from the grant, however long it was waited for.
    server.take('k');
    const wait = locks.acquire('k', { max: 70_000 });
    await until('the wait', () => server.waiting('k') === 1);
    await server.advance(HOUR);
    server.lose('k');
    await server.advance(0);
    const lock = await wait;
    await server.advance(69_000);
    assert.equal(lock.lost, false);
    assert.ok(lock.validFor <= 1_000, String(lock.validFor));
    await server.advance(1_000);
    assert.equal(lock.signal.aborted, true);
    assert.deepEqual(
      kinds.map(([kind]) => kind),
      ['lost'],
    );
    assert.match(kinds[0][1], /max is over/);
    await server.advance(500);
    const next = await locks.tryAcquire('k');
    assert.ok(next.fence > lock.fence);
    await assert.rejects(lock.release(), LockLost);
    for (const max of [LEASE - 1, 0, Number.NaN, '70000']) {
      await assert.rejects(locks.tryAcquire('other', { max }), /max must be at least the lease/);
    }
  });

  it('has its max from the grant on, though a request waited for it', async () => {
    const server = new FakeServer();
    server.take('k');
    const wait = new Locks(server).acquire('k', { lease: 3_000, max: 3_000 });
    await until('the wait', () => server.waiting('k') === 1);
    await server.advance(2_500);
    server.lose('k');
    await server.advance(0);
    const lock = await wait;
    await server.advance(2_500);
    assert.equal(lock.lost, false);
    await lock.release();
  });

  it('keeps others out for a time after its work', async () => {
    const server = new FakeServer();
    const locks = new Locks(server);
    await locks.using('k', async (_, lock) => {
      await lock.releaseAfter(10 * HOUR);
      assert.equal(lock.validFor, 0);
      assert.equal(await lock.check(), false);
      assert.throws(() => lock.releaseAfter(1), LockMisuse);
    });
    await server.advance(9.9 * HOUR);
    assert.equal(await locks.tryAcquire('k'), null);
    await server.advance(0.2 * HOUR);
    const lock = await locks.tryAcquire('k');
    server.lose('k');
    await assert.rejects(lock.releaseAfter(1), LockLost);
  });

  it('is handed over, and the giver writes no more', async () => {
    const server = new FakeServer();
    const locks = new Locks(server);
    const giver = await locks.acquire('k', { lease: 60_000 });
    const token = JSON.parse(JSON.stringify(await giver.detach()));
    assert.deepEqual(token, { key: 'k', owner: giver.owner, fence: giver.fence, lease: 60_000, shared: false });
    await giver.release();
    const adopted = await new Locks(server).adopt(token);
    assert.ok(adopted.fence > giver.fence);
    assert.equal(await adopted.guard('SET', 'data', 'new'), 'OK');
    assert.equal(await server.send('LOCK.GUARD', 'k', giver.owner, String(giver.fence), 'SET', 'data', 'late'), null);
    assert.equal(await server.send('GET', 'data'), 'new');
    await assert.rejects(locks.adopt(token), LockLost);
    await server.advance(HOUR);
    assert.equal(adopted.lost, false);
    await adopted.release();
    assert.deepEqual(server.holders('k'), []);
  });

  it('is void for who adopts it after its lease', async () => {
    const server = new FakeServer();
    const locks = new Locks(server);
    const token = await (await locks.acquire('k')).detach();
    await server.advance(LEASE + 1);
    await assert.rejects(locks.adopt(token), LockLost);
    await assert.rejects(locks.adopt({ key: 'k' }), LockMisuse);
    for (const [keys, options] of [
      [['a', 'b'], {}],
      ['s', { limit: 2 }],
      ['m', { max: LEASE }],
    ]) {
      await assert.rejects((await locks.acquire(keys, options)).detach(), /cannot be handed over/);
    }
  });

  it('is adopted as soon as the server is there again', async () => {
    const server = new FakeServer();
    const locks = new Locks(server);
    const token = await (await locks.acquire('k')).detach();
    server.stop();
    await assert.rejects(new Locks(server).adopt(token, { wait: 0 }));
    const adopting = new Locks(server).adopt(token);
    await server.advance(1_000);
    server.start();
    await server.advance(5_000);
    await (await adopting).release();
  });

  it('is adopted with a note, and not for longer than its lease', async () => {
    const server = new FakeServer();
    const locks = new Locks(server);
    const token = await (await locks.acquire('k')).detach();
    await (await locks.adopt(token, { note: 'handed over' })).detach();
    assert.match(JSON.stringify(await server.send('LOCK.INFO', 'k')), /"note","handed over"/);
    server.stop();
    let error;
    locks.adopt(token).catch((thrown) => {
      error = thrown;
    });
    for (let step = 0; step < 40; step += 1) await server.advance(1_000);
    assert.ok(error instanceof LockUnreachable, String(error));
  });

  it('is given back by whoever is told not to adopt it any more', async () => {
    const server = new FakeServer();
    const locks = new Locks(server);
    const why = new Error('enough');
    const token = await (await locks.acquire('k')).detach();
    await assert.rejects(locks.adopt(token, { signal: AbortSignal.abort(why) }), why);
    assert.ok(await server.send('LOCK.INFO', 'k'));
    // While its request is on the way, and while it waits to ask again.
    for (const stops of [false, true]) {
      const given = await (await locks.acquire('k2')).detach();
      const control = new AbortController();
      if (stops) server.stop();
      const adopting = locks.adopt(given, { signal: control.signal });
      if (stops) await server.advance(0);
      control.abort(why);
      await assert.rejects(adopting, why);
      if (stops) server.start();
      await until('the release', async () => {
        await server.advance(100);
        return server.holders('k2').length === 0;
      });
    }
  });

  it('says by its note how far the work is', async () => {
    const server = new FakeServer();
    const lock = await new Locks(server).acquire('k', { note: 'begun' });
    await lock.setNote('half done');
    assert.match(JSON.stringify(await server.send('LOCK.INFO', 'k')), /"note","half done"/);
    server.lose('k');
    await assert.rejects(lock.setNote('all done'), LockLost);
    assert.equal(lock.lost, true);
  });
});

/** Runs lines as a program of their own, which has a server in memory. */
function program(lines, env) {
  const script = `
    import { Locks } from ${JSON.stringify(helper)};
    import { FakeServer } from ${JSON.stringify(testing)};
    const server = new FakeServer();
    ${lines}`;
  const options = { encoding: 'utf8', env: { ...process.env, ...env } };
  return spawnSync(process.execPath, ['--input-type=module', '--eval', script], options);
}

describe('trouble that no callback hears', () => {
  it('is in the debug log of Node.js', () => {
    const lines = 'server.stop(); await new Locks(server).tryAcquire("k").catch(() => undefined);';
    const run = (env) => program(lines, env).stderr;
    assert.match(run({ NODE_DEBUG: 'redis-lock' }), /^REDIS-LOCK \d+: unreachable: .*host and port/m);
    assert.equal(run({ NODE_DEBUG: '' }), '');
  });
});

describe('a wait', () => {
  it('keeps its process alive', () => {
    const run = program(`
      const lock = await new Locks(server).acquire('k');
      const [blocking, told] = [8, 0].map((maxBlocking) => new Locks(server, { maxBlocking }));
      console.log(await blocking.tryAcquire('k', { wait: 300 }), await told.tryAcquire('k', { wait: 300 }));
    `);
    assert.equal(run.stdout, 'null null\n', run.stderr);
  });
});

describe('a body within another', () => {
  it('does not wait for the lock of the outer one', async () => {
    const server = new FakeServer();
    const locks = new Locks(server);
    await locks.using('k', async () => {
      await assert.rejects(locks.acquire('k'), LockDeadlock);
      await assert.rejects(
        locks.using('k', { wait: 5_000, shared: true }, () => undefined),
        LockDeadlock,
      );
      assert.equal(await locks.tryAcquire('k'), null);
      await locks.using('other', () => undefined);
    });
    await locks.using('k', { shared: true }, () => locks.using('k', { shared: true }, () => undefined));
    await locks.using('s', { limit: 2 }, () => locks.using('s', { limit: 2 }, () => undefined));
    // It ends by itself.
    await locks
      .using('k', { max: LEASE }, async () => {
        const wait = locks.acquire('k');
        await until('the wait', () => server.waiting('k') === 1);
        await server.advance(2 * LEASE);
        await (await wait).release();
      })
      .catch((error) => assert.ok(error instanceof LockLost));
  });

  it('takes no part in what others hold', async () => {
    const server = new FakeServer();
    const locks = new Locks(server);
    const lock = await locks.acquire('k');
    const wait = locks.using('k', { reentrant: true }, () => 'got it');
    await until('the wait', () => server.waiting('k') === 1);
    await lock.release();
    assert.equal(await wait, 'got it');
  });

  it('enters the lock again, which is given back with the outermost one', async () => {
    const server = new FakeServer();
    const locks = new Locks(server);
    const options = { reentrant: true };
    const again = (depth) =>
      locks.using('k', options, async (signal, { fence }) => {
        assert.equal(signal.aborted, false);
        return depth === 0 ? [fence] : [fence, ...(await again(depth - 1))];
      });
    await locks.using('k', options, async (_, lock) => {
      assert.deepEqual(new Set(await again(3)), new Set([lock.fence]));
      assert.deepEqual(server.holders('k'), [lock.owner]);
      await assert.rejects(
        locks.using('k', () => undefined),
        LockDeadlock,
      );
    });
    assert.deepEqual(server.holders('k'), []);
    const lost = locks.using('k', options, async () => {
      server.lose('k');
      await server.advance(LEASE);
      await assert.rejects(
        locks.using('k', options, () => assert.fail('it is lost')),
        LockLost,
      );
    });
    await assert.rejects(lost, LockLost);
    await assert.rejects(
      locks.using('k', { ...options, wait: 0 }, () => locks.acquire('k', { wait: 0 })),
      LockTimeout,
    );
  });
});
