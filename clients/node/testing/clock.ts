// A clock for tests: it goes by itself, until the test moves it.
//
// SPDX-License-Identifier: MIT

import type { Time } from '../engine/times.ts';

interface Alarm {
  at: number;
  callback: () => void;
  isQuiet: boolean;
  /** Ends the timer of the system, while the clock goes by itself. */
  stop: (() => void) | undefined;
}

/** The time of a server in memory, and of the helpers that use it. */
export class TestClock implements Time {
  /** What a test has moved it to; undefined while it goes by itself. */
  #stoodAt: number | undefined;
  readonly #alarms = new Set<Alarm>();
  readonly #wallBegin = Date.now() - performance.now();

  now(): number {
    return this.#stoodAt ?? performance.now();
  }

  clock(): number {
    return this.now();
  }

  /** Microseconds of the wall clock. */
  wall(): number {
    return Math.floor((this.#wallBegin + this.now()) * 1_000);
  }

  after(ms: number, callback: () => void, isQuiet = false): () => void {
    const alarm: Alarm = { at: this.now() + Math.max(0, ms), callback, isQuiet, stop: undefined };
    this.#alarms.add(alarm);
    if (this.#stoodAt === undefined || ms <= 0) this.#start(alarm);
    return () => {
      this.#alarms.delete(alarm);
      alarm.stop?.();
    };
  }

  #start(alarm: Alarm): void {
    const left = Math.min(Math.max(0, alarm.at - this.now()), 2 ** 31 - 1);
    const timer = setTimeout(() => this.#ring(alarm), left);
    if (alarm.isQuiet) timer.unref();
    alarm.stop = () => clearTimeout(timer);
  }

  #ring(alarm: Alarm): void {
    if (this.#alarms.delete(alarm)) alarm.callback();
  }

  /**
   * Moves the clock, and lets happen what is due meanwhile, in its order. From the first call on the clock stands still in
   * between.
   */
  async advance(ms: number): Promise<void> {
    if (!(ms >= 0)) throw new RangeError('a clock goes forward');
    if (this.#stoodAt === undefined) {
      this.#stoodAt = performance.now();
      for (const { stop } of this.#alarms) stop?.();
    }
    const end = this.#stoodAt + ms;
    await settled();
    for (;;) {
      let next: Alarm | undefined;
      for (const alarm of this.#alarms) if (alarm.at <= end && !(next && next.at <= alarm.at)) next = alarm;
      if (!next) break;
      this.#stoodAt = Math.max(this.#stoodAt, next.at);
      this.#ring(next);
      await settled();
    }
    this.#stoodAt = end;
    await settled();
  }
}

/** Returns when all is done that waits for no time. */
async function settled(): Promise<void> {
  for (let turn = 0; turn < 3; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}
