// A lock that is held: until when it is valid, its renewal, its loss, and its release.
//
// SPDX-License-Identifier: MIT

import {
  codeOf,
  isAhead,
  isPassing,
  LockError,
  LockLost,
  LockMisuse,
  LockUnreachable,
  type Troubles,
} from '../errors.ts';
import { ignore } from '../transport/libraries.ts';
import type { Line, Wire } from '../transport/links.ts';
import type { Figures } from './figures.ts';
import type { AllNotices } from './notices.ts';
import type { Owner } from './owner.ts';
import type { Renewer } from './renewer.ts';
import type { Terms } from './terms.ts';
import { ANSWER_MS, CLOCK_STEP_MS, jittered, nap, PAUSE_MAX_MS, QUEUE_MS, READ_ON_MS, type Time } from './times.ts';

/** How an end is set. Who takes a lock over raises its fence anyhow. */
interface Ending {
  isQuiet: boolean;
  isLate: boolean;
  isHandedOver: boolean;
}

/** What the locks of one Locks share. */
export interface Engine {
  readonly wire: Wire;
  readonly notices: AllNotices;
  readonly renewer: Renewer;
  readonly troubles: Troubles;
  readonly figures: Figures;
  /** So many waits have a connection each, and so many where no messages can be had. */
  readonly blocking: { readonly usual: number; readonly untold: number };
}

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
  /** When it was granted, on Node's own clock. */
  readonly #since: number;
  validUntil: number;
  /** When it is lost, however often it is renewed. */
  #ends: number;
  /** When the renewer has something to do for it, and its place in the renewer's heap. */
  due: number;
  at = -1;
  #isRenewing = false;
  /** Requests that set an end, and that the server may read yet: it has not answered them. */
  #unanswered = 0;
  /** Keys whose fence is to rise, though no answer says that it has. */
  #raised: Set<string> | undefined;
  /** What the application has, until the first renewal. A weak reference for each short lock would cost too much. */
  face: object | undefined;
  #face: WeakRef<object> | undefined;
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
    this.#since = engine.wire.time.now();
    this.#ends = sent + terms.max;
    this.validUntil = this.#endOf(sent);
    this.due = this.#dueAfter(sent);
    engine.wire.hold();
    // The connection of the renewal is there from the first hold on.
    void line.control;
  }

  get #time(): Time {
    return this.#engine.wire.time;
  }

  /** The lock is valid up to here: counted from before the request, less what two clocks may differ by. */
  #endOf(sent: number): number {
    return Math.min(sent + this.terms.lease - this.terms.margin - CLOCK_STEP_MS, this.#ends);
  }

  #dueAfter(sent: number): number {
    return Math.min(sent + this.terms.lease / 3, this.#ends);
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
    if (!this.isOver && this.#time.clock() >= this.validUntil) {
      if (this.#time.clock() >= this.#ends) this.lose('its max is over');
      else this.lose(this.#isForgotten() ? 'nobody refers to it' : 'it could not be renewed in time', this.#trouble);
    }
    return this.#reason;
  }

  /** For how long it is valid still; 0 if it is not. */
  get validFor(): number {
    return this.loss || this.isOver ? 0 : Math.max(0, this.validUntil - this.#time.clock());
  }

  /** One request for each key. Null: the key is not held, and so it is when something else lies there. */
  #each(send: (key: string, fence: number) => Promise<unknown>): Promise<unknown[]> {
    const { wired } = this.terms;
    const ask = (key: string, at: number) =>
      send(key, this.fences[at] as number).catch((error) => {
        if (codeOf(error) === 'WRONGTYPE') return null;
        throw error;
      });
    return wired.length === 1 ? ask(wired[0] as string, 0).then((reply) => [reply]) : Promise.all(wired.map(ask));
  }

  #extension(key: string, lease: number, ...more: (string | number)[]): string[] {
    return ['LOCK.EXTEND', key, this.holder.name, 'PX', Math.max(1, Math.ceil(lease)), ...more].map(String);
  }

  /** Counts a request as unanswered until there is an answer. */
  async #counted(request: Promise<unknown>): Promise<unknown> {
    this.#unanswered += 1;
    try {
      const reply = await request;
      this.#unanswered -= 1;
      return reply;
    } catch (error) {
      if (!(error instanceof LockUnreachable)) this.#unanswered -= 1;
      throw error;
    }
  }

  /** Begins the lease anew, and with `begins` the time of `max`. False: the lock is lost. */
  async extend({ isQuiet = false, begins = false, note = [] as string[] } = {}): Promise<boolean> {
    const { lease, margin, max } = this.terms;
    const sent = this.#time.clock();
    if (begins) this.#ends = sent + max;
    // It does not outlast its end.
    const left = Math.min(lease, this.#ends - sent + margin);
    // One that is repeated may need a new connection first.
    const limit = this.#trouble === undefined ? lease / 6 : lease / 3;
    const replies = await this.#each((key, fence) =>
      this.#counted(this.#line.request(this.#extension(key, left, 'FENCE', fence, ...note), limit, { isQuiet })),
    );
    this.#trouble = undefined;
    if (replies.includes(null)) return false;
    // A lock that was found lost meanwhile stays lost.
    if (!this.isOver) {
      this.validUntil = this.#endOf(sent);
      this.#engine.renewer.move(this, this.#dueAfter(sent));
    }
    return this.#time.clock() < this.validUntil;
  }

  /** True if nothing refers to the lock, so that nobody can give it back: it is renewed no more. */
  #isForgotten(): boolean {
    if (this.face) this.#face = new WeakRef(this.face);
    this.face = undefined;
    return this.#face !== undefined && this.#face.deref() === undefined;
  }

  /** How much too early it may be renewed, together with others. Its end is never too early. */
  get slack(): number {
    return this.due < this.validUntil ? this.terms.lease / 50 : 0;
  }

  /** What is due: a renewal, or the end. */
  look(time: number): void {
    if (time >= this.validUntil) void this.loss;
    else if (!this.#isRenewing && !this.#isForgotten()) void this.#renew();
    if (!this.isOver) this.#engine.renewer.move(this, this.validUntil);
  }

  /** Tried again soon, over a new connection, until the lock is not valid any more. */
  async #renew(): Promise<void> {
    const { renewer, troubles } = this.#engine;
    this.#isRenewing = true;
    try {
      const isHeld = await this.extend({ isQuiet: true });
      if (!(isHeld || this.isOver)) this.lose('the server says so');
      troubles.over('renewal');
    } catch (error) {
      if (this.isOver) return;
      this.#trouble = error;
      this.#engine.figures.tell('renewalFailed', 0);
      const text = `${this.terms} could not be renewed, and is tried again: ${(error as Error).message}`;
      troubles.tell('renewal', new LockError(text, { cause: error }));
      renewer.move(this, Math.min(this.#time.clock() + this.terms.lease / 24, this.validUntil));
    } finally {
      this.#isRenewing = false;
    }
  }

  lose(why: string, cause?: unknown): void {
    this.end();
    this.holder.leave(this.terms.keys, false);
    this.#reason = new LockLost(`${this.terms} is lost: ${why}`, { cause });
    this.#engine.troubles.tell('lost', this.#reason);
    this.#count('lost');
    this.#control?.abort(this.#reason);
  }

  /** Tells for how long it was held. */
  #count(what: 'held' | 'lost'): void {
    this.#engine.figures.tell(what, this.#time.now() - this.#since);
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
    const replies = await this.#each((key, fence) =>
      this.#line.ask(['LOCK.CHECK', key, this.holder.name, mode, 'FENCE', String(fence)], ANSWER_MS),
    );
    if (replies.includes(null) && !this.isOver) this.lose('the server says so');
    return !this.isOver;
  }

  /** Runs a command if the first key is held. It is sent once. */
  async guard(command: (string | Buffer)[]): Promise<unknown> {
    const [key = ''] = this.terms.wired;
    const words = ['LOCK.GUARD', key, this.holder.name, String(this.fences[0]), ...command];
    const reply = await this.#line.request(words, Math.min(this.validUntil - this.#time.clock(), ANSWER_MS));
    if (Array.isArray(reply)) return reply[1];
    if (!this.isOver) this.lose('the server says so');
    throw new LockLost(`${this.terms} is lost`);
  }

  #sendRelease(limit: number, isQuiet = false): Promise<unknown[]> {
    return this.#each((key, fence) =>
      this.#line.request(['LOCK.RELEASE', key, this.holder.name, 'ALL', 'FENCE', String(fence)], limit, { isQuiet }),
    );
  }

  /** Gives it back. Without an answer that goes on in the background, until the lease is over. */
  async release(): Promise<void> {
    const { loss } = this;
    if (loss) {
      // Of several keys some may be held still.
      await this.#sendRelease(READ_ON_MS).catch(ignore);
      throw loss;
    }
    this.end();
    const { keys } = this.terms;
    const first = await this.#sendRelease(ANSWER_MS).catch((error: Error) => error);
    if (!(first instanceof Error)) {
      const isLost = first.includes(null);
      if (isLost) this.lose('the server says so');
      else this.#count('held');
      this.holder.leave(keys, true);
      if (isLost) throw this.#reason;
      return;
    }
    this.#count('held');
    // Null to a repeated release is the first one's success, of which the answer was lost.
    const second = isPassing(first) ? await this.#sendRelease(ANSWER_MS).catch((error: Error) => error) : first;
    if (!(second instanceof Error)) return this.holder.leave(keys, true);
    this.#failed(second, () => this.#sendRelease(ANSWER_MS, true));
  }

  /** Goes on in the background, if that may help. `isInstead`: this is another request than the one that failed. */
  #failed(error: Error, send: () => Promise<unknown>, isInstead = false): never {
    const { keys } = this.terms;
    if (isPassing(error) || isInstead)
      void this.holder.leaveWith(keys, repeated(this.#engine.wire, this.terms.lease + QUEUE_MS, send));
    else this.holder.leave(keys, false);
    const what = isInstead ? 'handed over, and is given back' : 'given back, and ends with its lease';
    const text = `${this.terms} could not be ${what}: ${error.message}`;
    this.#engine.troubles.tell('release', new LockError(text, { cause: error }));
    throw error;
  }

  /**
   * Lets the lease of a key end then. What the server reads later, be it a renewal or this request, would undo that: a
   * higher fence makes it void. Null after a request without an answer says that the server has read that one.
   */
  async #endAt(end: number, key: string, fence: number, how: Ending): Promise<unknown> {
    let { isLate } = how;
    const send = (mayRaise: boolean) => {
      let wasRaised = false;
      const words = () => {
        wasRaised = this.#raised?.has(key) === true;
        const least = mayRaise && isLate ? ['MINFENCE', fence + 1] : [];
        if (least.length > 0) this.#raised = (this.#raised ?? new Set()).add(key);
        // When it is sent again, it had no answer itself.
        isLate = true;
        return this.#extension(key, end - this.#time.clock(), 'FENCE', fence, ...least);
      };
      return this.#counted(this.#line.ask(words, ANSWER_MS, how)).then((reply) => (wasRaised ? fence : reply));
    };
    try {
      return await send(!how.isHandedOver);
    } catch (error) {
      if (!isAhead(error)) throw error;
      this.#raised?.delete(key);
      return await send(false);
    }
  }

  /** Renews it no more, and lets it end after so long. One that cannot be `detached` is given back. */
  async letGo(ms: number, detached = false): Promise<void> {
    const { loss } = this;
    if (loss) throw loss;
    if (this.isOver) throw new LockMisuse(`${this.terms} is not held any more`);
    this.end();
    const end = this.#time.clock() + ms;
    const send = (isQuiet = false) => {
      const how = { isQuiet, isLate: this.#unanswered > 0, isHandedOver: detached };
      return this.#each((key, fence) => this.#endAt(end, key, fence, how));
    };
    const again = (error: Error) => (isPassing(error) ? send() : Promise.reject(error));
    const replies = await send()
      .catch(again)
      .catch((error: Error) => error);
    const isNull = !(replies instanceof Error) && replies.includes(null);
    // Null says nothing once its time is over.
    if (isNull && this.#time.clock() < end) {
      this.lose('the server says so');
      throw this.#reason;
    }
    this.#count('held');
    if (replies instanceof Error)
      return this.#failed(replies, detached ? () => this.#sendRelease(ANSWER_MS, true) : () => send(true), detached);
    this.holder.leave(this.terms.keys, true);
  }

  async setNote(note: string): Promise<void> {
    if (this.terms.keys.length > 1) throw new LockMisuse('a lock of several keys keeps its note');
    if (!this.loss && this.isOver) throw new LockMisuse(`${this.terms} is not held any more`);
    if (!(this.loss || (await this.extend({ note: ['NOTE', note] })) || this.isOver)) this.lose('the server says so');
    if (this.#reason) throw this.#reason;
  }
}

/** Sends it again and again in the background, until it is answered. False if the time is over first. */
export async function repeated(wire: Wire, limit: number, send: () => Promise<unknown>): Promise<boolean> {
  const { time } = wire;
  const end = time.now() + limit;
  wire.hold();
  try {
    while (time.now() < end) {
      await nap(time, jittered(PAUSE_MAX_MS));
      if (await isAnswered(send())) return true;
    }
    return false;
  } finally {
    wire.drop();
  }
}

/** True if the server answered in a way that another request would not change. */
export function isAnswered(reply: Promise<unknown>): Promise<boolean> {
  return reply.then(
    () => true,
    (error) => !isPassing(error),
  );
}
