// Locks of the Redis module redis-lock, for node-redis and ioredis (and iovalkey), alone or as cluster clients.
//
//     const locks = new Locks(client);
//     await locks.using('report', async (signal, lock) => { ... });
//
// One file without dependencies: copy it, or install the package. All times are in milliseconds.
//
// The file has four parts: the errors, Locks with its waits, Lock with its renewal, and the connections. The helper has
// connections of its own, made from the settings of your client, and never uses yours: a wait would hold up what you
// send there, and a client's offline queue and retries would send a renewal when it is too late.
//
// SPDX-License-Identifier: MIT

import { randomBytes } from 'node:crypto';
import { type EventEmitter, once } from 'node:events';
import { hostname, uptime } from 'node:os';
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';

/** The shortest lease that the helper takes: below it a busy event loop loses its locks. */
const LEASE_MIN_MS = 1_000;
const LEASE_MS = 30_000;
/** A request waits in the server for at most this long, and asks again: no proxy cuts so short a silence. */
const BLOCK_MS = 3_000;
/** The server keeps the place in the queue for this long between two requests. */
const QUEUE_MS = 10_000;
/** The time for an answer, where neither the lease nor the end of a wait sets another. */
const ANSWER_MS = 3_000;
/** The time for the answers when a wait is given up. */
const LEAVE_MS = 1_000;
const PAUSE_MIN_MS = 100;
const PAUSE_MAX_MS = 1_000;
/** Connections without a lock are kept for the next one for this long. They keep no process alive. */
const LINGER_MS = 1_000;
/** A lock looks at the clock this often at least, since timers stand still while the machine is suspended. */
const LOOK_MS = 2_000;
/** Linux has the clock that counts suspended time in steps of this size. */
const CLOCK_STEP_MS = 10;
const REDIRECTIONS_MAX = 5;

// --- Errors ---

/** What all errors of the helper are. Error replies of the server are passed on as the errors of your client. */
export class LockError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The lock is lost: others may have it. The reason of `lock.signal`, and what `release()` and `guard()` throw. */
export class LockLost extends LockError {}

/** The wait is over, or the only try failed: others hold the lock. */
export class LockTimeout extends LockError {}

/** The wait would deadlock. The message names the cycle of owners: release what you hold, and begin again. */
export class LockDeadlock extends LockError {}

/** The helper sent nothing: an argument is wrong, or the same key was asked for twice under one owner. */
export class LockMisuse extends LockError {}

/** No connection, or no answer in time. `cause` has what the client library said. */
export class LockUnreachable extends LockError {}

/** The code of an error reply, as `READONLY`; none for errors of the client library. */
function codeOf(error: unknown): string | undefined {
  return error instanceof Error ? /^([A-Z]{3,}) /.exec(error.message)?.[1] : undefined;
}

const PASSING =
  /^(UNBLOCKED|GRACE|READONLY|LOADING|CLUSTERDOWN|TRYAGAIN|MASTERDOWN|NOREPLICAS|MISCONF|LIMIT .*(waiters|places?|(place|waiter)-bytes))\b/;

/** What a server says that does not let the client in. */
const REFUSALS: ReadonlySet<string | undefined> = new Set(['NOAUTH', 'WRONGPASS', 'NOPERM']);

/** Whether the same request may succeed later. */
function isPassing(error: unknown): boolean {
  if (error instanceof LockUnreachable || isRedirection(error)) return true;
  return PASSING.test((error as Error).message);
}

/** Whether another node of the cluster has the key. */
function isRedirection(error: unknown): boolean {
  return codeOf(error) === 'MOVED' || codeOf(error) === 'ASK';
}

// --- Options ---

/** How to take a lock. All times are in milliseconds. */
export interface LockOptions {
  /** How soon the lock is freed after its process dies. It is renewed until then. 30000, and at least 1000. */
  lease?: number | undefined;
  /** How long to wait. 0 tries once. Without it: as long as it takes (`tryAcquire`: 0). */
  wait?: number | undefined;
  /** Hold it together with other readers. */
  shared?: boolean | undefined;
  /** A semaphore: all holders together have at most this many shares. */
  limit?: number | undefined;
  /** How many shares to take, with `limit`. 1. */
  take?: number | undefined;
  /** Text for people, which LOCK.INFO shows. */
  note?: string | undefined;
  /** The lock that is held already: both get one owner, so that the server finds deadlocks. */
  within?: Lock | undefined;
  /** Ends the wait: `acquire` gives the place back, and throws the reason of this signal. */
  signal?: AbortSignal | undefined;
}

const OPTIONS: readonly string[] = [
  'lease',
  'wait',
  'shared',
  'limit',
  'take',
  'note',
  'within',
  'signal',
] satisfies (keyof LockOptions)[];

/** Other libraries take a number here, and options of other names: left unnoticed, they would count for nothing. */
function checked(options: LockOptions): LockOptions {
  if (typeof options !== 'object' || options === null) throw new LockMisuse('options must be an object');
  // Inherited ones as well: an AbortSignal has no others.
  for (const name in options) {
    if (!OPTIONS.includes(name)) throw new LockMisuse(`unknown option ${JSON.stringify(name)}`);
  }
  return options;
}

/** What was asked for, checked. */
class Terms {
  readonly keys: readonly string[];
  readonly lease: number;
  readonly wait: number;
  readonly mode: 'READ' | 'WRITE';
  readonly #options: LockOptions;

  constructor(keys: string | readonly string[], options: LockOptions) {
    const { lease = LEASE_MS, wait, shared = false, limit, take, within, note } = options;
    const demand = (met: boolean, text: string) => {
      if (!met) throw new LockMisuse(text);
    };
    this.keys = typeof keys === 'string' ? [keys] : [...keys];
    demand(this.keys.length > 0, 'no key');
    demand(
      this.keys.every((key) => typeof key === 'string'),
      'a key must be a string',
    );
    demand(new Set(this.keys).size === this.keys.length, 'the same key twice');
    demand(Number.isFinite(lease) && lease >= LEASE_MIN_MS, `lease must be at least ${LEASE_MIN_MS} ms`);
    demand(wait == null || (typeof wait === 'number' && wait >= 0), 'wait must be at least 0 ms');
    const isCount = (value: number) => Number.isInteger(value) && value >= 1;
    demand(limit == null || isCount(limit), 'limit must be a whole number from 1');
    demand(limit == null || (!shared && this.keys.length === 1), 'limit is for one key, and not with shared');
    demand(take == null || (isCount(take) && take <= (limit ?? 1)), 'take must be a whole number from 1 to limit');
    demand(note == null || typeof note === 'string', 'note must be a string');
    demand(within == null || within instanceof Lock, 'within must be a lock');
    this.lease = Math.ceil(lease);
    this.wait = wait ?? Number.POSITIVE_INFINITY;
    this.mode = shared || limit != null ? 'READ' : 'WRITE';
    this.#options = options;
  }

  toString(): string {
    return `lock ${this.keys.map((key) => JSON.stringify(key)).join(', ')}`;
  }

  /** The request. With QUEUE it may be sent any number of times: the owner keeps its place, and counts once. */
  acquire(owner: string, block: number): string[] {
    const { limit, take = 1, note } = this.#options;
    const [key = ''] = this.keys;
    const words =
      this.keys.length > 1
        ? ['LOCK.MACQUIRE', String(this.keys.length), ...this.keys, owner, this.mode]
        : limit != null
          ? ['LOCK.SHARE', key, owner, String(limit), 'TAKE', String(take)]
          : this.mode === 'READ'
            ? ['LOCK.RW', key, owner, 'READ']
            : ['LOCK.ACQUIRE', key, owner];
    words.push('PX', String(this.lease), 'RETRY', String(take));
    if (block > 0) words.push('BLOCK', String(block));
    if (this.wait > 0) words.push('QUEUE', String(QUEUE_MS));
    if (note != null) words.push('NOTE', note);
    return words;
  }

  /** Leaves the queue, and gives back what was granted meanwhile. */
  leave(owner: string): string[] {
    const [key = ''] = this.keys;
    return this.keys.length > 1
      ? ['LOCK.MRELEASE', String(this.keys.length), ...this.keys, owner, 'ALL']
      : ['LOCK.RELEASE', key, owner, 'ALL'];
  }
}

/** One thread of control: an outermost lock, and the locks within it. */
class Owner {
  readonly name = `${hostname().slice(0, 64)}:${process.pid}:${randomBytes(16).toString('hex')}`;
  /** Keys that are held or asked for now. */
  readonly busy = new Set<string>();
  /** Keys that the server may still have under this owner. They are released before they are asked for again. */
  readonly doubtful = new Set<string>();

  enter(keys: readonly string[]): void {
    const twice = keys.find((key) => this.busy.has(key));
    if (twice !== undefined) throw new LockMisuse(`key ${JSON.stringify(twice)} twice under one owner`);
    for (const key of keys) this.busy.add(key);
  }

  leave(keys: readonly string[], isCertain: boolean): void {
    for (const key of keys) {
      this.busy.delete(key);
      if (isCertain) this.doubtful.delete(key);
      else this.doubtful.add(key);
    }
  }
}

// --- Locks ---

/** Takes locks on the server, or the cluster, of a client. Cheap: make one and share it, or make many. */
export class Locks {
  readonly #wire: Wire;
  readonly #defaults: LockOptions;

  /**
   * @param client A client of node-redis (`createClient`, `createCluster`) or ioredis (`Redis`, `Redis.Cluster`).
   * @param defaults Options for all locks. Each call can replace them.
   */
  constructor(client: Client, defaults: LockOptions = {}) {
    this.#wire = new Wire(client);
    this.#defaults = checked(defaults);
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
    const terms = new Terms(keys, all);
    all.signal?.throwIfAborted();
    const owner = all.within ? ownerOf(all.within) : new Owner();
    owner.enter(terms.keys);
    return await new Wait(new Line(this.#wire, terms.keys), terms, owner).run(all.signal);
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
   * @throws What the body throws, but {@link LockLost} for an AbortError that has it as its cause. Else LockLost if the
   * lock was lost before the body ended, and what {@link Locks.acquire} throws.
   */
  using<T>(keys: string | readonly string[], body: Body<T>): Promise<T>;
  using<T>(keys: string | readonly string[], options: LockOptions, body: Body<T>): Promise<T>;
  async using<T>(keys: string | readonly string[], ...rest: [Body<T>] | [LockOptions, Body<T>]): Promise<T> {
    const [options, body] = rest.length === 1 ? [{}, rest[0]] : rest;
    if (typeof body !== 'function') throw new LockMisuse('body must be a function: using(keys, options, body)');
    const lock = await this.acquire(keys, options);
    let result: T;
    try {
      result = await body(lock.signal, lock);
    } catch (error) {
      await lock.release().catch(ignore);
      throw isAbortBy(lock.signal, error) ? lock.signal.reason : error;
    }
    await lock.release();
    return result;
  }
}

/** Whether a function that took the signal rejected because of it: Node.js's own do so with an error of theirs. */
function isAbortBy(signal: AbortSignal, error: unknown): boolean {
  return signal.aborted && error instanceof Error && error.name === 'AbortError' && error.cause === signal.reason;
}

/** What runs under a lock. `signal` is `lock.signal`. */
export type Body<T> = (signal: AbortSignal, lock: Lock) => Promise<T> | T;

/** One acquisition: from the first request until the lock is held, or everything about it is given up. */
class Wait {
  readonly #line: Line;
  readonly #terms: Terms;
  readonly #owner: Owner;
  /** The connection on which the request waits. Nobody shares it. */
  #own: Line | undefined;
  /** The request that was not answered, or not yet. */
  #pending: Promise<unknown> | undefined;
  /** Whether the server may have a place or a hold of the owner. */
  #isKnown = false;
  #redirections = 0;
  #pause = PAUSE_MIN_MS;

  constructor(line: Line, terms: Terms, owner: Owner) {
    this.#line = line;
    this.#terms = terms;
    this.#owner = owner;
  }

  async run(signal: AbortSignal | undefined): Promise<Lock> {
    let cancel: () => void = ignore;
    const cancelled = new Promise<never>((_, reject) => {
      cancel = () => reject(signal?.reason);
    });
    cancelled.catch(ignore);
    signal?.addEventListener('abort', cancel);
    this.#line.wire.hold();
    try {
      return await this.#stand(signal, cancelled);
    } catch (error) {
      this.#owner.leave(this.#terms.keys, await this.#leave());
      this.#line.wire.drop();
      throw error;
    } finally {
      signal?.removeEventListener('abort', cancel);
      this.#own?.close();
    }
  }

  /** Asks until the lock is held, the wait is over, or an error comes that will not pass. */
  async #stand(signal: AbortSignal | undefined, cancelled: Promise<never>): Promise<Lock> {
    const end = performance.now() + this.#terms.wait;
    for (;;) {
      const asked = performance.now();
      // BLOCK 0 would wait without a limit.
      const block = this.#own ? Math.ceil(Math.min(BLOCK_MS, Math.max(1, end - asked))) : 0;
      let failure: unknown;
      let idle: number;
      try {
        const lock = await this.#ask(block, end - asked, cancelled);
        if (lock) return lock;
        // The first request asks on the connection of all, and waits for nothing. From now on one of its own waits.
        this.#own ??= new Line(this.#line.wire, this.#terms.keys, true);
        // Null before the time is up: something between here and the queue does not let requests wait.
        idle = block - (performance.now() - asked);
      } catch (error) {
        signal?.throwIfAborted();
        failure = error;
        idle = this.#pauseAfter(error);
      }
      const left = end - performance.now();
      if (left <= 0) throw failure ?? new LockTimeout(`${this.#terms} is held by others`);
      if (idle > 0) await Promise.race([cancelled, sleep(Math.min(idle, left), undefined, signal && { signal })]);
    }
  }

  /** How long to pause before the next request. Throws what asking again does not help. */
  #pauseAfter(error: unknown): number {
    if (codeOf(error) === 'DEADLOCK') throw new LockDeadlock((error as Error).message, { cause: error });
    if (!isPassing(error)) throw error;
    if (error instanceof LockUnreachable) {
      // The next request goes over the connection of all: perhaps this one cannot be had.
      this.#own?.close();
      this.#own = undefined;
    }
    if (isRedirection(error) && this.#redirections < REDIRECTIONS_MAX) {
      this.#redirections += 1;
      return 0;
    }
    const pause = this.#pause * (1 + Math.random() / 4);
    this.#pause = Math.min(2 * this.#pause, PAUSE_MAX_MS);
    return pause;
  }

  /** One request. Null: not yet. */
  async #ask(block: number, left: number, cancelled: Promise<never>): Promise<Lock | null> {
    const terms = this.#terms;
    const owner = this.#owner;
    if (terms.keys.some((key) => owner.doubtful.has(key))) {
      // A former wait or hold of this owner ended without an answer: its remains must not be taken for the new hold.
      await Promise.race([cancelled, this.#line.request(terms.leave(owner.name), ANSWER_MS)]);
      for (const key of terms.keys) owner.doubtful.delete(key);
    }
    const limit = block + Math.min(Math.max(left, LEAVE_MS), ANSWER_MS);
    const sent = clock();
    this.#isKnown = true;
    this.#pending = (this.#own ?? this.#line).send(terms.acquire(owner.name, block), limit);
    let reply: unknown;
    try {
      reply = await Promise.race([cancelled, this.#pending]);
    } catch (error) {
      if (codeOf(error) !== undefined) this.#answered();
      throw error;
    }
    this.#answered();
    if (reply === null) return null;
    this.#isKnown = true;
    const fences = (Array.isArray(reply) ? reply : [reply]).map((fence) => Number(String(fence)));
    const lock = new Lock(this.#line, owner, terms, { fences, sent });
    if (!(await Promise.race([cancelled, confirm(lock, block > 0)]))) return null;
    start(lock);
    return lock;
  }

  #answered(): void {
    this.#pending = undefined;
    // Without QUEUE nothing stays but a hold.
    this.#isKnown = this.#terms.wait > 0;
  }

  /** Gives up the place, and what was granted meanwhile. Returns whether the server has confirmed that. */
  async #leave(): Promise<boolean> {
    if (!this.#isKnown) return true;
    // What was not sent yet must not overtake the RELEASE.
    this.#own?.closeUnopened();
    const release = () =>
      this.#line.request(this.#terms.leave(this.#owner.name), LEAVE_MS).then(
        () => true,
        (error) => !isPassing(error),
      );
    const released = release();
    // The server answers the request that waits with null then. If it was granted in the same moment, it has a fence; if
    // the RELEASE overtook it, there is no answer: both need a second RELEASE.
    const isQuiet =
      !this.#pending ||
      (await timed(LEAVE_MS, this.#pending).then(
        (reply) => reply === null,
        (error) => codeOf(error) !== undefined,
      ));
    if ((await released) && isQuiet) return true;
    this.#own?.close();
    return await release();
  }
}

// --- Lock ---

// What only this file may do with a lock.
let ownerOf: (lock: Lock) => Owner;
let confirm: (lock: Lock, hasWaited: boolean) => Promise<boolean>;
let start: (lock: Lock) => void;

/** A lock that is held. It is renewed until it is released or lost. */
export class Lock {
  /** The locked keys. */
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
  /** Aborted once, with a {@link LockLost} as its reason, when the lock is lost. Pass it on to what you await. */
  readonly signal: AbortSignal;

  readonly #line: Line;
  readonly #holder: Owner;
  readonly #terms: Terms;
  readonly #control = new AbortController();
  #validUntil: number;
  #renewAt: number;
  #timer: NodeJS.Timeout | undefined;
  /** Why the last renewal failed. */
  #trouble: unknown;
  /** Nothing is renewed or judged any more: it is lost, or the release has begun. */
  #isOver = false;
  #released: Promise<void> | undefined;

  static {
    ownerOf = (lock) => {
      if (lock.lost) throw lock.signal.reason;
      if (lock.#isOver) throw new LockMisuse('within must be a lock that is held');
      return lock.#holder;
    };
    confirm = (lock, hasWaited) => lock.#confirm(hasWaited);
    start = (lock) => lock.#look();
  }

  /** @internal Only {@link Locks} makes locks. */
  constructor(line: Line, owner: Owner, terms: Terms, { fences, sent }: { fences: number[]; sent: number }) {
    this.#line = line;
    this.#holder = owner;
    this.#terms = terms;
    this.keys = terms.keys;
    this.owner = owner.name;
    this.fences = fences;
    this.fence = fences[0] as number;
    this.signal = this.#control.signal;
    this.#validUntil = this.#endOf(sent);
    this.#renewAt = sent + terms.lease / 3;
  }

  /** Whether the lock was lost before it was released. False is true now, and says nothing about the next moment. */
  get lost(): boolean {
    if (!this.#isOver && clock() >= this.#validUntil) this.#lose('it could not be renewed in time', this.#trouble);
    return this.signal.aborted;
  }

  /** Asks the server whether the lock is held now, in the mode and under the fences that were taken. */
  async check(): Promise<boolean> {
    if (this.lost || this.#isOver) return false;
    const mode = this.#terms.mode;
    const replies = await this.#each((key, fence) => ['LOCK.CHECK', key, this.owner, mode, 'FENCE', fence], ANSWER_MS);
    if (replies.includes(null) && !this.#isOver) this.#lose('the server says so');
    return !this.#isOver;
  }

  /**
   * Runs one command only if the lock is held for writing, in one step on the server: no late write gets through. In a
   * cluster the keys of the command need the slot of the lock: `{tag}`. With several keys the first one's hold decides.
   * @returns The reply, as the client library gives it for a command that it does not know.
   * @throws {LockLost} Nothing was run.
   * @throws {LockUnreachable} Nobody knows whether it was run. It is not sent again.
   */
  async guard<T = unknown>(command: string, ...args: (string | number | Buffer)[]): Promise<T> {
    if (this.#terms.mode === 'READ') throw new LockMisuse('guard needs a lock for writing');
    if (this.lost) throw this.signal.reason;
    if (this.#isOver) throw new LockMisuse('guard needs a lock that is held');
    const [key = ''] = this.keys;
    const words = args.map((arg) => (typeof arg === 'number' ? String(arg) : arg));
    const guarded = ['LOCK.GUARD', key, this.owner, String(this.fence), command, ...words];
    const reply = await this.#line.request(guarded, this.#validUntil - clock());
    if (Array.isArray(reply)) return reply[1] as T;
    if (!this.#isOver) this.#lose('the server says so');
    throw new LockLost(`${this.#terms} is lost`);
  }

  /**
   * Gives the lock back. A second call has the outcome of the first.
   * @throws {LockLost} It was lost before: what was done under it may have been done beside another holder.
   * @throws {LockUnreachable} No answer, twice. The lock ends with its lease at the latest.
   */
  release(): Promise<void> {
    this.#released ??= this.#release();
    return this.#released;
  }

  /** For `await using`. Throws {@link LockLost} only: without an answer the lease ends the lock. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#released) return;
    await this.release().catch((error) => {
      if (error instanceof LockLost) throw error;
    });
  }

  /** The lock is valid up to here: counted from before the request, less what two clocks may differ by. */
  #endOf(sent: number): number {
    return sent + this.#terms.lease - Math.max(this.#terms.lease / 100, 100) - CLOCK_STEP_MS;
  }

  /** One request for each key. Null: the key is not held, and so it is when something else lies there. */
  #each(words: (key: string, fence: string) => string[], limit: number): Promise<unknown[]> {
    const ask = async (key: string, at: number) => {
      try {
        return await this.#line.request(words(key, String(this.fences[at])), limit);
      } catch (error) {
        if (codeOf(error) === 'WRONGTYPE') return null;
        throw error;
      }
    };
    return Promise.all(this.keys.map(ask));
  }

  /** After a wait the moment of the grant is not known, so the lease begins anew. False: the lock is lost again. */
  async #confirm(hasWaited: boolean): Promise<boolean> {
    if (hasWaited || clock() > this.#renewAt) return (await this.#extend()) && clock() < this.#validUntil;
    return true;
  }

  async #extend(): Promise<boolean> {
    const lease = this.#terms.lease;
    const sent = clock();
    const px = String(lease);
    const extend = (key: string, fence: string) => ['LOCK.EXTEND', key, this.owner, 'PX', px, 'FENCE', fence];
    const replies = await this.#each(extend, lease / 6);
    if (replies.includes(null)) return false;
    // A lock that was found lost meanwhile stays lost.
    if (!this.#isOver) this.#validUntil = this.#endOf(sent);
    this.#renewAt = sent + lease / 3;
    return true;
  }

  /** The renewal: one look at the clock, and the timer for the next. It keeps no process alive. */
  #look(): void {
    if (this.lost || this.#isOver) return;
    const time = clock();
    if (time >= this.#renewAt) {
      this.#renewAt = Number.POSITIVE_INFINITY;
      void this.#renew();
    }
    const next = Math.min(this.#validUntil - time, this.#terms.lease / 12, LOOK_MS);
    this.#timer = setTimeout(() => this.#look(), next).unref();
  }

  /** Tried again at each look, until the lock is not valid any more. */
  async #renew(): Promise<void> {
    try {
      const isHeld = await this.#extend();
      if (!(isHeld || this.#isOver)) this.#lose('the server says so');
    } catch (error) {
      this.#trouble = error;
      this.#renewAt = clock();
    }
  }

  #lose(why: string, cause?: unknown): void {
    this.#stop();
    this.#holder.leave(this.keys, false);
    this.#line.wire.drop();
    this.#control.abort(new LockLost(`${this.#terms} is lost: ${why}`, { cause }));
  }

  #stop(): void {
    this.#isOver = true;
    clearTimeout(this.#timer);
  }

  async #release(): Promise<void> {
    const words = (key: string, fence: string) => ['LOCK.RELEASE', key, this.owner, 'ALL', 'FENCE', fence];
    if (this.lost) {
      // Of several keys some may be held still.
      await this.#each(words, LEAVE_MS).catch(ignore);
      throw this.signal.reason;
    }
    this.#stop();
    let isCertain = false;
    try {
      const first = await this.#each(words, ANSWER_MS).catch((error) => {
        if (isPassing(error)) return error as Error;
        throw error;
      });
      // Null to a repeated release is the first one's success, of which the answer was lost.
      if (first instanceof Error) await this.#each(words, ANSWER_MS);
      else if (first.includes(null)) this.#control.abort(new LockLost(`${this.#terms} is lost: the server says so`));
      isCertain = true;
    } finally {
      this.#holder.leave(this.keys, isCertain);
      this.#line.wire.drop();
    }
    if (this.signal.aborted) throw this.signal.reason;
  }
}

// --- Connections ---

/** A client of node-redis (`createClient`, `createCluster`), ioredis or iovalkey (`Redis`, `Cluster`). */
export type Client =
  | { duplicate(...args: never[]): unknown; sendCommand(...args: never[]): unknown; readonly isOpen: boolean }
  | { duplicate(...args: never[]): unknown; call(...args: never[]): unknown; readonly status: string };

type Word = string | Buffer;
type Place = { host: string; port: number };
type AddressMap = Record<string, Place> | ((address: string) => Place | null | undefined) | undefined;

/** What is used of a client of either library. */
interface Native {
  options: { socket?: object; commandOptions?: object };
  stream?: { ref?(): void; unref?(): void; destroy(): void };
  duplicate(options: object): Native;
  on(event: 'error' | 'end', listener: (error?: unknown) => void): unknown;
  connect(): Promise<unknown>;
  sendCommand(words: Word[]): Promise<unknown>;
  call(command: Word, words: Word[]): Promise<unknown>;
  ref(): void;
  unref(): void;
  destroy(): void;
  disconnect(): void;
}

/** What is used of a cluster client of either library. */
interface NativeCluster extends EventEmitter {
  masters: { client?: Native }[];
  _options: { nodeAddressMap?: AddressMap };
  nodeClient(node: object): Promise<Native>;
  status: string;
  options: { natMap?: AddressMap };
  nodes(role: 'master'): Native[];
  connect(): Promise<unknown>;
}

/** A connection that neither connects again nor sends anything twice. */
interface Connection {
  connect(): Promise<unknown>;
  send(words: Word[]): Promise<unknown>;
  keepProcessAlive(yes: boolean): void;
  onEnd(listener: () => void): void;
  close(): void;
}

function likeNodeRedis(client: Native, place?: Place): Connection {
  const own = client.duplicate({
    socket: { ...client.options.socket, ...place, reconnectStrategy: false, socketTimeout: undefined },
    commandOptions: { ...client.options.commandOptions, timeout: undefined, abortSignal: undefined },
    disableOfflineQueue: true,
    commandsQueueMaxLength: undefined,
    pingInterval: undefined,
    clientSideCache: undefined,
    emitInvalidate: undefined,
    maintNotifications: 'disabled',
    readonly: false,
  });
  own.on('error', ignore);
  return {
    connect: () => own.connect(),
    send: (words) => own.sendCommand(words),
    keepProcessAlive: (yes) => (yes ? own.ref() : own.unref()),
    // An end that it did not ask for is an error to it.
    onEnd: (listener) => own.on('error', listener),
    close: () => own.destroy(),
  };
}

function likeIoRedis(client: Native, place?: Place): Connection {
  const own = client.duplicate({
    ...place,
    lazyConnect: true,
    retryStrategy: () => null,
    reconnectOnError: null,
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    enableReadyCheck: false,
    enableAutoPipelining: false,
    commandTimeout: undefined,
    socketTimeout: undefined,
    readOnly: false,
  });
  // The caller is told "Connection is closed.", and the listeners why.
  let why: unknown;
  own.on('error', (error) => {
    why = error;
  });
  return {
    connect: () => own.connect().catch((error) => Promise.reject(why ?? error)),
    send: ([command = '', ...words]) => own.call(command, words),
    keepProcessAlive: (yes) => (yes ? own.stream?.ref?.() : own.stream?.unref?.()),
    onEnd: (listener) => own.on('end', listener),
    close: () => {
      own.disconnect();
      // Alone, it waits for the server to close as well.
      own.stream?.destroy();
    },
  };
}

/** Makes connections like those of the client: to its server, or to this node of its cluster, or to any node. */
function makerFor(client: object): (address?: string) => Promise<Connection> {
  const [native, cluster] = [client as Native, client as NativeCluster];
  if ('masters' in client) {
    return async (address) => {
      const node = oneOf(cluster.masters);
      const like = node.client ?? (await cluster.nodeClient(node));
      return likeNodeRedis(like, placeOf(address, cluster._options.nodeAddressMap));
    };
  }
  if ('isCluster' in client && client.isCluster === true) {
    return async (address) => {
      if (cluster.status === 'wait') await cluster.connect();
      if (cluster.nodes('master').length === 0) await once(cluster, 'ready');
      return likeIoRedis(oneOf(cluster.nodes('master')), placeOf(address, cluster.options.natMap));
    };
  }
  if ('call' in client) return async () => likeIoRedis(native);
  if ('unref' in client) return async () => likeNodeRedis(native);
  throw new LockMisuse('client must be one of createClient or createCluster of node-redis, or one of ioredis');
}

function oneOf<T>(nodes: T[]): T {
  const node = nodes[Math.floor(Math.random() * nodes.length)];
  if (!node) throw new Error('the cluster client knows no node: connect it first');
  return node;
}

/** Where a node is for this client: behind address translation not where the cluster says. */
function placeOf(address: string | undefined, map: AddressMap): Place | undefined {
  if (address === undefined) return undefined;
  const place = typeof map === 'function' ? map(address) : map?.[address];
  const colon = address.lastIndexOf(':');
  return place ?? { host: address.slice(0, colon), port: Number(address.slice(colon + 1)) };
}

/** One connection, with any number of requests under way. Without any it keeps no process alive. */
class Link {
  /** Takes no new request, since one failed or the connection ended. It closes after the last one. */
  isRetired = false;
  #connection: Connection | undefined;
  readonly #opened: Promise<Connection>;
  isOpen = false;
  #isClosed = false;
  #requests = 0;

  constructor(made: Promise<Connection>) {
    this.#opened = this.#open(made);
    this.#opened.catch(ignore);
  }

  async #open(made: Promise<Connection>): Promise<Connection> {
    const connection = await made;
    if (this.#isClosed) throw new Error('closed');
    this.#connection = connection;
    connection.onEnd(() => this.retire());
    await connection.connect();
    this.isOpen = true;
    return connection;
  }

  /** Rejects with the error reply, or with {@link LockUnreachable}: then nobody knows what the server did. */
  async send(words: Word[], limit: number, isAsking: boolean): Promise<unknown> {
    let isLate = false;
    this.#requests += 1;
    this.#connection?.keepProcessAlive(true);
    const reply = this.#opened.then((connection) => {
      if (isLate || this.#isClosed) throw new Error('closed');
      if (isAsking) connection.send(['ASKING']).catch(ignore);
      return connection.send(words);
    });
    try {
      return await timed(limit, reply);
    } catch (error) {
      isLate = true;
      if (this.isOpen ? codeOf(error) : REFUSALS.has(codeOf(error))) throw error;
      this.isRetired = true;
      throw new LockUnreachable(`${words[0]}: ${(error as Error).message}`, { cause: error });
    } finally {
      this.#requests -= 1;
      if (this.#requests === 0) {
        this.#connection?.keepProcessAlive(false);
        if (this.isRetired) this.close();
      }
    }
  }

  retire(): void {
    if (this.#requests === 0) this.close();
    this.isRetired = true;
  }

  close(): void {
    this.#isClosed = true;
    this.isRetired = true;
    this.#connection?.close();
  }
}

/** The connections that the locks of one {@link Locks} share, and what they learned of the slots of a cluster. */
class Wire {
  readonly make: (address?: string) => Promise<Connection>;
  readonly homes = new Map<number, string>();
  readonly #links = new Map<string | undefined, Link>();
  #users = 0;
  #linger: NodeJS.Timeout | undefined;

  constructor(client: object) {
    this.make = makerFor(client);
  }

  /** The connections stay open until each hold is dropped, and a moment longer. */
  hold(): void {
    this.#users += 1;
    clearTimeout(this.#linger);
  }

  drop(): void {
    this.#users -= 1;
    if (this.#users === 0) this.#linger = setTimeout(() => this.#close(), LINGER_MS).unref();
  }

  #close(): void {
    for (const link of this.#links.values()) link.close();
    this.#links.clear();
  }

  link(address: string | undefined): Link {
    let link = this.#links.get(address);
    if (!link || link.isRetired) {
      link = new Link(this.make(address));
      this.#links.set(address, link);
    }
    return link;
  }
}

/** The way to the server of a key, wherever in a cluster its slot goes: over shared connections, or one of its own. */
class Line {
  readonly wire: Wire;
  readonly #isOwn: boolean;
  readonly #slot: number;
  #link: Link | undefined;
  #address: string | undefined;
  /** The node to which the server sent the next request, and that one alone. */
  #asking: string | undefined;

  constructor(wire: Wire, keys: readonly string[], isOwn = false) {
    this.wire = wire;
    this.#isOwn = isOwn;
    this.#slot = slotOf(keys[0] ?? '');
  }

  /** Sends it, and follows redirections, all within the limit. */
  async request(words: Word[], limit: number): Promise<unknown> {
    const end = performance.now() + limit;
    this.wire.hold();
    try {
      for (let hops = 0; ; hops += 1) {
        try {
          return await this.send(words, end - performance.now());
        } catch (error) {
          if (!isRedirection(error) || hops >= REDIRECTIONS_MAX) throw error;
        }
      }
    } finally {
      this.wire.drop();
    }
  }

  /** Sends it once. A redirection is thrown: the next request follows it. */
  async send(words: Word[], limit: number): Promise<unknown> {
    const asking = this.#asking;
    this.#asking = undefined;
    const address = asking ?? this.wire.homes.get(this.#slot);
    const link = this.#to(address);
    try {
      return await link.send(words, limit, asking !== undefined);
    } catch (error) {
      this.#learn(error as Error, link, address);
      throw error;
    }
  }

  #to(address: string | undefined): Link {
    if (!this.#isOwn) return this.wire.link(address);
    if (!this.#link || this.#link.isRetired || this.#address !== address) {
      this.#link?.close();
      this.#link = new Link(this.wire.make(address));
      this.#address = address;
    }
    return this.#link;
  }

  #learn(error: Error, link: Link, from = ''): void {
    const [, , target = ''] = error.message.split(' ');
    // No host: the node that answers.
    const next = target.startsWith(':') ? from.slice(0, from.lastIndexOf(':')) + target : target;
    const code = codeOf(error);
    if (code === 'ASK') this.#asking = next;
    else if (code === 'MOVED') this.wire.homes.set(this.#slot, next);
    // Nobody answers there: any other node knows where the slot is.
    else if (error instanceof LockUnreachable) this.wire.homes.delete(this.#slot);
    // Another server is the primary now: a new connection finds it where an address or a sentinel leads to it.
    else if (code === 'READONLY' || code === 'MASTERDOWN' || code === 'UNBLOCKED') link.retire();
  }

  close(): void {
    this.#link?.close();
  }

  closeUnopened(): void {
    if (this.#link?.isOpen === false) this.#link.close();
  }
}

/** The slot of a key in a cluster: CRC16 of its tag, or of the whole key. */
function slotOf(key: string): number {
  let crc = 0;
  for (const byte of Buffer.from(/^[^{]*\{([^}]+)\}/.exec(key)?.[1] ?? key)) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit += 1) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
  }
  return crc & 0x3fff;
}

// --- Time ---

/** Milliseconds on a clock that also counts while the machine is suspended, as Node's own does not on Linux. */
function clock(): number {
  return process.platform === 'linux' ? uptime() * 1_000 : performance.now();
}

/** The promise, or an error when the time is over. */
async function timed<T>(ms: number, promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${Math.ceil(ms)} ms`)), Math.min(ms, 2 ** 31 - 1));
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

function ignore(): void {}
