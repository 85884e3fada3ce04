// Requests over connections. A Link is a connection with its requests and their time limits. The Wire has the links of
// one Locks: for each node a control link, which never waits, and links that are lent to waits. A Line is the way to the
// server of one key, wherever in a cluster its slot goes.
//
// SPDX-License-Identifier: MIT

import { each, IDLE_MAX, IDLE_MS, LOOK_MS, systemTime, type Time, until } from '../engine/times.ts';
import { codeOf, isRedirection, isRefusal, LockUnreachable } from '../errors.ts';
import {
  type Connection,
  type Ears,
  ignore,
  type Maker,
  makerFor,
  type Native,
  Source,
  unusable,
  type Word,
} from './libraries.ts';

/** A link that was heard of so recently is well. An older one may have died without a word. */
const FRESH_MS = 2_000;
const REDIRECTIONS_MAX = 5;

/** How a request is sent. */
export interface Manner {
  /** After the redirection of a slot that moves. */
  isAsking?: boolean;
  /** It does not keep the process alive: a renewal, or what is given back in the background. */
  isQuiet?: boolean;
}

/** A request under way, and the time that it has. */
interface Request {
  words: Word[];
  manner: Manner;
  /** How it is sent, if not as a command. */
  begin: ((connection: Connection) => Promise<unknown>) | undefined;
  resolve: (reply: unknown) => void;
  reject: (error: Error) => void;
  learn: ((error: Error) => void) | undefined;
  start: number;
  end: number;
}

/** One connection, with any number of requests under way. Without any it keeps no process alive. */
export class Link {
  readonly address: string | undefined;
  /** Takes no new request, since one failed or the connection ended. It closes after the last one. */
  isRetired = false;
  /** Called once, when it is retired. */
  onRetired: () => void = ignore;
  isOpen = false;
  /** True if it was ever open: before that nothing is sent. */
  wasOpen = false;
  /** When it was used, and when something came from the server. */
  usedAt: number;
  #heardAt = Number.NEGATIVE_INFINITY;
  readonly #time: Time;
  readonly #opened: Promise<Connection>;
  #connection: Connection | undefined;
  #ready: Connection | undefined;
  #isClosed = false;
  /** Requests under way, how many of them keep the process alive, and what else keeps the link open. */
  readonly #requests = new Set<Request>();
  #unlook: () => void = ignore;
  #looksAt = Number.POSITIVE_INFINITY;
  #loud = 0;
  #keepers = 0;

  constructor(time: Time, address: string | undefined, made: Promise<Connection>) {
    this.#time = time;
    this.usedAt = time.now();
    this.address = address;
    this.#opened = this.#open(made);
    // The first of its reactions: what was sent before it is open goes first.
    this.#opened.then(
      (connection) => {
        this.#ready = connection;
      },
      () => this.retire(),
    );
  }

  async #open(made: Promise<Connection>): Promise<Connection> {
    const connection = await made;
    if (this.#isClosed) throw new Error('closed');
    this.#connection = connection;
    connection.onEnd(() => {
      this.isOpen = false;
      this.retire();
    });
    if (this.#loud === 0) connection.keepProcessAlive(false);
    await connection.connect();
    if (this.#isClosed) throw new Error('closed');
    this.isOpen = true;
    this.wasOpen = true;
    this.#heardAt = this.#time.now();
    return connection;
  }

  get isFresh(): boolean {
    return this.isOpen && this.#time.now() - this.#heardAt < FRESH_MS;
  }

  get isIdle(): boolean {
    return this.#requests.size === 0 && this.#keepers === 0;
  }

  /** Stays open, also when it is retired, until it is let go. */
  keep(): void {
    this.#keepers += 1;
  }

  letGo(): void {
    this.#keepers -= 1;
    this.#settle();
  }

  /**
   * Sends it, also over a retired link that is open still. Rejects with the error reply, or with {@link LockUnreachable}:
   * then nobody knows what the server did. `learn` is told of either first.
   */
  send(words: Word[], limit: number, manner: Manner = {}, learn?: (error: Error) => void): Promise<unknown> {
    return this.#request(words, limit, { manner, learn, begin: undefined });
  }

  /** Subscribes to a channel. Rejects as `send` does. */
  subscribe(channel: string, isSharded: boolean, ears: Ears, limit: number): Promise<unknown> {
    const words = [isSharded ? 'SSUBSCRIBE' : 'SUBSCRIBE', channel];
    const begin = (connection: Connection) => connection.subscribe(channel, isSharded, ears);
    return this.#request(words, limit, { manner: {}, learn: undefined, begin });
  }

  #request(words: Word[], limit: number, how: Pick<Request, 'manner' | 'learn' | 'begin'>): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const now = this.#time.now();
      const request: Request = { words, ...how, resolve, reject, start: now, end: now + limit };
      this.usedAt = now;
      this.#requests.add(request);
      if (!how.manner.isQuiet) {
        this.#loud += 1;
        if (this.#loud === 1) this.#connection?.keepProcessAlive(true);
      }
      if (request.end < this.#looksAt) this.#lookAt(request.end);
      if (this.#ready) this.#go(this.#ready, request);
      else {
        this.#opened.then(
          (connection) => this.#go(connection, request),
          (error) => this.#fail(request, error),
        );
      }
    });
  }

  #go(connection: Connection, request: Request): void {
    // One that is late is never sent.
    if (!this.#requests.has(request)) return;
    if (this.#isClosed) {
      this.#fail(request, new Error('closed'));
      return;
    }
    const { words, manner, begin } = request;
    if (manner.isAsking) connection.send(['ASKING']).catch(ignore);
    (begin ? begin(connection) : connection.send(words)).then(
      (reply) => {
        this.#heardAt = this.#time.now();
        if (this.#end(request)) request.resolve(reply);
      },
      (error) => this.#fail(request, error),
    );
  }

  #fail(request: Request, error: unknown): void {
    if (!this.#requests.has(request)) return;
    const isReply = this.isOpen ? codeOf(error) !== undefined : isRefusal(error);
    if (isReply) this.#heardAt = this.#time.now();
    else this.retire();
    const text = `${request.words[0]}: ${(error as Error).message}`;
    const failure = isReply ? (error as Error) : new LockUnreachable(text, { cause: error });
    request.learn?.(failure);
    request.reject(failure);
    this.#end(request);
  }

  /** One timer for all requests. It is not set anew for each, so it may find nothing to do. */
  #lookAt(time: number): void {
    this.#looksAt = time;
    this.#unlook();
    this.#unlook = this.#time.after(Math.max(1, time - this.#time.now()), () => this.#look(), true);
  }

  #look(): void {
    this.#looksAt = Number.POSITIVE_INFINITY;
    const now = this.#time.now();
    let next = Number.POSITIVE_INFINITY;
    for (const request of this.#requests) {
      const { start, end } = request;
      // A timer may be early by less than a millisecond.
      if (end - 1 <= now) this.#fail(request, new Error(`no answer within ${Math.ceil(end - start)} ms`));
      else next = Math.min(next, end);
    }
    if (next < Number.POSITIVE_INFINITY) this.#lookAt(next);
  }

  /** False if it was over before. */
  #end(request: Request): boolean {
    if (!this.#requests.delete(request)) return false;
    if (!request.manner.isQuiet) {
      this.#loud -= 1;
      if (this.#loud === 0) this.#connection?.keepProcessAlive(false);
    }
    this.#settle();
    return true;
  }

  #settle(): void {
    if (this.isRetired && this.isIdle) this.close();
  }

  retire(): void {
    if (!this.isRetired) {
      this.isRetired = true;
      this.onRetired();
    }
    this.#settle();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.isOpen = false;
    this.retire();
    this.#unlook();
    this.#connection?.close();
  }
}

/** The links that the locks of one {@link Locks} share, and what they learned of the slots of a cluster. */
export class Wire {
  /** What ioredis writes before each key. */
  readonly prefix: string;
  readonly time: Time;
  readonly homes = new Map<number, string>();
  /** Called when a control link that was open is retired. */
  onLost: (address: string | undefined) => void = ignore;
  /** The longest QUEUE that a server takes, once one has said so. */
  queueMax = Number.POSITIVE_INFINITY;
  readonly #make: Maker;
  readonly #controls = new Map<string | undefined, Link>();
  /** How many links waits use now. */
  lent = 0;
  /** Those that no wait uses now, the last used one at the end. */
  #idle: Link[] = [];
  /** Waits that would have one. */
  readonly #line = new Set<() => void>();
  #users = 0;
  #unsweep: (() => void) | undefined;

  constructor(client: unknown) {
    if (client instanceof Source) {
      this.time = client.time;
      this.#make = (address) => client.open(address);
      this.prefix = '';
      return;
    }
    if (typeof client !== 'object' || client === null || !('duplicate' in client)) throw unusable();
    this.time = systemTime;
    this.#make = makerFor(client);
    const { keyPrefix } = (client as Partial<Native>).options ?? {};
    this.prefix = keyPrefix == null ? '' : String(keyPrefix);
  }

  /** The control links stay open until each hold is dropped, and a while longer. */
  hold(): void {
    this.#users += 1;
  }

  drop(): void {
    this.#users -= 1;
  }

  /** A link that nobody shares. */
  open(address: string | undefined): Link {
    return new Link(this.time, address, this.#make(address));
  }

  #open(address: string | undefined): Link {
    this.#unsweep ??= each(this.time, LOOK_MS, () => this.#sweep());
    return this.open(address);
  }

  #sweep(): void {
    const since = this.time.now() - IDLE_MS;
    for (const link of this.#idle) if (link.usedAt < since) link.close();
    this.#idle = this.#idle.filter((link) => !link.isRetired);
    for (const [address, link] of this.#controls) {
      if (this.#users === 0 && link.isIdle && link.usedAt < since) link.close();
      if (link.isRetired) this.#controls.delete(address);
    }
    if (this.#idle.length + this.#controls.size + this.lent > 0) return;
    this.#unsweep?.();
    this.#unsweep = undefined;
  }

  /** The link for all that is answered at once. It is never lent to a wait. */
  control(address: string | undefined): Link {
    let link = this.#controls.get(address);
    if (!link || link.isRetired) {
      const made = this.#open(address);
      made.onRetired = () => {
        if (made.wasOpen) this.onLost(address);
      };
      this.#controls.set(address, made);
      link = made;
    }
    return link;
  }

  /** A link for one wait, which gives it back; none when so many are lent. `isFresh`: only one that was used just now. */
  lend(address: string | undefined, max: number, isFresh = false): Link | undefined {
    if (this.lent >= max) return undefined;
    this.#idle = this.#idle.filter((link) => !link.isRetired);
    const at = this.#idle.findLastIndex((link) => link.address === address && (link.isFresh || !isFresh));
    const link = at >= 0 ? this.#idle.splice(at, 1)[0] : isFresh ? undefined : this.#open(address);
    if (link) this.lent += 1;
    // It came back while the wait asked without one. With one more, the next wait finds one at once.
    const isLate = at >= 0 && !isFresh && link?.isFresh === true;
    if (isLate && this.lent + this.#idle.length < max) this.#idle.unshift(this.#open(address));
    return link;
  }

  giveBack(link: Link): void {
    this.lent -= 1;
    if (link.isOpen && !link.isRetired) this.#idle.push(link);
    else link.retire();
    if (this.#idle.length > IDLE_MAX) this.#idle.shift()?.close();
    const [first] = this.#line;
    if (!first) return;
    this.#line.delete(first);
    first();
  }

  /** Returns when a link can be lent, or the time is over, whichever is first. */
  async turn(ms: number): Promise<void> {
    let wake: () => void = ignore;
    const woken = new Promise<void>((resolve) => {
      wake = resolve;
    });
    this.#line.add(wake);
    await until(this.time, ms, woken);
    this.#line.delete(wake);
  }

  /** One link there failed, or leads to a server that is no primary any more: so may those that nobody watches. */
  forget(address: string | undefined): void {
    for (const link of this.#idle) if (link.address === address) link.close();
    this.#idle = this.#idle.filter((link) => !link.isRetired);
  }
}

/** The way to the server of a key. */
export class Line {
  readonly wire: Wire;
  readonly #key: string;
  #known: number | undefined;
  /** The node to which the server sent the next request, and that one alone. */
  #asking: string | undefined;

  constructor(wire: Wire, key: string) {
    this.wire = wire;
    this.#key = key;
  }

  get slot(): number {
    this.#known ??= slotOf(this.#key);
    return this.#known;
  }

  /** The node to ask; without one any node. */
  get address(): string | undefined {
    return this.#asking ?? (this.wire.homes.size > 0 ? this.wire.homes.get(this.slot) : undefined);
  }

  get control(): Link {
    return this.wire.control(this.address);
  }

  /** Sends it over the control link and follows redirections, all within the limit. */
  async request(words: Word[], limit: number, manner: Manner = {}): Promise<unknown> {
    const end = this.wire.time.now() + limit;
    this.wire.hold();
    try {
      for (let hops = 0; ; hops += 1) {
        try {
          return await this.send(this.control, words, hops === 0 ? limit : end - this.wire.time.now(), manner);
        } catch (error) {
          if (!isRedirection(error) || hops >= REDIRECTIONS_MAX) throw error;
        }
      }
    } finally {
      this.wire.drop();
    }
  }

  /** The same for what may be sent twice: over a link that may be dead, and soon over a new one, perhaps in other words. */
  async ask(words: Word[] | (() => Word[]), limit: number, manner: Manner = {}): Promise<unknown> {
    const { control } = this;
    const now = () => (typeof words === 'function' ? words() : words);
    const wasOpen = control.isOpen;
    const end = this.wire.time.now() + limit;
    try {
      return await this.request(now(), wasOpen && !control.isFresh ? limit / 2 : limit, manner);
    } catch (error) {
      const left = end - this.wire.time.now();
      if (!(wasOpen && error instanceof LockUnreachable && left > 0)) throw error;
      return await this.request(now(), left, manner);
    }
  }

  /** Sends it once, over this link to the address. A redirection is thrown: the next request follows it. */
  send(link: Link, words: Word[], limit: number, manner: Manner = {}): Promise<unknown> {
    const how = this.#asking === undefined ? manner : { ...manner, isAsking: true };
    this.#asking = undefined;
    return link.send(words, limit, how, (error) => this.learn(error, link));
  }

  /** Of an error reply, or of no answer, over this link: where the key is. */
  learn(error: Error, link: Link): void {
    const from = link.address ?? '';
    const [, , target = ''] = error.message.split(' ');
    // No host: the node that answers.
    const next = target.startsWith(':') ? from.slice(0, from.lastIndexOf(':')) + target : target;
    const code = codeOf(error);
    if (code === 'ASK') this.#asking = next;
    else if (code === 'MOVED') this.wire.homes.set(this.slot, next);
    else if (error instanceof LockUnreachable) {
      // Nobody answers there: any other node knows where the slot is.
      this.wire.homes.delete(this.slot);
      this.wire.forget(link.address);
    } else if (code === 'READONLY' || code === 'MASTERDOWN' || code === 'UNBLOCKED') {
      // Another server is the primary now: a new connection finds it where an address or a sentinel leads to it.
      link.retire();
      this.wire.forget(link.address);
    }
  }
}

/** The slot of a key in a cluster: CRC16 of its tag, or of the whole key. */
export function slotOf(key: string): number {
  let crc = 0;
  for (const byte of Buffer.from(/^[^{]*\{([^}]+)\}/.exec(key)?.[1] ?? key)) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit += 1) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
  }
  return crc & 0x3fff;
}
