// All times of the helper, in milliseconds, and the clock by which a lock is valid.
//
// SPDX-License-Identifier: MIT

import { uptime } from 'node:os';
import process from 'node:process';

// The times that all helpers share. clients/README.md says what each is for.
export const LEASE_MS = 30_000;
/** The shortest lease that the helper takes: below it a busy event loop loses its locks. */
export const LEASE_MIN_MS = 1_000;
export const BLOCK_MS = 3_000;
export const QUEUE_MS = 10_000;
export const POLL_MS = 1_000;
export const POLL_JITTER = 0.25;
export const ANSWER_MS = 2_500;
export const OVERTIME_MS = 1_000;
export const READ_ON_MS = 1_000;
export const LEAVE_MS = 250;
export const PAUSE_MIN_MS = 100;
export const PAUSE_MAX_MS = 1_000;
export const PAUSE_JITTER = 0.5;
export const MARGIN_MIN_MS = 100;
export const LOOK_MS = 1_000;
export const IDLE_MS = 30_000;
export const IDLE_MAX = 8;
export const BLOCKING_MAX = 32;
export const NOTIFY_QUEUE_MS = 30_000;
export const CONFIRM_MS = 2_000;
export const REFUSED_MS = 10_000;

// Of waits that are told by NOTIFY.
/** When all are to ask again: so many at once, each so many milliseconds. */
export const TOLD_AT_ONCE = 100;
export const TOLD_MS = 10;

/** So many waits have a connection each where messages can be had. */
export const BLOCKING_USUAL = 8;

/** Linux has the clock that counts suspended time in steps of this size. */
export const CLOCK_STEP_MS = 10;

/** Where the time comes from: the system, or a test. */
export interface Time {
  /** Milliseconds on Node's own clock. */
  now(): number;
  /**
   * Milliseconds on a clock that also counts while the machine is suspended, as Node's own does not on Linux. The system's
   * is slow to read, so it is read when the wall clock has moved against Node's, as a suspend moves it, or `isExact`.
   */
  clock(isExact?: boolean): number;
  /** Calls it once, later. Unless `isQuiet`, that keeps the process alive. Returns what prevents the call. */
  after(ms: number, callback: () => void, isQuiet?: boolean): () => void;
}

class SystemTime implements Time {
  /** How far the clock that counts suspended time is ahead of Node's own, and the wall clock of Node's when that was read. */
  #ahead = 0;
  #apart = Number.NaN;

  now(): number {
    return performance.now();
  }

  clock(isExact = false): number {
    const now = performance.now();
    if (process.platform !== 'linux') return now;
    const gap = Date.now() - now;
    if (isExact || !(Math.abs(gap - this.#apart) < CLOCK_STEP_MS)) {
      this.#apart = gap;
      this.#ahead = Math.max(this.#ahead, uptime() * 1_000 - now);
    }
    return now + this.#ahead;
  }

  after(ms: number, callback: () => void, isQuiet = false): () => void {
    const timer = setTimeout(callback, Math.min(ms, 2 ** 31 - 1));
    if (isQuiet) timer.unref();
    return () => clearTimeout(timer);
  }
}

export const systemTime: Time = new SystemTime();

/** Calls it again and again. It keeps no process alive. Returns what ends that. */
export function each(time: Time, ms: number, callback: () => void): () => void {
  const again = () => {
    cancel = time.after(ms, again, true);
    callback();
  };
  let cancel = time.after(ms, again, true);
  return () => cancel();
}

/** Sleeps so long, and keeps no process alive. */
export function nap(time: Time, ms: number): Promise<void> {
  return new Promise((resolve) => time.after(ms, resolve, true));
}

/** The promise's value, or undefined when the time is over first. */
export async function until<T>(time: Time, ms: number, promise?: Promise<T>): Promise<T | undefined> {
  let cancel: () => void = () => undefined;
  const late = new Promise<undefined>((resolve) => {
    cancel = time.after(ms, () => resolve(undefined));
  });
  try {
    return await (promise ? Promise.race([promise, late]) : late);
  } finally {
    cancel();
  }
}

/** The pause before the next request of a wait that does not block, and asks so often. */
export function untilPoll(ms = POLL_MS): number {
  return ms * (1 - POLL_JITTER * Math.random());
}

/** A pause after a failure, longer by chance. */
export function jittered(ms: number): number {
  return ms * (1 + PAUSE_JITTER * Math.random());
}
