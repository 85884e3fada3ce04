// All times of the helper, in milliseconds, and the clock by which a lock is valid.
//
// SPDX-License-Identifier: MIT

import { uptime } from 'node:os';
import process from 'node:process';

/** The shortest lease that the helper takes: below it a busy event loop loses its locks. */
export const LEASE_MIN_MS = 1_000;
export const LEASE_MS = 30_000;
/** A request waits in the server for at most this long, and asks again: no proxy cuts so short a silence. */
export const BLOCK_MS = 3_000;
/** The server keeps the place in the queue for this long between two requests. */
export const QUEUE_MS = 10_000;
/** A wait that has no link to wait on asks this often. */
export const POLL_MS = 1_000;
/** The time for an answer, where neither the lease nor the end of a wait sets another. */
export const ANSWER_MS = 3_000;
/** The time for an answer when a wait is over or given up. */
export const LEAVE_MS = 1_000;
/** So long the application waits for the end of what it gave up. The rest goes on in the background. */
export const CANCEL_MS = 250;
export const PAUSE_MIN_MS = 100;
export const PAUSE_MAX_MS = 1_000;
/** The holds are looked at this often at least, since timers stand still while the machine is suspended. */
export const LOOK_MS = 1_000;
/** Linux has the clock that counts suspended time in steps of this size. */
export const CLOCK_STEP_MS = 10;

/** How far the clock that counts suspended time is ahead of Node's own, and the wall clock of Node's when that was read. */
let ahead = 0;
let apart = Number.NaN;

/**
 * Milliseconds on a clock that also counts while the machine is suspended, as Node's own does not on Linux. The system's
 * is slow to read, so it is read when the wall clock has moved against Node's, as a suspend moves it, or `isExact`.
 */
export function clock(isExact = false): number {
  const now = performance.now();
  if (process.platform !== 'linux') return now;
  const gap = Date.now() - now;
  if (isExact || !(Math.abs(gap - apart) < CLOCK_STEP_MS)) {
    apart = gap;
    ahead = Math.max(ahead, uptime() * 1_000 - now);
  }
  return now + ahead;
}

/** The promise's value, or undefined when the time is over first. */
export async function until<T>(ms: number, promise: Promise<T>): Promise<T | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => {
    timer = setTimeout(resolve, Math.min(ms, 2 ** 31 - 1), undefined);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

export function jittered(ms: number): number {
  return ms * (0.75 + Math.random() / 4);
}
