// What an application asks for, and the requests that ask for it.
//
// SPDX-License-Identifier: MIT

import { LockMisuse } from '../errors.ts';
import { LEASE_MIN_MS, LEASE_MS, MARGIN_MIN_MS } from './times.ts';

/** The options of a lock that say what is asked for. All times are in milliseconds. */
export interface Asked {
  /**
   * How soon the lock is freed after its process dies, in milliseconds. It is renewed at each third of it, for as long as
   * it is held. At least 1000.
   * @defaultValue 30000
   */
  lease?: number | undefined;
  /**
   * How long to wait for the lock, in milliseconds. 0 tries once.
   * @defaultValue as long as it takes; `tryAcquire`: 0
   */
  wait?: number | undefined;
  /**
   * Hold it together with other readers.
   * @defaultValue false
   */
  shared?: boolean | undefined;
  /** A semaphore: all holders together have at most this many shares. A whole number; all holders name the same. */
  limit?: number | undefined;
  /**
   * How many shares to take of `limit`.
   * @defaultValue 1
   */
  take?: number | undefined;
  /** Text for people, which LOCK.INFO shows. */
  note?: string | undefined;
  /**
   * How long to hold it at most, in milliseconds: it is renewed until then, and then lost. At least `lease`.
   * @defaultValue as long as it takes
   */
  max?: number | undefined;
  /**
   * Clients with another kind of lock may hold the same key, as a string or a hash. While they do, the lock is held by
   * others, and the wait asks again each second. Without it that is the error WRONGTYPE.
   * @defaultValue false
   */
  oldClients?: boolean | undefined;
}

/** How a request waits: for so many milliseconds in the server, and with a place for so many. */
export interface Waiting {
  block: number;
  queue: number;
  channel: string | undefined;
}

function demand(met: boolean, text: string): void {
  if (!met) throw new LockMisuse(text);
}

function checkKeys(keys: readonly string[]): void {
  demand(keys.length > 0, 'no key');
  for (const key of keys) demand(typeof key === 'string', 'a key must be a string');
  demand(keys.length === 1 || new Set(keys).size === keys.length, 'the same key twice');
}

function isCount(value: number): boolean {
  return Number.isInteger(value) && value >= 1;
}

function checkOptions(lease: number, { wait, shared, limit, take, note, max, oldClients }: Asked, keys: number): void {
  demand(typeof lease === 'number', 'lease must be a number of milliseconds');
  demand(lease >= LEASE_MIN_MS && lease < Number.POSITIVE_INFINITY, `lease must be at least ${LEASE_MIN_MS} ms`);
  demand(wait == null || typeof wait === 'number', 'wait must be a number of milliseconds');
  demand(wait == null || wait >= 0, 'wait must be at least 0 ms');
  demand(limit == null || isCount(limit), 'limit must be a whole number from 1');
  demand(limit == null || (!shared && keys === 1), 'limit is for one key, and not with shared');
  demand(take == null || (isCount(take) && take <= (limit ?? 1)), 'take must be a whole number from 1 to limit');
  demand(note == null || typeof note === 'string', 'note must be a string');
  demand(max == null || (typeof max === 'number' && max >= lease), 'max must be at least the lease');
  demand(oldClients == null || typeof oldClients === 'boolean', 'oldClients must be true or false');
}

/** What was asked for, checked. */
export class Terms {
  readonly keys: readonly string[];
  readonly lease: number;
  readonly wait: number;
  /** How long it is held at most. */
  readonly max: number;
  readonly mode: 'READ' | 'WRITE';
  /** True if what is no lock on its keys counts as held by others. */
  readonly oldClients: boolean;
  readonly #options: Asked;
  /** The keys as the server has them. */
  readonly wired: readonly string[];

  constructor(keys: string | readonly string[], options: Asked, prefix: string) {
    const { lease = LEASE_MS, wait, shared = false, limit } = options;
    this.keys = typeof keys === 'string' ? [keys] : [...keys];
    checkKeys(this.keys);
    checkOptions(lease, options, this.keys.length);
    this.wired = prefix === '' ? this.keys : this.keys.map((key) => prefix + key);
    this.lease = Math.ceil(lease);
    this.wait = wait ?? Number.POSITIVE_INFINITY;
    this.max = options.max ?? Number.POSITIVE_INFINITY;
    this.mode = shared || limit != null ? 'READ' : 'WRITE';
    this.oldClients = options.oldClients ?? false;
    this.#options = options;
  }

  toString(): string {
    return `lock ${this.keys.map((key) => JSON.stringify(key)).join(', ')}`;
  }

  /** True if one owner may not have this while another has that of the same key. */
  excludes(other: Terms): boolean {
    const { limit, take = 1 } = this.#options;
    if (this.mode === 'WRITE' || other.mode === 'WRITE') return true;
    return limit != null && limit === other.#options.limit && take + (other.#options.take ?? 1) > limit;
  }

  /** What is asked for, to compare it with. */
  get #asked(): string {
    const { limit, take = 1 } = this.#options;
    return JSON.stringify([this.mode, limit, take, ...this.keys]);
  }

  /** True if they ask for the same. */
  isLike(other: Terms): boolean {
    return this.#asked === other.#asked;
  }

  /** True if it may be handed over: one key, no share of it, and no end. */
  get isTransferable(): boolean {
    return this.keys.length === 1 && this.#options.limit == null && this.max === Number.POSITIVE_INFINITY;
  }

  /** What two clocks may differ by. */
  get margin(): number {
    return Math.max(this.lease / 100, MARGIN_MIN_MS);
  }

  /**
   * The request. With QUEUE it may be sent any number of times: the owner keeps its place for so long, and counts once.
   * With a channel it is told there when to ask again.
   */
  acquire(owner: string, { block, queue, channel }: Waiting): string[] {
    const { limit, take = 1, note } = this.#options;
    const [key = ''] = this.wired;
    const words =
      this.wired.length > 1
        ? ['LOCK.MACQUIRE', String(this.wired.length), ...this.wired, owner, this.mode]
        : limit != null
          ? ['LOCK.SHARE', key, owner, String(limit), 'TAKE', String(take)]
          : this.mode === 'READ'
            ? ['LOCK.RW', key, owner, 'READ']
            : ['LOCK.ACQUIRE', key, owner];
    words.push('PX', String(this.lease), 'RETRY', String(take));
    if (block > 0) words.push('BLOCK', String(block));
    if (this.wait > 0) words.push('QUEUE', String(queue));
    if (this.wait > 0 && channel !== undefined) words.push('NOTIFY', channel);
    if (note != null) words.push('NOTE', note);
    return words;
  }

  /** The request that takes over what another process had under this fence, by a higher one. */
  adopt(owner: string, fence: number): string[] {
    const { note } = this.#options;
    const words = ['LOCK.EXTEND', this.wired[0] ?? '', owner, 'PX', String(this.lease)];
    words.push('FENCE', String(fence), 'MINFENCE', String(fence + 1));
    return note == null ? words : [...words, 'NOTE', note];
  }

  /** Leaves the queue, and gives back what was granted meanwhile. */
  leave(owner: string): string[] {
    const [key = ''] = this.wired;
    return this.wired.length > 1
      ? ['LOCK.MRELEASE', String(this.wired.length), ...this.wired, owner, 'ALL']
      : ['LOCK.RELEASE', key, owner, 'ALL'];
  }
}

/** A fence, which is below 2^53. */
export function numberOf(reply: unknown): number {
  return typeof reply === 'number' ? reply : Number(String(reply));
}
