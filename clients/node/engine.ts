// What a helper does: ask, keep the place in the queue, confirm, renew together, leave, give back in the background.
//
// Wait is one acquisition, Hold what it took, Renewer the renewal of all holds of one Locks. An Owner is the name under
// which the server knows them. All times are in milliseconds.
//
// SPDX-License-Identifier: MIT

import { randomFillSync } from 'node:crypto';
import { hostname, uptime } from 'node:os';
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  codeOf,
  explained,
  isPassing,
  isRedirection,
  LockDeadlock,
  LockError,
  LockLost,
  LockMisuse,
  LockTimeout,
  LockUnreachable,
  type Troubles,
} from './errors.ts';
import { ignore, Line, type Link, type Wire } from './transport.ts';

/** The shortest lease that the helper takes: below it a busy event loop loses its locks. */
const LEASE_MIN_MS = 1_000;
const LEASE_MS = 30_000;
/** A request waits in the server for at most this long, and asks again: no proxy cuts so short a silence. */
const BLOCK_MS = 3_000;
/** The server keeps the place in the queue for this long between two requests. */
const QUEUE_MS = 10_000;
/** A wait that has no link to wait on asks this often. */
const POLL_MS = 1_000;
/** The time for an answer, where neither the lease nor the end of a wait sets another. */
const ANSWER_MS = 3_000;
/** The time for an answer when a wait is over or given up. */
const LEAVE_MS = 1_000;
/** So long the application waits for the end of what it gave up. The rest goes on in the background. */
const CANCEL_MS = 250;
const PAUSE_MIN_MS = 100;
const PAUSE_MAX_MS = 1_000;
/** The holds are looked at this often at least, since timers stand still while the machine is suspended. */
const LOOK_MS = 1_000;
/** Linux has the clock that counts suspended time in steps of this size. */
const CLOCK_STEP_MS = 10;
const REDIRECTIONS_MAX = 5;
/** The pause before a try that is repeated, though its time is over. */
const AT_ONCE = -1;
/** The links of so many unanswered requests are kept for a RELEASE behind them. */
const UNANSWERED_MAX = 4;

// --- What is asked for ---

/** The options of a lock that say what is asked for. */
export interface Asked {
  lease?: number | undefined;
  wait?: number | undefined;
  shared?: boolean | undefined;
  limit?: number | undefined;
  take?: number | undefined;
  note?: string | undefined;
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

function checkOptions(lease: number, { wait, shared, limit, take, note }: Asked, keys: number): void {
  demand(typeof lease === 'number', 'lease must be a number of milliseconds');
  demand(lease >= LEASE_MIN_MS && lease < Number.POSITIVE_INFINITY, `lease must be at least ${LEASE_MIN_MS} ms`);
  demand(wait == null || typeof wait === 'number', 'wait must be a number of milliseconds');
  demand(wait == null || wait >= 0, 'wait must be at least 0 ms');
  demand(limit == null || isCount(limit), 'limit must be a whole number from 1');
  demand(limit == null || (!shared && keys === 1), 'limit is for one key, and not with shared');
  demand(take == null || (isCount(take) && take <= (limit ?? 1)), 'take must be a whole number from 1 to limit');
  demand(note == null || typeof note === 'string', 'note must be a string');
}

/** What was asked for, checked. */
export class Terms {
  readonly keys: readonly string[];
  readonly lease: number;
  readonly wait: number;
  readonly mode: 'READ' | 'WRITE';
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
    this.mode = shared || limit != null ? 'READ' : 'WRITE';
    this.#options = options;
  }

  toString(): string {
    return `lock ${this.keys.map((key) => JSON.stringify(key)).join(', ')}`;
  }

  /** What two clocks may differ by. */
  get margin(): number {
    return Math.max(this.lease / 100, 100);
  }

  /** The request. With QUEUE it may be sent any number of times: the owner keeps its place, and counts once. */
  acquire(owner: string, block: number): string[] {
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
    if (this.wait > 0) words.push('QUEUE', String(QUEUE_MS));
    if (note != null) words.push('NOTE', note);
    return words;
  }

  /** Leaves the queue, and gives back what was granted meanwhile. */
  leave(owner: string): string[] {
    const [key = ''] = this.wired;
    return this.wired.length > 1
      ? ['LOCK.MRELEASE', String(this.wired.length), ...this.wired, owner, 'ALL']
      : ['LOCK.RELEASE', key, owner, 'ALL'];
  }
}

const HOME = `${hostname().slice(0, 64)}:${process.pid}:`;

/** One thread of control: an outermost lock, and the locks within it. */
export class Owner {
  readonly name = HOME + randomHex();
  /** Keys that are held or asked for now. */
  #busy: readonly string[] = NONE;
  /** Keys that are given back now, in the background: until then they cannot be asked for. */
  #leaving: Map<string, Promise<boolean>> | undefined;
  /** Keys that the server may still have under this owner. They are released before they are asked for again. */
  #doubtful: Set<string> | undefined;

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

const NONE: readonly string[] = [];
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

// --- Waits ---

/** What the locks of one Locks share. */
export interface Engine {
  readonly wire: Wire;
  readonly renewer: Renewer;
  readonly troubles: Troubles;
}

/** A request under way. */
interface Request {
  readonly link: Link;
  readonly reply: Promise<unknown>;
}

/** One acquisition: from the first request until the lock is held, or everything about it is given up. */
export class Wait {
  readonly #engine: Engine;
  readonly #line: Line;
  readonly #terms: Terms;
  readonly #owner: Owner;
  readonly #signal: AbortSignal | undefined;
  #cancelled: Promise<never> | undefined;
  /** The link on which the request waits. Nobody shares it. */
  #lent: Link | undefined;
  /** There was none that could be opened: asked again each POLL_MS. */
  #isPolling = false;
  #pending: Request | undefined;
  /** The links of requests that were not answered. */
  readonly #unanswered: Link[] = [];
  /** True if the server may have a place or a hold of the owner. */
  #isKnown = false;
  #hold: Hold | undefined;
  #redirections = 0;
  #pause = PAUSE_MIN_MS;
  /** When the last request was made, for how long it waits in the server, and whether its link was open before. */
  #asked = 0;
  #block = 0;
  #wasOpen = false;

  constructor(engine: Engine, terms: Terms, owner: Owner, signal: AbortSignal | undefined) {
    this.#engine = engine;
    this.#line = new Line(engine.wire, terms.wired[0] ?? '');
    this.#terms = terms;
    this.#owner = owner;
    this.#signal = signal;
  }

  async run(): Promise<Hold> {
    const { wire } = this.#engine;
    let cancel: () => void = ignore;
    if (this.#signal) {
      this.#cancelled = new Promise<never>((_, reject) => {
        cancel = () => reject(this.#signal?.reason);
      });
      this.#cancelled.catch(ignore);
      this.#signal.addEventListener('abort', cancel);
    }
    wire.hold();
    try {
      const hold = await this.#stand();
      this.#part();
      this.#engine.troubles.over('unreachable', 'no-module', 'no-right', 'memory', 'refused');
      return hold;
    } catch (error) {
      this.#hold?.end();
      if (this.#isKnown) {
        const left = this.#leave();
        void this.#owner.leaveWith(this.#terms.keys, left);
        await until(CANCEL_MS, left);
      } else {
        this.#owner.leave(this.#terms.keys, true);
        this.#part();
      }
      throw explained(error);
    } finally {
      wire.drop();
      this.#signal?.removeEventListener('abort', cancel);
    }
  }

  #orCancelled<T>(promise: Promise<T>): Promise<T> {
    return this.#cancelled ? Promise.race([this.#cancelled, promise]) : promise;
  }

  /** Asks until the lock is held, the wait is over, or an error comes that will not pass. */
  async #stand(): Promise<Hold> {
    const end = performance.now() + this.#terms.wait;
    for (;;) {
      const left = end - performance.now();
      let failure: unknown;
      let idle = 0;
      try {
        const hold = await this.#ask(left);
        if (hold) return hold;
        idle = await this.#afterNull(left);
      } catch (error) {
        this.#signal?.throwIfAborted();
        failure = error;
        idle = this.#pauseAfter(error);
      }
      const rest = end - performance.now();
      if (rest <= 0 && idle !== AT_ONCE) throw failure ?? new LockTimeout(`${this.#terms} is held by others`);
      const pause = Math.min(idle, rest);
      if (pause > 0) await this.#orCancelled(sleep(pause, undefined, this.#signal && { signal: this.#signal }));
    }
  }

  /** How long to pause after null, when there is a link to wait on. */
  async #afterNull(left: number): Promise<number> {
    // Null before the time is up: something between here and the queue does not let requests wait.
    if (this.#block > 0) return Math.max(0, this.#block - (performance.now() - this.#asked));
    if (this.#terms.wait === 0) return 0;
    if (this.#isPolling) {
      this.#isPolling = false;
      return jittered(POLL_MS);
    }
    const { wire } = this.#engine;
    // The first request asked on the link of all, and waited for nothing. From now on one of its own waits.
    this.#lent ??= wire.lend(this.#line.address);
    if (this.#lent) return 0;
    await this.#orCancelled(wire.turn(Math.max(0, Math.min(jittered(POLL_MS), left))));
    this.#lent = wire.lend(this.#line.address);
    return 0;
  }

  /** How long to pause before the next request. Throws what asking again does not help. */
  #pauseAfter(error: unknown): number {
    this.#engine.troubles.failed(error);
    if (codeOf(error) === 'DEADLOCK') throw new LockDeadlock((error as Error).message, { cause: error });
    if (!isPassing(error)) throw error;
    if (error instanceof LockUnreachable && this.#terms.wait === 0 && this.#wasOpen) {
      // Perhaps the connection of the only try was dead: once more, over a new one.
      return AT_ONCE;
    }
    if (isRedirection(error) && this.#redirections < REDIRECTIONS_MAX) {
      this.#redirections += 1;
      return 0;
    }
    const pause = this.#pause * (1 + Math.random() / 4);
    this.#pause = Math.min(2 * this.#pause, PAUSE_MAX_MS);
    return pause;
  }

  /** The link for the next request: the one that waits, or the one of all. */
  #choose(left: number): Link {
    const { address } = this.#line;
    if (this.#lent && (this.#lent.isRetired || this.#lent.address !== address)) this.#giveBack();
    if (left > 0 && !this.#isKnown) this.#lent ??= this.#engine.wire.lend(address, true);
    const link = this.#lent ?? this.#line.control;
    // BLOCK 0 would wait without a limit.
    this.#block = this.#lent ? Math.ceil(Math.min(BLOCK_MS, Math.max(1, left))) : 0;
    this.#wasOpen = link.isOpen;
    return link;
  }

  /** One request. Undefined: not yet. */
  async #ask(left: number): Promise<Hold | undefined> {
    const terms = this.#terms;
    if (!this.#owner.isFresh) await this.#clean(left);
    const link = this.#choose(left);
    const limit = this.#block + Math.min(Math.max(left - this.#block, LEAVE_MS), ANSWER_MS);
    this.#asked = performance.now();
    const sent = clock();
    const wasKnown = this.#isKnown;
    link.keep();
    const reply = this.#line.send(link, terms.acquire(this.#owner.name, this.#block), limit);
    this.#pending = { link, reply };
    this.#isKnown = true;
    let fences: unknown;
    try {
      fences = await this.#orCancelled(reply);
      this.#answered(link);
    } catch (error) {
      if (codeOf(error) !== undefined) this.#answered(link);
      else if (error instanceof LockUnreachable) this.#failed(link, wasKnown);
      else reply.catch(ignore);
      throw error;
    }
    if (fences === null) return undefined;
    this.#isKnown = true;
    return this.#confirm(fences, sent);
  }

  /** Waits for what this owner gives back of these keys, and gives back what it may have left. */
  async #clean(left: number): Promise<void> {
    const { keys } = this.#terms;
    const leaving = this.#owner.leaving(keys);
    if (leaving) {
      const limit = Math.max(left, LEAVE_MS);
      const isOver = await this.#orCancelled(until(limit, leaving));
      if (isOver === undefined)
        throw new LockUnreachable(`${this.#terms}: the server has not confirmed its last release`);
    }
    if (!this.#owner.isDoubtful(keys)) return;
    // A former wait or hold of this owner ended without an answer: its remains must not be taken for the new hold.
    await this.#orCancelled(this.#line.ask(this.#terms.leave(this.#owner.name), ANSWER_MS));
    this.#owner.isClean(keys);
  }

  #answered(link: Link): void {
    this.#pending = undefined;
    link.letGo();
    // Without QUEUE nothing stays but a hold, or what an unanswered request took.
    this.#isKnown = this.#terms.wait > 0 || this.#unanswered.length > 0;
  }

  /** No answer: the link stays open for the RELEASE behind that request, should the wait be given up. */
  #failed(link: Link, wasKnown: boolean): void {
    this.#pending = undefined;
    // What has no connection was not sent.
    if (!link.wasOpen) this.#isKnown = wasKnown;
    if (link === this.#lent) {
      // Perhaps a wait cannot have a link: the next request goes over the link of all.
      this.#isPolling = !link.wasOpen;
      this.#giveBack();
    }
    if (link.isOpen) this.#unanswered.push(link);
    else link.letGo();
    if (this.#unanswered.length > UNANSWERED_MAX) this.#unanswered.shift()?.letGo();
  }

  /** The hold of a grant. The renewer has it before anybody else. */
  #confirm(reply: unknown, sent: number): Promise<Hold | undefined> | Hold {
    const fences = Array.isArray(reply) ? reply.map(numberOf) : [numberOf(reply)];
    const hold = new Hold(this.#engine, this.#line, { owner: this.#owner, terms: this.#terms, fences, sent });
    this.#hold = hold;
    // The moment of the grant is not known: after a wait that was longer the lease begins anew.
    if (clock() - sent <= this.#terms.margin) {
      this.#engine.renewer.add(hold);
      return hold;
    }
    return this.#extended(hold);
  }

  async #extended(hold: Hold): Promise<Hold | undefined> {
    try {
      const isHeld = await this.#orCancelled(hold.extend());
      if (isHeld) this.#engine.renewer.add(hold);
      else hold.end();
      return isHeld ? hold : undefined;
    } catch (error) {
      hold.end();
      throw error;
    }
  }

  #giveBack(): void {
    if (this.#lent) this.#engine.wire.giveBack(this.#lent);
    this.#lent = undefined;
  }

  #part(): void {
    this.#giveBack();
    for (const link of this.#unanswered.splice(0)) link.letGo();
  }

  /** Gives up the place, and what was granted meanwhile. Returns true once the server has confirmed that. */
  async #leave(): Promise<boolean> {
    const { wire } = this.#engine;
    wire.hold();
    try {
      return await this.#givenBack();
    } finally {
      this.#part();
      wire.drop();
    }
  }

  async #givenBack(): Promise<boolean> {
    const limit = this.#terms.lease + QUEUE_MS;
    const end = performance.now() + limit;
    const words = this.#terms.leave(this.#owner.name);
    const release = () => isAnswered(this.#line.request(words, ANSWER_MS, { isQuiet: true }));
    // Behind its request on the same link nothing is overtaken, however late the server reads it.
    const releaseBehind = (link: Link) => isAnswered(link.send(words, limit, { isQuiet: true }));
    const behind = this.#unanswered.map(releaseBehind);
    const pending = this.#pending?.link;
    const first = release();
    const seen = await this.#readOn();
    if (seen === 'silence' && pending) behind.push(releaseBehind(pending));
    // A fence, or a request that the RELEASE may have overtaken, needs another one.
    let isReleased = (await first) && seen === 'nothing';
    let areDead = false;
    for (let pause = 0; ; pause = Math.min(Math.max(PAUSE_MIN_MS, 2 * pause), PAUSE_MAX_MS)) {
      if (isReleased) {
        if (areDead || (await until(LEAVE_MS, Promise.all(behind)))?.every(Boolean)) return true;
        // The server answers here, and there it does not: it will not.
        areDead = true;
      }
      if (performance.now() > end) return false;
      if (pause > 0) await sleep(pause, undefined, { ref: false });
      isReleased = await release();
    }
  }

  /** What comes of the request under way: nothing is held, a fence, or no answer for a while. */
  async #readOn(): Promise<'nothing' | 'fence' | 'silence'> {
    const request = this.#pending;
    this.#pending = undefined;
    if (request && request.link === this.#lent && !request.link.wasOpen) {
      // What was not sent yet must not overtake the RELEASE.
      request.link.close();
      request.link.letGo();
      return 'nothing';
    }
    const seen = request ? await outcomeOf(request.reply) : 'nothing';
    if (seen === 'silence' && request) {
      request.link.retire();
      this.#unanswered.push(request.link);
    } else request?.link.letGo();
    this.#giveBack();
    return seen;
  }
}

async function outcomeOf(reply: Promise<unknown>): Promise<'nothing' | 'fence' | 'silence'> {
  try {
    const read = await until(LEAVE_MS, reply);
    return read === undefined ? 'silence' : read === null ? 'nothing' : 'fence';
  } catch (error) {
    return codeOf(error) === undefined ? 'silence' : 'nothing';
  }
}

/** True if the server answered in a way that another request would not change. */
function isAnswered(reply: Promise<unknown>): Promise<boolean> {
  return reply.then(
    () => true,
    (error) => !isPassing(error),
  );
}

// --- Holds ---

interface Grant {
  owner: Owner;
  terms: Terms;
  fences: readonly number[];
  /** When the request was made. */
  sent: number;
}

/** A lock that is held. It is renewed until it is given back, lost or forgotten. */
export class Hold {
  readonly holder: Owner;
  readonly terms: Terms;
  readonly fences: readonly number[];
  readonly #engine: Engine;
  readonly #line: Line;
  #control: AbortController | undefined;
  #reason: LockLost | undefined;
  validUntil: number;
  /** When the renewer has something to do for it, and its place in the renewer's heap. */
  due: number;
  at = -1;
  #isRenewing = false;
  /** What the application has. Nobody can give back a lock that nothing refers to: it is renewed no more. */
  face: WeakRef<object> | undefined;
  /** Why the last renewal failed. */
  #trouble: unknown;
  /** Nothing is renewed or judged any more: it is lost, or the release has begun. */
  isOver = false;

  constructor(engine: Engine, line: Line, { owner, terms, fences, sent }: Grant) {
    this.#engine = engine;
    this.#line = line;
    this.holder = owner;
    this.terms = terms;
    this.fences = fences;
    this.validUntil = this.#endOf(sent);
    this.due = sent + terms.lease / 3;
    engine.wire.hold();
    // The connection of the renewal is there from the first hold on.
    void line.control;
  }

  /** The lock is valid up to here: counted from before the request, less what two clocks may differ by. */
  #endOf(sent: number): number {
    return sent + this.terms.lease - this.terms.margin - CLOCK_STEP_MS;
  }

  get signal(): AbortSignal {
    if (!this.#control) {
      this.#control = new AbortController();
      if (this.#reason) this.#control.abort(this.#reason);
    }
    return this.#control.signal;
  }

  /** Why the lock is lost; undefined while it is not. */
  get loss(): LockLost | undefined {
    if (!this.isOver && clock() >= this.validUntil) {
      this.lose(this.#isForgotten ? 'nobody refers to it' : 'it could not be renewed in time', this.#trouble);
    }
    return this.#reason;
  }

  /** One request for each key. Null: the key is not held, and so it is when something else lies there. */
  #each(words: (key: string, fence: string) => string[], send: (words: string[]) => Promise<unknown>) {
    const { wired } = this.terms;
    const ask = (key: string, at: number) =>
      send(words(key, String(this.fences[at]))).catch((error) => {
        if (codeOf(error) === 'WRONGTYPE') return null;
        throw error;
      });
    return wired.length === 1 ? ask(wired[0] as string, 0).then((reply) => [reply]) : Promise.all(wired.map(ask));
  }

  /** Begins the lease anew. False: the lock is lost. */
  async extend(isQuiet = false): Promise<boolean> {
    const { lease } = this.terms;
    const sent = clock();
    const words = (key: string, fence: string) => [
      'LOCK.EXTEND',
      key,
      this.holder.name,
      'PX',
      String(lease),
      'FENCE',
      fence,
    ];
    const replies = await this.#each(words, (each) => this.#line.request(each, lease / 6, { isQuiet }));
    if (replies.includes(null)) return false;
    // A lock that was found lost meanwhile stays lost.
    if (!this.isOver) {
      this.validUntil = this.#endOf(sent);
      this.#engine.renewer.move(this, sent + lease / 3);
    }
    return clock() < this.validUntil;
  }

  get #isForgotten(): boolean {
    return this.face !== undefined && this.face.deref() === undefined;
  }

  /** How much too early it may be renewed, together with others. */
  get slack(): number {
    return this.#isRenewing ? 0 : this.terms.lease / 50;
  }

  /** What is due: a renewal, or the end. */
  look(time: number): void {
    if (time >= this.validUntil) void this.loss;
    else if (!this.#isRenewing && !this.#isForgotten) void this.#renew();
    if (!this.isOver) this.#engine.renewer.move(this, this.validUntil);
  }

  /** Tried again soon, over a new connection, until the lock is not valid any more. */
  async #renew(): Promise<void> {
    const { renewer, troubles } = this.#engine;
    this.#isRenewing = true;
    try {
      const isHeld = await this.extend(true);
      if (!(isHeld || this.isOver)) this.lose('the server says so');
      troubles.over('renewal');
    } catch (error) {
      if (this.isOver) return;
      this.#trouble = error;
      const text = `${this.terms} could not be renewed, and is tried again: ${(error as Error).message}`;
      troubles.tell('renewal', new LockError(text, { cause: error }));
      renewer.move(this, Math.min(clock() + this.terms.lease / 24, this.validUntil));
    } finally {
      this.#isRenewing = false;
    }
  }

  lose(why: string, cause?: unknown): void {
    this.end();
    this.holder.leave(this.terms.keys, false);
    this.#reason = new LockLost(`${this.terms} is lost: ${why}`, { cause });
    this.#engine.troubles.tell('lost', this.#reason);
    this.#control?.abort(this.#reason);
  }

  /** Ends the renewal. */
  end(): void {
    if (this.isOver) return;
    this.isOver = true;
    this.#engine.renewer.remove(this);
    this.#engine.wire.drop();
  }

  /** Asks whether it is held now, in the mode and under the fences that were taken. */
  async check(): Promise<boolean> {
    if (this.loss || this.isOver) return false;
    const { mode } = this.terms;
    const words = (key: string, fence: string) => ['LOCK.CHECK', key, this.holder.name, mode, 'FENCE', fence];
    const replies = await this.#each(words, (each) => this.#line.ask(each, ANSWER_MS));
    if (replies.includes(null) && !this.isOver) this.lose('the server says so');
    return !this.isOver;
  }

  /** Runs a command if the first key is held. It is sent once. */
  async guard(command: (string | Buffer)[]): Promise<unknown> {
    const [key = ''] = this.terms.wired;
    const words = ['LOCK.GUARD', key, this.holder.name, String(this.fences[0]), ...command];
    const reply = await this.#line.request(words, this.validUntil - clock());
    if (Array.isArray(reply)) return reply[1];
    if (!this.isOver) this.lose('the server says so');
    throw new LockLost(`${this.terms} is lost`);
  }

  /** Gives it back. Without an answer that goes on in the background, until the lease is over. */
  async release(): Promise<void> {
    const words = (key: string, fence: string) => ['LOCK.RELEASE', key, this.holder.name, 'ALL', 'FENCE', fence];
    const send = (limit: number, isQuiet = false) =>
      this.#each(words, (each) => this.#line.request(each, limit, { isQuiet }));
    const { loss } = this;
    if (loss) {
      // Of several keys some may be held still.
      await send(LEAVE_MS).catch(ignore);
      throw loss;
    }
    this.end();
    const { keys } = this.terms;
    const first = await send(ANSWER_MS).catch((error: Error) => error);
    if (!(first instanceof Error)) {
      const isLost = first.includes(null);
      if (isLost) this.lose('the server says so');
      this.holder.leave(keys, true);
      if (isLost) throw this.#reason;
      return;
    }
    // Null to a repeated release is the first one's success, of which the answer was lost.
    const second = isPassing(first) ? await send(ANSWER_MS).catch((error: Error) => error) : first;
    if (!(second instanceof Error)) return this.holder.leave(keys, true);
    if (isPassing(second))
      void this.holder.leaveWith(
        keys,
        this.#releaseLater(() => send(ANSWER_MS, true)),
      );
    else this.holder.leave(keys, false);
    const text = `${this.terms} could not be given back, and ends with its lease: ${second.message}`;
    this.#engine.troubles.tell('release', new LockError(text, { cause: second }));
    throw second;
  }

  async #releaseLater(send: () => Promise<unknown>): Promise<boolean> {
    const { wire } = this.#engine;
    const end = performance.now() + this.terms.lease + QUEUE_MS;
    wire.hold();
    try {
      while (performance.now() < end) {
        await sleep(jittered(PAUSE_MAX_MS), undefined, { ref: false });
        if (await isAnswered(send())) return true;
      }
      return false;
    } finally {
      wire.drop();
    }
  }
}

// --- Renewal ---

/** Renews the holds of one Locks: a heap by the time when each is due, and one timer. It keeps no process alive. */
export class Renewer {
  readonly #heap: Hold[] = [];
  #timer: NodeJS.Timeout | undefined;
  #wakesAt = Number.POSITIVE_INFINITY;

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
    const now = clock();
    const wakesAt = Math.min(first.due, now + LOOK_MS);
    if (wakesAt >= this.#wakesAt) return;
    this.#wakesAt = wakesAt;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#look(), Math.max(wakesAt - now, 1)).unref();
  }

  /** All that is due, and what will be soon, goes out together. */
  #look(): void {
    this.#wakesAt = Number.POSITIVE_INFINITY;
    const time = clock(true);
    for (;;) {
      const [first] = this.#heap;
      if (!first || first.due > time + first.slack) break;
      first.look(time);
    }
    this.#arm();
  }
}

// --- Time ---

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
async function until<T>(ms: number, promise: Promise<T>): Promise<T | undefined> {
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

/** A fence, which is below 2^53. */
function numberOf(reply: unknown): number {
  return typeof reply === 'number' ? reply : Number(String(reply));
}

function jittered(ms: number): number {
  return ms * (0.75 + Math.random() / 4);
}
