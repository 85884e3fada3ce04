// Messages of NOTIFY, which wake the waits that have no connection of their own: one channel and one subscription a node.
//
// SPDX-License-Identifier: MIT

import { randomBytes } from 'node:crypto';
import { codeOf, LockError, LockUnreachable, type Troubles } from '../errors.ts';
import { ignore } from '../transport/libraries.ts';
import { type Link, slotOf, type Wire } from '../transport/links.ts';
import {
  ANSWER_MS,
  CONFIRM_MS,
  each,
  IDLE_MS,
  jittered,
  LOOK_MS,
  NOTIFY_QUEUE_MS,
  PAUSE_MAX_MS,
  PAUSE_MIN_MS,
  REFUSED_MS,
  TOLD_AT_ONCE,
  TOLD_MS,
  until,
} from './times.ts';

/** A wait that asks when it is told to. */
export interface Sleeper {
  readonly owner: string;
  /** The slot of its key in a cluster. */
  readonly slot: number;
  /** Ask now. */
  tell(): void;
  /** Of a node that sent it elsewhere. */
  learn(error: Error, link: Link): void;
}

/**
 * The messages of one node, and the waits that they are for. A message is a hint: it may be lost, doubled, late or forged.
 * While there is no channel, waits ask by themselves.
 */
export class Notices {
  readonly #wire: Wire;
  readonly #troubles: Troubles;
  readonly #address: string | undefined;
  readonly #sleepers = new Map<string, Set<Sleeper>>();
  /** Those that are to ask, at a pace that a server bears. */
  readonly #due = new Set<Sleeper>();
  #isPumping = false;
  /** When all were told last by a message. */
  #allAt = Number.NEGATIVE_INFINITY;
  #isAllDue = false;
  #link: Link | undefined;
  #channel: string | undefined;
  #opening: Promise<void> | undefined;
  /** When it was confirmed; until when it is not tried again, and whether the server said no; when somebody waited last. */
  #since = Number.NEGATIVE_INFINITY;
  #refusedUntil = 0;
  #isDenied = false;
  #usedAt = 0;
  #unwatch: (() => void) | undefined;

  constructor(wire: Wire, troubles: Troubles, address: string | undefined) {
    this.#wire = wire;
    this.#troubles = troubles;
    this.#address = address;
  }

  /** The channel to name in a request; none while there is no confirmed subscription, or none that the server takes. */
  get channel(): string | undefined {
    return this.#isRefused ? undefined : this.#channel;
  }

  /** True if it could not be had just now. It is tried again later. */
  get #isRefused(): boolean {
    return this.#refusedUntil > 0 && this.#wire.time.now() < this.#refusedUntil;
  }

  /** True if the server was asked for a subscription or a message, and said no, or nothing. */
  get isDenied(): boolean {
    return this.#isDenied && this.#isRefused;
  }

  join(sleeper: Sleeper): void {
    const others = this.#sleepers.get(sleeper.owner);
    if (others) others.add(sleeper);
    else this.#sleepers.set(sleeper.owner, new Set([sleeper]));
  }

  leave(sleeper: Sleeper): void {
    this.#due.delete(sleeper);
    this.#usedAt = this.#wire.time.now();
    const others = this.#sleepers.get(sleeper.owner);
    if (others?.delete(sleeper) && others.size === 0) this.#sleepers.delete(sleeper.owner);
  }

  /** Subscribes, if nobody has. Returns true once a channel is confirmed, false if there is none to be had. */
  async subscribe(sleeper: Sleeper): Promise<boolean> {
    if (this.channel === undefined && !this.#isRefused) {
      this.#opening ??= this.#open(sleeper).finally(() => {
        this.#opening = undefined;
      });
      await this.#opening;
    }
    return this.channel !== undefined;
  }

  async #open(sleeper: Sleeper): Promise<void> {
    // One that ended at once is not opened in a loop.
    if (this.#wire.time.now() - this.#since < PAUSE_MIN_MS) {
      await until(this.#wire.time, jittered(PAUSE_MIN_MS));
    }
    const link = this.#wire.open(this.#address);
    const end = this.#wire.time.now() + CONFIRM_MS;
    link.keep();
    try {
      const isSharded = await isCluster(link, this.#address !== undefined);
      const channel = channelName(this.#wire.prefix, isSharded ? sleeper.slot : undefined);
      const ears = { hear: (message: string) => this.#hear(message), end: () => this.#lost(link) };
      await link.subscribe(channel, isSharded, ears, Math.max(1, end - this.#wire.time.now()));
      if (link.isRetired) throw new LockUnreachable('the connection of the subscription has ended');
      link.onRetired = () => this.#lost(link);
      this.#link = link;
      this.#channel = channel;
      this.#since = this.#wire.time.now();
      this.#usedAt = this.#since;
      this.#unwatch ??= each(this.#wire.time, LOOK_MS, () => this.#look());
    } catch (error) {
      link.close();
      const code = codeOf(error);
      if (code === 'MOVED') sleeper.learn(error as Error, link);
      else if (code === undefined && this.#wire.time.now() < end - 1) {
        // No connection: perhaps the next one.
        this.#refusedUntil = this.#wire.time.now() + PAUSE_MAX_MS;
        this.#isDenied = false;
        this.#troubles.failed(error);
      } else this.#deny(error as Error);
    }
  }

  #deny(error: Error): void {
    this.#refusedUntil = this.#wire.time.now() + REFUSED_MS;
    this.#isDenied = true;
    const text = `waits without a connection ask each second, since NOTIFY cannot be had: ${error.message}`;
    this.#troubles.tell('notify', new LockError(text, { cause: error }));
  }

  /** True if a request that named the channel was refused for that. Until later, requests do without. */
  refuses(error: unknown, channel: string): boolean {
    const { message } = error as Error;
    if (/^NOTIFYSLOT /.test(message)) {
      // Another node serves its slot now: the next channel has a slot of this one.
      if (channel === this.#channel) this.#lost(this.#link);
      return true;
    }
    if (!/^(NOPERM|ERR|LIMIT) .*(\bNOTIFY\b|\bchannels\b)/.test(message)) return false;
    this.#deny(error as Error);
    return true;
  }

  #hear(message: string): void {
    if (message === '*') this.#hearAll();
    else for (const sleeper of this.#sleepers.get(message) ?? []) sleeper.tell();
  }

  /** At most once a second, whoever sends it. */
  #hearAll(): void {
    if (this.#isAllDue) return;
    const left = this.#allAt + PAUSE_MAX_MS - this.#wire.time.now();
    if (left > 0) {
      this.#isAllDue = true;
      const again = () => {
        this.#isAllDue = false;
        this.#hearAll();
      };
      this.#wire.time.after(left, again, true);
      return;
    }
    this.#allAt = this.#wire.time.now();
    this.#tellAll();
  }

  #tellAll(): void {
    for (const sleepers of this.#sleepers.values()) for (const sleeper of sleepers) this.#due.add(sleeper);
    this.#pump(0);
  }

  #pump(ms: number): void {
    if (this.#isPumping) return;
    this.#isPumping = true;
    this.#wire.time.after(ms, () => this.#tellSome());
  }

  #tellSome(): void {
    this.#isPumping = false;
    let left = TOLD_AT_ONCE;
    for (const sleeper of this.#due) {
      if (left === 0) break;
      left -= 1;
      this.#due.delete(sleeper);
      sleeper.tell();
    }
    if (this.#due.size > 0) this.#pump(TOLD_MS);
  }

  /** The connection of the requests has ended, or leads to no primary any more: the places end soon, unless all ask again. */
  lost(): void {
    this.#refusedUntil = 0;
    if (this.#link) this.#lost(this.#link);
    else if (this.#sleepers.size > 0 && !this.#opening) this.#tellAll();
  }

  /** Subscribes anew. Then all ask again: messages may have been missed. */
  #lost(link: Link | undefined): void {
    if (!link || link !== this.#link) return;
    this.#link = undefined;
    this.#channel = undefined;
    link.close();
    const [first] = this.#sleepers.values().next().value ?? [];
    if (first) void this.subscribe(first).then(() => this.#tellAll(), ignore);
  }

  /** A silent connection may be dead, and one that nobody needs is closed. */
  #look(): void {
    const now = this.#wire.time.now();
    const link = this.#link;
    if (link && this.#sleepers.size === 0 && now - this.#usedAt > IDLE_MS) {
      this.#link = undefined;
      this.#channel = undefined;
      link.close();
    } else if (link && this.#sleepers.size > 0 && now - link.usedAt > NOTIFY_QUEUE_MS / 3) {
      link.send(['PING'], ANSWER_MS, { isQuiet: true }).catch(ignore);
    }
    if (this.#link || this.#opening) return;
    this.#unwatch?.();
    this.#unwatch = undefined;
  }
}

/** True if the server is a node of a cluster, by its own word if it gives it: then channels have slots. */
async function isCluster(link: Link, looksSo: boolean): Promise<boolean> {
  const reply = await link.send(['HELLO'], CONFIRM_MS).catch((error) => {
    if (codeOf(error) === undefined) throw error;
    return undefined;
  });
  if (typeof reply !== 'object' || reply === null) return looksSo;
  const said = reply instanceof Map ? [...reply].flat() : Array.isArray(reply) ? reply : Object.entries(reply).flat();
  const words = said.map(String);
  return words[words.indexOf('mode') + 1] === 'cluster';
}

/** The notices of all nodes that the locks of one Locks ask. */
export class AllNotices {
  readonly #wire: Wire;
  readonly #troubles: Troubles;
  readonly #nodes = new Map<string | undefined, Notices>();

  constructor(wire: Wire, troubles: Troubles) {
    this.#wire = wire;
    this.#troubles = troubles;
    wire.onLost = (address) => this.#nodes.get(address)?.lost();
  }

  /** Those of this node, if there are any yet. */
  find(address: string | undefined): Notices | undefined {
    return this.#nodes.get(address);
  }

  of(address: string | undefined): Notices {
    let notices = this.#nodes.get(address);
    if (!notices) {
      notices = new Notices(this.#wire, this.#troubles, address);
      this.#nodes.set(address, notices);
    }
    return notices;
  }
}

/** Returns a new name of a channel, under the prefix of the application; in a cluster one with this slot. */
function channelName(prefix: string, slot: number | undefined): string {
  // Braces of the prefix would choose the slot.
  const own = prefix.replace(/[{}]/g, '').slice(0, 64);
  const tag = slot === undefined ? '' : `{${tagOf(slot)}}`;
  return `lock:notify:${own}${tag}${randomBytes(16).toString('hex')}`;
}

function tagOf(slot: number): string {
  let number = 0;
  while (slotOf(String(number)) !== slot) number += 1;
  return String(number);
}
