// One acquisition: ask, keep the place in the queue, confirm, leave.
//
// SPDX-License-Identifier: MIT

import { codeOf, explained, isPassing, isRedirection, LockDeadlock, LockTimeout, LockUnreachable } from '../errors.ts';
import { ignore } from '../transport/libraries.ts';
import { Line, type Link } from '../transport/links.ts';
import { type Engine, Hold, isAnswered } from './hold.ts';
import type { Notices, Sleeper } from './notices.ts';
import type { Owner } from './owner.ts';
import { numberOf, type Terms } from './terms.ts';
import {
  ANSWER_MS,
  BLOCK_MS,
  jittered,
  LEAVE_MS,
  NOTIFY_QUEUE_MS,
  nap,
  OVERTIME_MS,
  PAUSE_MAX_MS,
  PAUSE_MIN_MS,
  QUEUE_MS,
  READ_ON_MS,
  type Time,
  until,
  untilPoll,
} from './times.ts';

const REDIRECTIONS_MAX = 5;
/** As long as a timer can be. */
const ALIVE_MS = 2 ** 31 - 1;
/** The pause before a request that is repeated once, also when its time is over. */
const AT_ONCE = -1;
/** The links of so many unanswered requests are kept for a RELEASE behind them. */
const UNANSWERED_MAX = 4;

/** A request under way. */
interface Request {
  readonly link: Link;
  readonly reply: Promise<unknown>;
}

/** One acquisition: from the first request until the lock is held, or everything about it is given up. */
export class Wait implements Sleeper {
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
  /** The messages that tell it when to ask, and the channel that its last request named. */
  #notices: Notices | undefined;
  #channel: string | undefined;
  #queue = QUEUE_MS;
  /** A message came since the last request was sent, and ends the sleep. */
  #isTold = false;
  #wake: () => void = ignore;
  /** How many requests after a message had null for an answer, one after the other. */
  #nulls = 0;
  #pending: Request | undefined;
  /** The links of requests that were not answered. */
  readonly #unanswered: Link[] = [];
  /** True if the server may have a place or a hold of the owner. */
  #isKnown = false;
  #hold: Hold | undefined;
  #redirections = 0;
  #pause = PAUSE_MIN_MS;
  /** Keeps the process alive between two requests. */
  #alive: NodeJS.Timeout | undefined;
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
    const began = this.#time.now();
    const tell = (what: 'waited' | 'refused') => this.#engine.figures.tell(what, this.#time.now() - began);
    try {
      const hold = await this.#stand();
      this.#part();
      tell('waited');
      this.#engine.troubles.over('unreachable', 'no-module', 'no-right', 'memory', 'refused');
      return hold;
    } catch (error) {
      this.#hold?.end();
      if (error instanceof LockTimeout) tell('refused');
      if (this.#isKnown) {
        const left = this.#leave();
        void this.#owner.leaveWith(this.#terms.keys, left);
        await until(this.#time, LEAVE_MS, left);
      } else {
        this.#owner.leave(this.#terms.keys, true);
        this.#part();
      }
      throw explained(error);
    } finally {
      clearInterval(this.#alive);
      wire.drop();
      this.#signal?.removeEventListener('abort', cancel);
    }
  }

  get #time(): Time {
    return this.#engine.wire.time;
  }

  get owner(): string {
    return this.#owner.name;
  }

  get slot(): number {
    return this.#line.slot;
  }

  tell(): void {
    this.#isTold = true;
    this.#wake();
  }

  learn(error: Error, link: Link): void {
    this.#line.learn(error, link);
  }

  #orCancelled<T>(promise: Promise<T>): Promise<T> {
    return this.#cancelled ? Promise.race([this.#cancelled, promise]) : promise;
  }

  /** Asks until the lock is held, the wait is over, or an error comes that will not pass. */
  async #stand(): Promise<Hold> {
    const end = this.#time.now() + this.#terms.wait;
    for (;;) {
      const left = end - this.#time.now();
      let failure: unknown;
      let idle = 0;
      try {
        const hold = await this.#ask(left);
        if (hold) return hold;
        this.#alive ??= setInterval(ignore, ALIVE_MS);
        idle = await this.#afterNull(left);
      } catch (error) {
        this.#signal?.throwIfAborted();
        this.#alive ??= setInterval(ignore, ALIVE_MS);
        if (this.#isOfOthers(error)) idle = this.#nextPause();
        else {
          failure = error;
          idle = this.#pauseAfter(error);
        }
      }
      const rest = end - this.#time.now();
      if (rest <= 0 && idle !== AT_ONCE) throw failure ?? new LockTimeout(`${this.#terms} is held by others`);
      const pause = Math.min(idle, rest);
      if (pause > 0) await until(this.#time, pause, this.#cancelled);
    }
  }

  /** How long to pause after null, when there is a link to wait on. */
  async #afterNull(left: number): Promise<number> {
    // Null before the time is up: something between here and the queue does not let requests wait.
    if (this.#block > 0) return Math.max(0, this.#block - (this.#time.now() - this.#asked));
    if (this.#terms.wait === 0) return 0;
    if (this.#channel !== undefined) return await this.#untilTold(left);
    const { wire, notices } = this.#engine;
    const { address } = this.#line;
    // The first request asked on the link of all, and waited for nothing. From now on one of its own waits, or a message ends
    // the sleep.
    if (this.#lends()) return 0;
    if (this.#isPolling && !notices.find(address)?.channel) {
      // A connection for messages cannot be opened either, perhaps.
      this.#isPolling = false;
      return Math.min(untilPoll(), this.#queue / 3);
    }
    const isNamed = await this.#orCancelled(until(this.#time, Math.max(0, left), notices.of(address).subscribe(this)));
    if (isNamed || address !== this.#line.address) {
      this.#notices ??= notices.of(address);
      return 0;
    }
    if (this.#lends()) return 0;
    await this.#orCancelled(wire.turn(Math.max(0, Math.min(untilPoll(), this.#queue / 3, left))));
    this.#lends();
    return 0;
  }

  /** So many waits may have a link of their own. */
  get #blockingMax(): number {
    const { blocking, notices } = this.#engine;
    return notices.find(this.#line.address)?.isDenied ? blocking.untold : blocking.usual;
  }

  /** Gets a link of its own for the next request, if it may. */
  #lends(): boolean {
    if (!this.#isPolling) this.#lent ??= this.#engine.wire.lend(this.#line.address, this.#blockingMax);
    return this.#lent !== undefined;
  }

  /** Sleeps until a message or a third of QUEUE. Returns for how long to pause after messages that were of no use. */
  async #untilTold(left: number): Promise<number> {
    this.#engine.troubles.over('notify');
    if (!this.#isTold) {
      const told = new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
      const limit = Math.max(0, Math.min(untilPoll(this.#queue / 3), left));
      try {
        await until(this.#time, limit, this.#orCancelled(told));
      } finally {
        this.#wake = ignore;
      }
    }
    this.#nulls = this.#isTold ? this.#nulls + 1 : 0;
    return this.#nulls <= 2 ? 0 : Math.min(PAUSE_MIN_MS * 2 ** (this.#nulls - 3), PAUSE_MAX_MS);
  }

  /** How long to pause before the next request. Throws what asking again does not help. */
  #pauseAfter(error: unknown): number {
    if (this.#channel !== undefined && this.#notices?.refuses(error, this.#channel)) return AT_ONCE;
    const longest = /^ERR QUEUE must be a whole number from 1 to (\d+)/.exec((error as Error).message)?.[1];
    if (longest !== undefined && Number(longest) < this.#queue) {
      this.#engine.wire.queueMax = Number(longest);
      return AT_ONCE;
    }
    this.#engine.troubles.failed(error);
    if (codeOf(error) === 'DEADLOCK') throw new LockDeadlock((error as Error).message, { cause: error });
    if (!isPassing(error)) throw error;
    if (error instanceof LockUnreachable && this.#terms.wait === 0 && this.#wasOpen) {
      // Perhaps the connection of the only try was dead: once more, over a new one.
      return AT_ONCE;
    }
    if (isRedirection(error) && this.#redirections < REDIRECTIONS_MAX) {
      this.#redirections += 1;
      return AT_ONCE;
    }
    return this.#nextPause();
  }

  #nextPause(): number {
    const pause = jittered(this.#pause);
    this.#pause = Math.min(2 * this.#pause, PAUSE_MAX_MS);
    return pause;
  }

  /** True if a client with another kind of lock has the key. Nobody can stand in line for that. */
  #isOfOthers(error: unknown): boolean {
    return this.#terms.oldClients && codeOf(error) === 'WRONGTYPE';
  }

  /** The link for the next request: the one that waits, or the one of all. */
  #choose(left: number): Link {
    const { address } = this.#line;
    if (this.#lent && (this.#lent.isRetired || this.#lent.address !== address)) this.#giveBack();
    if (left > 0 && !this.#isKnown) this.#lent ??= this.#engine.wire.lend(address, this.#blockingMax, true);
    const link = this.#lent ?? this.#line.control;
    // BLOCK 0 would wait without a limit.
    this.#block = this.#lent ? Math.ceil(Math.min(BLOCK_MS, Math.max(1, left))) : 0;
    this.#wasOpen = link.isOpen;
    this.#channel = this.#lent || this.#terms.wait === 0 ? undefined : this.#channelAt(address);
    this.#queue = Math.min(this.#channel === undefined ? QUEUE_MS : NOTIFY_QUEUE_MS, this.#engine.wire.queueMax);
    this.#isTold = false;
    return link;
  }

  /** The channel on which it is told when to ask; none if it may yet have a link of its own. */
  #channelAt(address: string | undefined): string | undefined {
    if (!this.#notices && this.#engine.wire.lent < this.#blockingMax) return undefined;
    const notices = this.#engine.notices.find(address);
    if (notices !== this.#notices) {
      this.#notices?.leave(this);
      this.#notices = notices;
    }
    const channel = notices?.channel;
    // Before it asks, so that no message comes too early.
    if (channel !== undefined) notices?.join(this);
    return channel;
  }

  /** One request. Undefined: not yet. */
  async #ask(left: number): Promise<Hold | undefined> {
    const terms = this.#terms;
    if (!this.#owner.isFresh) await this.#clean(left);
    const link = this.#choose(left);
    const limit = this.#block + Math.min(Math.max(left - this.#block, OVERTIME_MS), ANSWER_MS);
    this.#asked = this.#time.now();
    const sent = this.#time.clock();
    const wasKnown = this.#isKnown;
    link.keep();
    const how = { block: this.#block, queue: this.#queue, channel: this.#channel };
    const reply = this.#line.send(link, terms.acquire(this.#owner.name, how), limit);
    this.#pending = { link, reply };
    this.#isKnown = true;
    let fences: unknown;
    try {
      fences = await this.#orCancelled(reply);
      this.#answered(link);
    } catch (error) {
      if (this.#signal?.aborted && error === this.#signal.reason) reply.catch(ignore);
      else if (error instanceof LockUnreachable) this.#failed(link, wasKnown);
      else this.#answered(link);
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
      const limit = Math.max(left, READ_ON_MS);
      const isOver = await this.#orCancelled(until(this.#time, limit, leaving));
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
    // The moment of the grant is not known. Where a renewal may be due already, the lease begins anew.
    if (this.#time.clock() - sent < this.#terms.lease / 3) {
      this.#engine.renewer.add(hold);
      return hold;
    }
    return this.#extended(hold);
  }

  async #extended(hold: Hold): Promise<Hold | undefined> {
    try {
      const isHeld = await this.#orCancelled(hold.extend({ begins: true }));
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
    this.#notices?.leave(this);
    this.#notices = undefined;
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
    const end = this.#time.now() + limit;
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
        if (areDead || (await until(this.#time, READ_ON_MS, Promise.all(behind)))?.every(Boolean)) return true;
        // The server answers here, and there it does not: it will not.
        areDead = true;
      }
      if (this.#time.now() > end) return false;
      if (pause > 0) await nap(this.#time, pause);
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
    const seen = request ? await outcomeOf(this.#time, request.reply) : 'nothing';
    if (seen === 'silence' && request) {
      request.link.retire();
      this.#unanswered.push(request.link);
    } else request?.link.letGo();
    this.#giveBack();
    return seen;
  }
}

async function outcomeOf(time: Time, reply: Promise<unknown>): Promise<'nothing' | 'fence' | 'silence'> {
  try {
    const read = await until(time, READ_ON_MS, reply);
    return read === undefined ? 'silence' : read === null ? 'nothing' : 'fence';
  } catch (error) {
    return codeOf(error) === undefined ? 'silence' : 'nothing';
  }
}
