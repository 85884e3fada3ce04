// The name under which the server knows a holder, and what is known of its keys.
//
// SPDX-License-Identifier: MIT

import { randomFillSync } from 'node:crypto';
import { hostname } from 'node:os';
import process from 'node:process';
import { LockMisuse } from '../errors.ts';

const NONE: readonly string[] = [];
const HOME = `${hostname().slice(0, 64)}:${process.pid}:`;

/** One thread of control: an outermost lock, and the locks within it. */
export class Owner {
  readonly name: string;
  /** Keys that are held or asked for now. */
  #busy: readonly string[] = NONE;
  /** Keys that are given back now, in the background: until then they cannot be asked for. */
  #leaving: Map<string, Promise<boolean>> | undefined;
  /** Keys that the server may still have under this owner. They are released before they are asked for again. */
  #doubtful: Set<string> | undefined;

  /** @param name Of an owner that another process had. */
  constructor(name = HOME + randomHex()) {
    this.name = name;
  }

  enter(keys: readonly string[]): void {
    const twice = keys.find((key) => this.#busy.includes(key));
    if (twice !== undefined) throw new LockMisuse(`key ${JSON.stringify(twice)} twice under one owner`);
    this.#busy = this.#busy.length === 0 ? keys : [...this.#busy, ...keys];
  }

  #freed(keys: readonly string[]): void {
    this.#busy = this.#busy === keys ? NONE : this.#busy.filter((key) => !keys.includes(key));
  }

  leave(keys: readonly string[], isCertain: boolean): void {
    this.#freed(keys);
    if (isCertain) this.isClean(keys);
    else this.#doubtful = new Set([...(this.#doubtful ?? NONE), ...keys]);
  }

  /** They are given back, with this outcome. */
  async leaveWith(keys: readonly string[], outcome: Promise<boolean>): Promise<void> {
    this.#freed(keys);
    this.#leaving ??= new Map();
    for (const key of keys) this.#leaving.set(key, outcome);
    const isCertain = await outcome;
    for (const key of keys) {
      if (this.#leaving.get(key) === outcome) this.#leaving.delete(key);
    }
    // Nobody asks for them meanwhile.
    if (!isCertain) this.leave(keys, false);
  }

  /** What is given back now of these keys. */
  leaving(keys: readonly string[]): Promise<unknown> | undefined {
    const these = keys.map((key) => this.#leaving?.get(key)).filter((outcome) => outcome !== undefined);
    return these.length > 0 ? Promise.all(these) : undefined;
  }

  isDoubtful(keys: readonly string[]): boolean {
    return keys.some((key) => this.#doubtful?.has(key));
  }

  /** True if nothing is left of former locks of this owner. */
  get isFresh(): boolean {
    return !this.#leaving?.size && !this.#doubtful?.size;
  }

  isClean(keys: readonly string[]): void {
    if (this.#doubtful) for (const key of keys) this.#doubtful.delete(key);
  }
}

const random = Buffer.alloc(4_096);
let used = random.length;

/** 128 random bits. */
function randomHex(): string {
  if (used === random.length) {
    randomFillSync(random);
    used = 0;
  }
  used += 16;
  return random.toString('hex', used - 16, used);
}
