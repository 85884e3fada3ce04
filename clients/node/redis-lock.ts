// Locks of the Redis module redis-lock, for node-redis and ioredis (and iovalkey), alone or as cluster clients.
//
//     const locks = new Locks(client);
//     await locks.using('report', async (signal, lock) => { ... });
//
// This file is what an application calls. engine/ has what a helper does, transport/ the connections, errors.ts the
// errors. None of them imports anything but Node.js. All times are in milliseconds.
//
// SPDX-License-Identifier: MIT

import { AsyncLocalStorage } from 'node:async_hooks';
import { debuglog } from 'node:util';
import { adopt } from './engine/adopt.ts';
import { Figures, type LockListener } from './engine/figures.ts';
import type { Engine, Hold } from './engine/hold.ts';
import { AllNotices } from './engine/notices.ts';
import { Owner } from './engine/owner.ts';
import { Renewer } from './engine/renewer.ts';
import { type Asked, Terms } from './engine/terms.ts';
import { BLOCKING_MAX, BLOCKING_USUAL } from './engine/times.ts';
import { Wait } from './engine/wait.ts';
import { LockDeadlock, LockLost, LockMisuse, LockTimeout, type OnTrouble, Troubles } from './errors.ts';
import type { Client } from './transport/libraries.ts';
import { Wire } from './transport/links.ts';

export { type LockListener, type LockMeter, recorded } from './engine/figures.ts';
export {
  LockDeadlock,
  LockError,
  LockLost,
  LockMisuse,
  LockTimeout,
  LockUnreachable,
  type OnTrouble,
  type TroubleKind,
} from './errors.ts';
export type { Client } from './transport/libraries.ts';

// --- Options ---

/** How to take a lock. All times are in milliseconds. */
export interface LockOptions extends Asked {
  /** The lock that is held already: both get one owner, so that the server finds deadlocks. */
  within?: Lock | undefined;
  /**
   * Of {@link Locks.using}: within its body the same lock may be taken again by `using`, and is given back with the outermost
   * body. Without it a wait for what an outer body holds is a {@link LockDeadlock} at once.
   * @defaultValue false
   */
  reentrant?: boolean | undefined;
  /** Ends the wait: `acquire` gives the place back, and throws the reason of this signal. */
  signal?: AbortSignal | undefined;
}

/** What the locks of one {@link Locks} have in common, and options for all of them. Each call can replace the latter. */
export interface LocksOptions extends LockOptions {
  /**
   * So many waits have a connection each, on which the grant comes at once. It is kept for the next wait, up to 8 of them
   * for 30 s. Further waits are told by messages when to ask, all over one connection more; or else they ask each second.
   * @defaultValue 8; where no messages can be had, 32
   */
  maxBlocking?: number | undefined;
  /**
   * Told of trouble at the first failed attempt, once for each kind until that is over: a wrong port, a server without
   * the module, a missing right, a server at `maxmemory`, no messages for waits, a failed renewal; and of each loss.
   * @defaultValue the debug log of Node.js: `NODE_DEBUG=redis-lock`
   */
  onTrouble?: OnTrouble | undefined;
  /** Hears what the locks do, to count it. For OpenTelemetry: {@link recorded}. */
  listener?: LockListener | undefined;
}

const OPTIONS: readonly string[] = [
  'lease',
  'wait',
  'shared',
  'limit',
  'take',
  'note',
  'max',
  'oldClients',
  'within',
  'reentrant',
  'signal',
] satisfies (keyof LockOptions)[];

/** Other libraries take a number here, and options of other names: left unnoticed, they would count for nothing. */
function checked<T extends object>(options: T, more: readonly string[] = []): T {
  if (typeof options !== 'object' || options === null) throw new LockMisuse('options must be an object');
  // Inherited ones as well: an AbortSignal has no others.
  for (const name in options) {
    if (!(OPTIONS.includes(name) || more.includes(name)))
      throw new LockMisuse(`unknown option ${JSON.stringify(name)}`);
  }
  return options;
}

const log = debuglog('redis-lock');

/** A lock on its way to another process: {@link Lock.detach} gives it, {@link Locks.adopt} takes it. It may be sent as JSON. */
export interface HoldToken {
  /** The key, without a `keyPrefix`. */
  key: string;
  /** The name under which the server knows the holder. */
  owner: string;
  /** The fence of the holder, which is void once the lock was taken over. */
  fence: number;
  /** For how long the lock waits to be taken over, and the lease of its next holder, in milliseconds. */
  lease: number;
  /** True if other readers may hold it, too. */
  shared: boolean;
}

// --- Locks ---

/** Takes locks on the server, or the cluster, of a client. Make one and share it: its locks share its connections. */
export class Locks {
  /** The `keyPrefix` of the client, which ioredis and this helper write before each key of a lock. */
  readonly keyPrefix: string;
  readonly #engine: Engine;
  readonly #defaults: LockOptions;
  /** What the bodies around hold. */
  readonly #held = new AsyncLocalStorage<readonly Lock[]>();

  /**
   * @param client A client of node-redis (`createClient`, `createCluster`) or ioredis (`Redis`, `Redis.Cluster`). It is
   * not used: the helper makes connections of its own from its settings.
   * @param options For all locks.
   * @throws {TypeError} No such client.
   * @throws {LockMisuse} A wrong option.
   */
  constructor(client: Client, options: LocksOptions = {}) {
    const { maxBlocking, onTrouble, listener, ...defaults } = checked(options, [
      'maxBlocking',
      'onTrouble',
      'listener',
    ]);
    if (maxBlocking !== undefined && !(Number.isInteger(maxBlocking) && maxBlocking >= 0)) {
      throw new LockMisuse('maxBlocking must be a whole number from 0');
    }
    if (onTrouble != null && typeof onTrouble !== 'function') throw new LockMisuse('onTrouble must be a function');
    if (listener != null && typeof listener !== 'object') throw new LockMisuse('listener must be an object');
    const troubles = new Troubles(onTrouble ?? ((error, kind) => log('%s: %s', kind, error.message)));
    const wire = new Wire(client);
    const notices = new AllNotices(wire, troubles);
    const blocking = { usual: maxBlocking ?? BLOCKING_USUAL, untold: maxBlocking ?? BLOCKING_MAX };
    this.#engine = {
      wire,
      notices,
      renewer: new Renewer(wire.time),
      troubles,
      figures: new Figures(listener ?? {}),
      blocking,
    };
    this.keyPrefix = this.#engine.wire.prefix;
    this.#defaults = defaults;
  }

  /**
   * Takes the lock, waiting in line for it. Release it, or write `await using lock = await locks.acquire(key)`.
   * Several keys are taken in one step, all or none; in a cluster they must have one slot.
   * @throws {LockTimeout} The wait is over.
   * @throws {LockDeadlock} At once.
   * @throws {LockUnreachable} No connection, when the wait is over. Error replies of the server are thrown then, too.
   * @throws {LockMisuse} A wrong argument.
   */
  async acquire(keys: string | readonly string[], options: LockOptions = {}): Promise<Lock> {
    const all = { ...this.#defaults, ...checked(options) };
    const { within, signal } = all;
    const terms = new Terms(keys, all, this.keyPrefix);
    if (within != null && !(within instanceof Lock)) throw new LockMisuse('within must be a lock');
    signal?.throwIfAborted();
    if (terms.wait > 0 && this.#outer(terms).some((outer) => isEndlessFor(outer, terms))) {
      throw new LockDeadlock(`${terms} is held by a body around, and would wait for itself: see reentrant`);
    }
    const owner = within ? ownerOf(within) : new Owner();
    owner.enter(terms.keys);
    return lockOf(await new Wait(this.#engine, terms, owner, signal).run());
  }

  /** What the bodies around hold of these keys. */
  #outer(terms: Terms): Lock[] {
    return (this.#held.getStore() ?? []).filter((lock) => terms.keys.some((key) => lock.keys.includes(key)));
  }

  /**
   * Takes over a lock that another process has detached. Its fence rises, so that what the other process still sends is
   * refused. It is asked for until the lease is over, or `wait` before that. `signal` ends that, and gives the lock back.
   * @param token What {@link Lock.detach} has returned.
   * @throws {LockLost} Its lease was over, or it was taken over already.
   * @throws {LockUnreachable} No answer in that time: nobody knows whether it was taken over.
   */
  async adopt(token: HoldToken, options: LockOptions = {}): Promise<Lock> {
    const { key, owner: name, fence, lease, shared } = token;
    if (typeof name !== 'string' || !Number.isSafeInteger(fence)) throw new LockMisuse('token must be that of a lock');
    const all = { ...this.#defaults, lease, shared, ...checked(options) };
    const terms = new Terms(key, all, this.keyPrefix);
    all.signal?.throwIfAborted();
    const owner = new Owner(name);
    owner.enter(terms.keys);
    return lockOf(await adopt(this.#engine, terms, { owner, fence, lease }, all.signal));
  }

  /** The same, but tries only once, unless `wait` is given here, and returns null when others hold the lock. */
  async tryAcquire(keys: string | readonly string[], options: LockOptions = {}): Promise<Lock | null> {
    try {
      return await this.acquire(keys, { ...checked(options), wait: options.wait ?? 0 });
    } catch (error) {
      if (error instanceof LockTimeout) return null;
      throw error;
    }
  }

  /**
   * Takes the lock, runs the body, and releases. The body gets a signal that is aborted when the lock is lost.
   * @returns What the body returns.
   * @throws What the body throws, but {@link LockLost} for an AbortError that has it as its cause. If the lock was lost as
   * well, that is the `cause` of what the body throws, unless it has one. Else LockLost if the lock was lost before the
   * body ended, and what {@link Locks.acquire} throws.
   */
  using<T>(keys: string | readonly string[], body: Body<T>): Promise<T>;
  using<T>(keys: string | readonly string[], options: LockOptions | undefined, body: Body<T>): Promise<T>;
  async using<T>(
    keys: string | readonly string[],
    ...rest: [Body<T>] | [LockOptions | undefined, Body<T>]
  ): Promise<T> {
    const [options, body] = rest.length === 1 ? [{}, rest[0]] : rest;
    if (typeof body !== 'function') throw new LockMisuse('body must be a function: using(keys, options, body)');
    const all = { ...this.#defaults, ...checked(options ?? {}) };
    if (all.reentrant) {
      const terms = new Terms(keys, all, this.keyPrefix);
      const outer = this.#outer(terms).find((lock) => isLike(lock, terms));
      if (outer) return await again(outer, body);
    }
    const lock = await this.acquire(keys, options);
    let value: T;
    try {
      value = await this.#held.run([...(this.#held.getStore() ?? []), lock], () => body(lock.signal, lock));
    } catch (error) {
      // It throws what the body threw, whatever comes of the release.
      const loss: unknown = await lock.release().catch((failure) => failure);
      throw loss instanceof LockLost ? withLoss(error, loss) : error;
    }
    await lock.release();
    return value;
  }

  /**
   * Leads again and again: waits for the lock, does the work of a term under it, and gives it back. The number of a term is
   * `lock.fence`. It ends with the first value but undefined that the work returns; else it waits for the next term, behind
   * others that wait.
   *
   * The signal of a term is aborted when the lock is lost, and another may lead from then on; and when `signal` is. Only the
   * work can stop itself. No term begins before the work of the one before has ended. What the work throws because its lock
   * is lost ends the term alone.
   * @param options There is no limit to the wait for a term: no `wait`. `signal` ends it all.
   * @returns What the work returns.
   * @throws What the work throws otherwise, the reason of `signal`, and what {@link Locks.acquire} throws.
   */
  lead<T>(keys: string | readonly string[], term: Body<T | undefined>): Promise<T>;
  lead<T>(keys: string | readonly string[], options: LeadOptions | undefined, term: Body<T | undefined>): Promise<T>;
  async lead<T>(
    keys: string | readonly string[],
    ...rest: [Body<T | undefined>] | [LeadOptions | undefined, Body<T | undefined>]
  ): Promise<T> {
    const [options, term] = rest.length === 1 ? [{}, rest[0]] : rest;
    if (typeof term !== 'function') throw new LockMisuse('term must be a function: lead(keys, options, term)');
    const all: LockOptions = { ...this.#defaults, wait: undefined, ...options, reentrant: false };
    if (all.wait != null) throw new LockMisuse('lead waits without a limit');
    for (;;) {
      const value = await this.#term(keys, all, term);
      if (value !== undefined) return value;
    }
  }

  /** One term of a leader. */
  async #term<T>(keys: string | readonly string[], all: LockOptions, term: Body<T>): Promise<T | undefined> {
    const { signal: stop } = all;
    let mine: Lock | undefined;
    let isDone = false;
    let value: T | undefined;
    try {
      await this.using(keys, all, async (lost, lock) => {
        mine = lock;
        value = await term(stop ? AbortSignal.any([lost, stop]) : lost, lock);
        isDone = true;
      });
    } catch (error) {
      // The work stopped when it was told to.
      if (mine && stop?.aborted && isAbort(error, stop.reason)) throw stop.reason;
      // Lost, or the release had no answer: that is repeated, and told as trouble.
      if (!(isDone || (error instanceof LockLost && mine?.lost))) throw error;
    }
    return value;
  }
}

/** How to lead: there is no limit to the wait for a term. */
export type LeadOptions = Omit<LockOptions, 'wait' | 'reentrant'>;

/** True if a signal with this reason has stopped what threw the error. */
function isAbort(error: unknown, reason: unknown): boolean {
  return error === reason || (error instanceof Error && error.name === 'AbortError' && error.cause === reason);
}

/** A body within the one that holds the lock. */
async function again<T>(lock: Lock, body: Body<T>): Promise<T> {
  lock.throwIfLost();
  const value = await body(lock.signal, lock);
  lock.throwIfLost();
  return value;
}

/** What the body threw, and the loss behind it. */
function withLoss(error: unknown, loss: LockLost): unknown {
  if (!(error instanceof Error)) return error;
  // The signal stopped the body.
  if (isAbort(error, loss)) return loss;
  if (error.cause === undefined) {
    // False for one that is frozen: then it stays as it is.
    Reflect.defineProperty(error, 'cause', { value: loss, configurable: true, writable: true, enumerable: false });
  }
  return error;
}

/** What runs under a lock. `signal` is `lock.signal`. */
export type Body<T> = (signal: AbortSignal, lock: Lock) => Promise<T> | T;

// --- Lock ---

// What only this file may do with a lock.
let lockOf: (hold: Hold) => Lock;
let ownerOf: (lock: Lock) => Owner;
/** True if it is held, and for the same terms. */
let isLike: (lock: Lock, terms: Terms) => boolean;
/** True if a wait for these terms could not end before the lock is given back. */
let isEndlessFor: (lock: Lock, terms: Terms) => boolean;

/** A lock that is held. It is renewed until it is released or lost, or until nothing refers to it any more. */
export class Lock {
  /** The locked keys, without a `keyPrefix`. */
  readonly keys: readonly string[];
  /** The name under which the server knows the holder. */
  readonly owner: string;
  /** One fence for each key. */
  readonly fences: readonly number[];
  /**
   * The fence of the first key: higher than all before it. Send it along to whatever the lock protects, and let that
   * refuse a lower one than it has seen. It is below 2^53, so a number has it exactly.
   */
  readonly fence: number;
  readonly #hold: Hold;
  #released: Promise<void> | undefined;

  static {
    lockOf = (hold) => new Lock(hold);
    ownerOf = (lock) => {
      lock.throwIfLost();
      if (lock.#hold.isOver) throw new LockMisuse('within must be a lock that is held');
      return lock.#hold.holder;
    };
    isLike = (lock, terms) => !(lock.#hold.isOver && !lock.lost) && lock.#hold.terms.isLike(terms);
    isEndlessFor = (lock, terms) => {
      const { isOver, terms: held } = lock.#hold;
      return !(lock.lost || isOver) && held.max === Number.POSITIVE_INFINITY && terms.excludes(held);
    };
  }

  private constructor(hold: Hold) {
    this.#hold = hold;
    this.keys = hold.terms.keys;
    this.owner = hold.holder.name;
    this.fences = hold.fences;
    this.fence = hold.fences[0] as number;
    hold.face = this;
  }

  /** Aborted once, with a {@link LockLost} as its reason, when the lock is lost. Pass it on to what you await. */
  get signal(): AbortSignal {
    return this.#hold.signal;
  }

  /** True if the lock was lost before it was released. It looks at the clock, so it is right after a blocked loop, too. */
  get lost(): boolean {
    return this.#hold.loss !== undefined;
  }

  /**
   * Throws if the lock is lost. It looks at the clock: `signal.throwIfAborted()` knows of a loss only after the event loop
   * has turned. Call it before each step of the work that needs the lock.
   * @throws {LockLost}
   */
  throwIfLost(): void {
    const { loss } = this.#hold;
    if (loss) throw loss;
  }

  /** For how many milliseconds the lock is valid still, unless it is renewed. 0 if it is not. Asks nobody. */
  get validFor(): number {
    return this.#hold.validFor;
  }

  /**
   * Replaces the note, such as by how far the work is.
   * @throws {LockLost}
   */
  async setNote(note: string): Promise<void> {
    await this.#hold.setNote(note);
  }

  /**
   * Renews the lock no more, and lets it end after so many milliseconds, whatever becomes of this process: for work that is
   * not to begin again at once. The server counts it as a lease that is over. To release it after that does nothing.
   * @throws {LockLost} It was lost before.
   */
  releaseAfter(ms: number): Promise<void> {
    if (!(ms > 0 && ms < Number.POSITIVE_INFINITY)) throw new LockMisuse('the time must be above 0 ms');
    return this.#letGo(ms);
  }

  #letGo(ms: number, detached = false): Promise<void> {
    if (this.#released) throw new LockMisuse('the lock was given back already');
    this.#released = this.#hold.letGo(ms, detached);
    return this.#released;
  }

  /**
   * Gives the lock to another process, which takes it over by {@link Locks.adopt} within the lease. To release it after
   * that does nothing. For one key, no share of it, and without `max`. If the server refuses or does not answer, it is given
   * back.
   * @throws {LockLost} It was lost before.
   */
  async detach(): Promise<HoldToken> {
    const { terms } = this.#hold;
    if (!terms.isTransferable) throw new LockMisuse('several keys, shares, and what has a max cannot be handed over');
    await this.#letGo(terms.lease, true);
    const { owner, fence } = this;
    return { key: terms.keys[0] as string, owner, fence, lease: terms.lease, shared: terms.mode === 'READ' };
  }

  /** Asks the server whether the lock is held now, in the mode and under the fences that were taken. */
  async check(): Promise<boolean> {
    return await this.#hold.check();
  }

  /**
   * Runs one command only if the lock is held for writing, in one step on the server: no late write gets through. In a
   * cluster the keys of the command need the slot of the lock: `{tag}`. With several keys the first one's hold decides.
   * The command is sent as it stands: write the `keyPrefix` of an ioredis client before its keys.
   * @returns The reply, as the client library gives it for a command that it does not know.
   * @throws {LockLost} Nothing was run.
   * @throws {LockUnreachable} Nobody knows whether it was run. It is not sent again.
   */
  async guard<T = unknown>(command: string, ...args: (string | number | Buffer)[]): Promise<T> {
    if (this.#hold.terms.mode === 'READ') throw new LockMisuse('guard needs a lock for writing');
    this.throwIfLost();
    if (this.#hold.isOver) throw new LockMisuse('guard needs a lock that is held');
    const words = args.map((arg) => (typeof arg === 'number' ? String(arg) : arg));
    return (await this.#hold.guard([command, ...words])) as T;
  }

  /**
   * Gives the lock back. A second call has the outcome of the first.
   * @throws {LockLost} It was lost before: what was done under it may have been done beside another holder.
   * @throws {LockUnreachable} No answer, twice. It is repeated in the background until the lease is over.
   */
  release(): Promise<void> {
    this.#released ??= this.#hold.release();
    return this.#released;
  }

  /** For `await using`. Throws {@link LockLost} only: without an answer the lease ends the lock. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#released) return;
    await this.release().catch((error) => {
      if (error instanceof LockLost) throw error;
    });
  }
}
