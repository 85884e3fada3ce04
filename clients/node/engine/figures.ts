// What locks do, for the figures of an application.
//
// SPDX-License-Identifier: MIT

/**
 * Hears what the locks of one {@link Locks} do, to count it. All times are in milliseconds. What a method throws is
 * ignored. The key is not told: as a label of a figure it would make one of each key.
 */
export interface LockListener {
  /** A lock was granted, so long after it was asked for. */
  waited?(ms: number): unknown;
  /** A lock was not granted: others had it, for so long. */
  refused?(ms: number): unknown;
  /** A lock was released, or let lapse, after it was held for so long. */
  held?(ms: number): unknown;
  /** A lock was lost, after it was held for so long. */
  lost?(ms: number): unknown;
  /** A renewal failed, and will be tried again. */
  renewalFailed?(): unknown;
}

/** Passes on what happens, and bears a listener that fails. */
export class Figures {
  readonly #listener: LockListener;

  constructor(listener: LockListener) {
    this.#listener = listener;
  }

  tell(what: keyof LockListener, ms: number): void {
    try {
      const told = this.#listener[what]?.(ms);
      // A promise that it returns may fail as well.
      if (told !== undefined) Promise.resolve(told).catch(() => undefined);
    } catch {
      // The application's own.
    }
  }
}

interface Instrument {
  description: string;
  unit: string;
  advice?: { explicitBucketBoundaries: number[] };
}

/** The bounds of the buckets, in seconds, from a round trip to work of hours. A meter's own are for milliseconds. */
const BOUNDS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200];

/** What the figures need of a `Meter` of `@opentelemetry/api`. */
export interface LockMeter {
  createHistogram(name: string, options: Instrument): { record(value: number): void };
  createCounter(name: string, options: Instrument): { add(value: number): void };
}

/**
 * Records the figures with a meter of OpenTelemetry: `new Locks(client, { listener: recorded(metrics.getMeter('app')) })`.
 * Times are in seconds, as OpenTelemetry has them.
 */
export function recorded(meter: LockMeter): LockListener {
  const times = (what: string, description: string) => {
    const advice = { explicitBucketBoundaries: BOUNDS };
    const histogram = meter.createHistogram(`redis_lock.${what}`, { description, unit: 's', advice });
    return (ms: number) => histogram.record(ms / 1_000);
  };
  const failures = meter.createCounter('redis_lock.renewal_failed', {
    description: 'renewals that failed, and were tried again',
    unit: '{renewal}',
  });
  return {
    waited: times('waited', 'from the first request to the grant'),
    refused: times('refused', 'how long others had a lock that was not granted'),
    held: times('held', 'from the grant to the release'),
    lost: times('lost', 'from the grant to the loss'),
    renewalFailed: () => failures.add(1),
  };
}
