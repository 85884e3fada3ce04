// The types, as an application sees them: it compiles, or does not where a line says so. Never run.

import { metrics } from '@opentelemetry/api';
import { Cluster, Redis } from 'ioredis';
import { createClient, createCluster } from 'redis';
import { type Lock, type LockListener, LockLost, Locks, recorded } from '../redis-lock.js';

const clients = [
  createClient(),
  createClient({ RESP: 2 }),
  createCluster({ rootNodes: [] }),
  new Redis(),
  new Cluster([]),
  new Redis({ protocol: 3 }),
] as const;

export async function use(signal: AbortSignal): Promise<string> {
  for (const client of clients) new Locks(client, { lease: 30_000 });
  const locks = new Locks(createClient());

  await using lock = await locks.acquire(['{a}1', '{a}2'], { wait: 5000, signal, note: undefined });
  const fences: readonly number[] = lock.fences;
  await using maybe = await locks.tryAcquire('b', { within: lock, limit: 3, take: 2 });
  const held: Lock | null = maybe;
  const reply: string = await lock.guard<string>('SET', 'key', 1, Buffer.from('bytes'));
  if (lock.signal.reason instanceof LockLost) throw lock.signal.reason;

  const length: number = await locks.using('c', (signal, { fence }) =>
    fetch(`?fence=${fence}`, { signal }).then((r) => r.status),
  );
  const text: string = await locks.using('c', { shared: true }, () => 'text');

  const counted: LockListener = recorded(metrics.getMeter('app'));
  new Locks(createClient(), { listener: counted });
  new Locks(createClient(), { listener: { lost: (ms) => console.log(ms.toFixed()) } });
  const led: number = await locks.lead('e', { signal, max: 60_000 }, (over) => (over.aborted ? undefined : 7));

  // @ts-expect-error A fence is given by the server.
  lock.fence = 1;
  // @ts-expect-error There is no such option.
  await locks.acquire('d', { ttl: 1000 });
  // @ts-expect-error Options are an object.
  await locks.using(['d'], 5000, () => 'text');
  // @ts-expect-error No client.
  new Locks({});
  return [fences, held?.fence, reply, length, text, led].join();
}
