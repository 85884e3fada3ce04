// The renewal of all holds of one Locks.
//
// SPDX-License-Identifier: MIT

import { ignore } from '../transport/libraries.ts';
import type { Hold } from './hold.ts';
import { LOOK_MS, type Time } from './times.ts';

/** Renews the holds of one Locks: a heap by the time when each is due, and one timer. It keeps no process alive. */
export class Renewer {
  readonly #time: Time;
  readonly #heap: Hold[] = [];
  #cancel: () => void = ignore;
  #wakesAt = Number.POSITIVE_INFINITY;

  constructor(time: Time) {
    this.#time = time;
  }

  add(hold: Hold): void {
    this.#heap.push(hold);
    this.#up(hold, this.#heap.length - 1);
    this.#arm();
  }

  move(hold: Hold, due: number): void {
    hold.due = due;
    if (hold.at < 0) return;
    this.#up(hold, hold.at);
    this.#down(hold, hold.at);
    this.#arm();
  }

  remove(hold: Hold): void {
    const { at } = hold;
    if (at < 0) return;
    hold.at = -1;
    const last = this.#heap.pop() as Hold;
    if (last === hold) return;
    this.#up(last, at);
    this.#down(last, last.at);
  }

  #up(hold: Hold, from: number): void {
    let at = from;
    while (at > 0) {
      const above = (at - 1) >> 1;
      const parent = this.#heap[above] as Hold;
      if (parent.due <= hold.due) break;
      this.#put(parent, at);
      at = above;
    }
    this.#put(hold, at);
  }

  #down(hold: Hold, from: number): void {
    let at = from;
    for (;;) {
      const [left, right] = [this.#heap[2 * at + 1], this.#heap[2 * at + 2]];
      const child = right && left && right.due < left.due ? right : left;
      if (!child || child.due >= hold.due) break;
      const below = child.at;
      this.#put(child, at);
      at = below;
    }
    this.#put(hold, at);
  }

  #put(hold: Hold, at: number): void {
    this.#heap[at] = hold;
    hold.at = at;
  }

  /** The timer is not set anew for each hold: it looks too early rather than too late. */
  #arm(): void {
    const [first] = this.#heap;
    if (!first) return;
    const now = this.#time.clock();
    const wakesAt = Math.min(first.due, now + LOOK_MS);
    if (wakesAt >= this.#wakesAt) return;
    this.#wakesAt = wakesAt;
    this.#cancel();
    this.#cancel = this.#time.after(Math.max(wakesAt - now, 1), () => this.#look(), true);
  }

  /** All that is due, and what will be soon, goes out together. */
  #look(): void {
    this.#wakesAt = Number.POSITIVE_INFINITY;
    const time = this.#time.clock(true);
    for (;;) {
      const [first] = this.#heap;
      if (!first || first.due > time + first.slack) break;
      first.look(time);
    }
    this.#arm();
  }
}
