// What a listener hears, and what OpenTelemetry makes of it.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { describe, it } from 'node:test';
import { FakeServer, helper, LockLost, LockMisuse, Locks, LockTimeout, until } from './stage.mjs';

const { recorded } = await import(helper);
const { MeterProvider, InMemoryMetricExporter, PeriodicExportingMetricReader } = createRequire(
  new URL('../../../target/opentelemetry/', import.meta.url),
)('@opentelemetry/sdk-metrics');

const LEASE = 30_000;
const EVENTS = ['waited', 'refused', 'held', 'lost', 'renewalFailed'];

/** What the locks of these programs do: each event once at least. */
async function play(server, locks) {
  const lock = await locks.acquire('k');
  assert.equal(await locks.tryAcquire('k'), null);
  const wait = locks.acquire('k');
  await until('the wait', () => server.waiting('k') === 1);
  await server.advance(2_000);
  await lock.release();
  const next = await wait;
  server.stop();
  await server.advance(11_000);
  server.start();
  await server.advance(4_000);
  assert.equal(next.lost, false);
  server.lose('k');
  await server.advance(LEASE / 3);
  assert.equal(next.lost, true);
  await assert.rejects(next.release(), LockLost);
  const last = await locks.acquire('k');
  await last.releaseAfter(5_000);
}

describe('a listener', () => {
  it('hears what was waited for, refused, held, lost, and which renewals failed', async () => {
    const server = new FakeServer();
    await server.advance(0);
    const heard = [];
    const listener = Object.fromEntries(EVENTS.map((what) => [what, (...told) => heard.push([what, ...told])]));
    await play(server, new Locks(server, { listener }));
    const failed = heard.filter(([what]) => what === 'renewalFailed');
    assert.ok(failed.length > 0);
    const times = (event) => heard.filter(([what]) => what === event).map(([, ms]) => Math.round(ms));
    assert.deepEqual(times('waited'), [0, 2_000, 0]);
    assert.deepEqual(times('refused'), [0]);
    assert.deepEqual(times('held'), [2_000, 0]);
    const [lost, ...more] = times('lost');
    assert.deepEqual(more, []);
    assert.ok(lost > 15_000 && lost <= 15_000 + LEASE / 3, String(lost));
    // No key, no owner.
    for (const [, ...told] of heard) for (const word of told) assert.equal(typeof word, 'number');
  });

  it('is not told that a wait was refused which was cancelled, and hears of no release of what is lost', async () => {
    const server = new FakeServer();
    const heard = [];
    const listener = Object.fromEntries(EVENTS.map((what) => [what, () => heard.push(what)]));
    const locks = new Locks(server, { listener });
    server.take('k');
    const stop = new AbortController();
    const wait = locks.acquire('k', { signal: stop.signal });
    await until('the wait', () => server.waiting('k') === 1);
    stop.abort();
    await assert.rejects(wait);
    assert.deepEqual(heard, []);
    const lock = await locks.acquire('other');
    server.lose('other');
    await assert.rejects(lock.release(), LockLost);
    assert.deepEqual(heard, ['waited', 'lost']);
  });

  it('harms no lock when it throws', async () => {
    for (const fail of [() => assert.fail('a listener'), () => Promise.reject(new Error('a listener'))]) {
      const server = new FakeServer();
      const listener = Object.fromEntries(EVENTS.map((what) => [what, fail]));
      await play(server, new Locks(server, { listener }));
      await assert.rejects(new Locks(server, { listener }).acquire('k', { wait: 0 }), LockTimeout);
    }
    assert.throws(() => new Locks(new FakeServer(), { listener: 'a' }), LockMisuse);
  });

  it('is a meter of OpenTelemetry, too, which has no key', async () => {
    const server = new FakeServer();
    await server.advance(0);
    const exporter = new InMemoryMetricExporter(1);
    const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 3_600_000 });
    const provider = new MeterProvider({ readers: [reader] });
    await play(server, new Locks(server, { listener: recorded(provider.getMeter('tests')) }));
    await reader.forceFlush();
    const [{ scopeMetrics }] = exporter.getMetrics();
    const [{ metrics }] = scopeMetrics;
    const points = Object.fromEntries(
      metrics.map(({ descriptor, dataPoints: [point, ...more] }) => {
        assert.deepEqual([more, point.attributes], [[], {}]);
        return [descriptor.name, { unit: descriptor.unit, value: point.value }];
      }),
    );
    await provider.shutdown();
    const times = (name) => [points[name].unit, points[name].value.count, Math.round(points[name].value.sum)];
    assert.deepEqual(times('redis_lock.waited'), ['s', 3, 2]);
    assert.deepEqual(times('redis_lock.refused'), ['s', 1, 0]);
    assert.deepEqual(times('redis_lock.held'), ['s', 2, 2]);
    assert.deepEqual(times('redis_lock.lost').slice(0, 2), ['s', 1]);
    // Bounds for milliseconds would have most times in one bucket.
    const { boundaries } = points['redis_lock.waited'].value.buckets;
    assert.ok(boundaries.filter((bound) => bound < 1).length > 5, String(boundaries));
    assert.ok(points['redis_lock.renewal_failed'].value > 0);
    assert.equal(Object.keys(points).length, 5);
  });
});
