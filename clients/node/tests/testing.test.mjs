// What the package gives to tests of applications: the server in memory with its clock, and a real one with the module.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import {
  FakeServer,
  helper,
  LockLost,
  Locks,
  LockUnreachable,
  libraries,
  startServer,
  testing,
  until,
  useServer,
} from './stage.mjs';

describe('a server in memory', () => {
  it('runs the program of the guide', async (test) => {
    const page = readFileSync(new URL('../../../docs/guide/testing.md', import.meta.url), 'utf8');
    const programs = [...page.matchAll(/```js\n(.*?)```/gs)];
    assert.equal(programs.length, 1);
    const folder = mkdtempSync(join(tmpdir(), 'guide-'));
    test.after(() => rmSync(folder, { recursive: true }));
    const program = join(folder, 'program.mjs');
    const text = programs[0][1].replace("'redis-lock-client/testing'", `'${testing}'`);
    writeFileSync(program, text.replace("'redis-lock-client'", `'${new URL(helper, import.meta.url).href}'`));
    await import(program);
  });

  it('renews over a day that passes at once', async () => {
    const server = new FakeServer();
    const lock = await new Locks(server).acquire('k');
    await server.advance(86_400_000);
    assert.equal(lock.lost, false);
    assert.deepEqual(server.holders('k'), [lock.owner]);
    await lock.release();
    assert.deepEqual(server.holders('k'), []);
  });

  it('takes a lock away, and ends its lease', async () => {
    const server = new FakeServer();
    const locks = new Locks(server);
    for (const spoil of ['lose', 'expire']) {
      const lock = await locks.acquire('k');
      assert.equal(server[spoil]('k'), 1);
      assert.equal(lock.lost, false, 'nobody has asked yet');
      const aborted = once(lock.signal, 'abort');
      await server.advance(10_000);
      await aborted;
      await assert.rejects(lock.release(), LockLost);
    }
  });

  it('holds a lock for somebody else, until that is over', async () => {
    const server = new FakeServer();
    const locks = new Locks(server);
    const fence = server.take('k');
    assert.equal(server.take('k'), null);
    assert.equal(await locks.tryAcquire('k'), null);
    for (const maxBlocking of [8, 0]) {
      const wait = new Locks(server, { maxBlocking }).acquire('k');
      await until('the wait', () => server.waiting('k') === 1);
      await server.advance(3_600_000);
      assert.equal(server.waiting('k'), 1);
      server.lose('k');
      await server.advance(0);
      const lock = await wait;
      assert.ok(lock.fence > fence);
      await lock.release();
      server.take('k');
    }
  });

  it('is lost by its own clock while the server is away', async () => {
    const server = new FakeServer();
    const lock = await new Locks(server).acquire('k');
    server.stop();
    await server.advance(29_000);
    assert.equal(lock.lost, false);
    await server.advance(1_000);
    assert.equal(lock.lost, true);
    await assert.rejects(new Locks(server).tryAcquire('k'), LockUnreachable);
    server.start();
    assert.ok(await new Locks(server).tryAcquire('k'));
  });

  it('guards a command of which the test gives the reply', async () => {
    const server = new FakeServer();
    const lock = await new Locks(server).acquire('k');
    assert.equal(await lock.guard('SET', 'data', 'v'), 'OK');
    assert.equal(await server.send('GET', 'data'), 'v');
    await assert.rejects(lock.guard('INCR', 'n'), /ERR unknown command/);
    server.answer = ([command]) => (command === 'INCR' ? 7 : null);
    assert.equal(await lock.guard('INCR', 'n'), 7);
  });
});

const noModule = process.env.REDIS_LOCK_MODULE === undefined;
describe('a server with the module', { skip: noModule }, () => {
  const server = noModule ? undefined : useServer({ before, after });

  it('is there for the tests of a file', async () => {
    const { open, close } = libraries.ioredis;
    const client = await open(server.port);
    assert.ok(await new Locks(client).tryAcquire('k'));
    close(client);
  });

  it('has the module that is named beside the hooks, or apart', async () => {
    const module = '/no/such/module.so';
    for (const [more, options] of [[{ module }], [{}, { module }]]) {
      const hooks = {};
      const keep = (name) => (hook) => {
        hooks[name] = hook;
      };
      useServer({ before: keep('start'), after: keep('stop'), ...more }, options);
      const starting = hooks.start().finally(hooks.stop);
      await assert.rejects(starting, /does not start/);
    }
  });

  it('says why it does not start', async () => {
    await assert.rejects(startServer({ module: '/no/such/module.so' }), /does not start: .*no such|does not start/i);
    await assert.rejects(startServer({ program: '/no/such/program' }), /does not start: .*ENOENT/);
  });
});
