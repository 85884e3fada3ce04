// Waits without a connection of their own: messages that come, are lost, doubled or forged, and servers that send none.
//
// The server is for these tests alone: they change its settings, and end connections of others. REDIS_LOCK_MODULE is
// for the nodes of a cluster.

import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { asMap, Cluster, Locks, libraries, tester, until } from './stage.mjs';

/** Waits ask by themselves after 7.5 s at the earliest. What happens before that is due to a message. */
const BEFORE_POLL_MS = 7_000;

for (const [library, { openCluster, close }] of Object.entries(libraries)) {
  describe(library, () => {
    const tests = tester(library, 'notify');
    const { ask, info, keyOf, newKey, waiting, wired } = tests;
    const waiters = async (key) => ((await info(key))?.waiters ?? []).map(asMap);
    const channels = () => ask('PUBSUB', 'CHANNELS', 'lock:notify:*');
    /** True if the last request of each asked to be told: the server keeps such a place for longer. */
    const areToBeTold = async (key, count) => {
      const all = await waiters(key);
      return all.length === count && all.every((waiter) => waiter.queue_left_ms > 10_000);
    };
    /** Somebody else holds it meanwhile, and gives it back before a wait could ask by itself. */
    const held = async (key, wait, body, isReady = areToBeTold) => {
      await ask('LOCK.ACQUIRE', key, 'other', 'PX', '600000');
      const waits = wait();
      await until('the waits', () => isReady(key, waits.length));
      await body?.();
      const released = performance.now();
      await ask('LOCK.RELEASE', key, 'other');
      await Promise.all(waits.map(async (each) => (await each).release()));
      assert.ok(performance.now() - released < BEFORE_POLL_MS, 'they were told');
    };
    it('is told of each kind of lock, and of several keys by one message', async () => {
      const [one, two] = [`{${newKey()}}a`, `{${keyOf()}}b`];
      const locks = new Locks(tests.client, { maxBlocking: 0 });
      const waits = () => [
        locks.acquire(one, { shared: true }),
        locks.acquire(one, { limit: 3, take: 2 }),
        locks.acquire([one, two]),
      ];
      await held(one, waits);
    });

    wired('subscribes anew when a silent subscription does not answer', async (wire, far) => {
      const key = newKey();
      const locks = new Locks(far, { maxBlocking: 0 });
      await (await locks.acquire(key)).release();
      const [before, eldest] = [await channels(), wire.open];
      const ours = async () => (await channels()).filter((name) => !before.includes(name));
      const { now } = performance;
      try {
        await held(
          key,
          () => [locks.acquire(key)],
          async () => {
            // Nothing comes over the newest connection any more. Ten seconds later it is asked whether it is there.
            wire.silence(eldest);
            performance.now = () => now.call(performance) + 10_500;
            const silent = await ours();
            const isNew = async () => (await ours()).some((name) => !silent.includes(name));
            await until('another subscription', isNew);
          },
        );
      } finally {
        performance.now = now;
      }
    });

    wired('asks by itself when messages are lost, as often as a short QUEUE of the server needs', async (wire, far) => {
      const key = newKey();
      await ask('CONFIG', 'SET', 'lock.max-queue-ms', '3000');
      try {
        const locks = new Locks(far, { maxBlocking: 0 });
        const isNoted = async () => /lock_notify_channels:1\r/.test(await ask('INFO', 'lock'));
        // The owner in them is another one.
        wire.answer = (bytes) =>
          bytes.includes('lock:notify:')
            ? Buffer.from(bytes.toString('latin1').replace(/:[0-9a-f]{4}/g, ':none'), 'latin1')
            : bytes;
        await held(key, () => [locks.acquire(key)], undefined, isNoted);
      } finally {
        await ask('CONFIG', 'SET', 'lock.max-queue-ms', '60000');
      }
    });

    const hinder = {
      'unknown option': (text) => text.replace(/NOTIFY(\r\n\$\d+\r\nlock:)/g, 'NOTIFX$1'),
      'no answer': (text) => (/subscribe/i.test(text) ? '' : text),
    };
    for (const [reason, rewrite] of Object.entries(hinder))
      wired(`waits without messages where the server has for them: ${reason}`, async (wire, far) => {
        const told = [];
        const key = newKey();
        wire.rewrite = (bytes) => Buffer.from(rewrite(bytes.toString('latin1')), 'latin1');
        // An older module would name the option as it was sent.
        wire.answer = (bytes) => Buffer.from(bytes.toString('latin1').replaceAll('NOTIFX', 'NOTIFY'), 'latin1');
        const onTrouble = (error, kind) => told.push(`${kind}: ${error.message}`);
        for (const options of reason === 'no answer' ? [{}] : [{ maxBlocking: 0 }, {}]) {
          const locks = new Locks(far, { onTrouble, ...options });
          const areThere = async () => told.length > 0 && (await waiting(key)) === 10;
          await held(key, () => Array.from({ length: 10 }, () => locks.acquire(key)), undefined, areThere);
          assert.match(told.join(), new RegExp(`^notify: [^,]*, since NOTIFY cannot be had: [^,]*${reason}`));
          assert.equal(told.length, 1, told.join());
          told.length = 0;
        }
      });

    it('subscribes when a lock is waited for first, and once', async () => {
      const key = newKey();
      const locks = new Locks(tests.client, { maxBlocking: 0 });
      const before = await channels();
      const ours = async () => (await channels()).filter((name) => !before.includes(name));
      await (await locks.acquire(key)).release();
      assert.deepEqual(await ours(), [], 'a lock that is free needs none');
      await held(key, () => [locks.acquire(key)]);
      const first = await ours();
      await held(key, () => [locks.acquire(key)]);
      assert.equal(first.length, 1);
      assert.deepEqual(await ours(), first);
    });

    const noModule = process.env.REDIS_LOCK_MODULE ? false : 'REDIS_LOCK_MODULE is not set';
    it('waits at each node of a cluster, also when a slot moves', { skip: noModule }, async () => {
      const cluster = await new Cluster().start();
      const application = await openCluster(cluster.ports);
      try {
        const locks = new Locks(application, { maxBlocking: 0 });
        const told = [];
        const noted = new Locks(application, { maxBlocking: 0, onTrouble: (error) => told.push(error.message) });
        const shards = (node) => cluster.ask(node, 'PUBSUB', 'SHARDCHANNELS', 'lock:notify:*');
        const [key, other] = [cluster.key(0, 0), cluster.key(0, 1)];
        const waitsFor = async (node, name, own, body) => {
          await cluster.ask(node, 'LOCK.ACQUIRE', name, 'other', 'PX', '600000');
          const waits = [own.acquire(name), own.acquire(name)];
          const standing = async () => asMap(await cluster.ask(node, 'LOCK.INFO', name)).waiting;
          await until('the waits', async () => (await standing()) === 2);
          await body?.();
          const released = performance.now();
          await cluster.ask(node, 'LOCK.RELEASE', name, 'other');
          for (const wait of waits) await (await wait).release();
          assert.ok(performance.now() - released < BEFORE_POLL_MS, 'they were told');
        };
        await waitsFor(0, key, locks);
        await waitsFor(1, cluster.key(1, 0), locks);
        for (const node of [0, 1]) assert.equal((await shards(node)).length, 1, `node ${node}`);
        // A channel of its own, with the slot of its first key. That slot leaves the node.
        await waitsFor(0, key, noted);
        const before = await shards(0);
        await waitsFor(0, other, noted, async () => {
          const moved = performance.now();
          await cluster.move(key, 1);
          await until('other channels', async () => {
            const now = await shards(0);
            return now.length > 0 && now.every((name) => !before.includes(name));
          });
          assert.ok(performance.now() - moved < BEFORE_POLL_MS, 'they did not wait for the time to ask');
        });
        await waitsFor(1, key, noted);
        assert.deepEqual(told, []);
      } finally {
        close(application);
        cluster.close();
      }
    });
  });
}
