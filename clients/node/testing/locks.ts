// The locks of a server in memory: holders, queues, leases, places and offers.
//
// SPDX-License-Identifier: MIT

import type { TestClock } from './clock.ts';
import { type Mode, ReplyError, type Request } from './request.ts';

/** What a connection is to the locks. */
export interface Peer {
  readonly id: number;
}

export type Reply = string | number | null | Reply[];

export interface Holder {
  owner: string;
  reads: number;
  writes: number;
  fence: number;
  note: string | undefined;
  since: number;
  until: number;
  /** The place of which its owner has not heard yet that it came to this. */
  offer: Place | undefined;
  cancel: () => void;
}

/** An owner that waits, for all of its keys. */
export interface Place {
  request: Request;
  since: number;
  /** The client that waits there. */
  parked: { peer: Peer; until: number; answer: (reply: Reply | Error) => void } | undefined;
  /** When it ends without a client. */
  until: number;
  /** The connection of the last request with BLOCK or NOTIFY. */
  from: Peer | undefined;
  cancel: () => void;
}

interface Lock {
  holders: Map<string, Holder>;
  queue: Place[];
}

const AWAY_MS = 2_000;
const none = (): void => undefined;

function excludes(one: Mode, other: Mode): boolean {
  return one === 'write' || other === 'write';
}

/** True if it may be held beside the holders. */
function fits({ owner, mode, take, limit }: Request, { holders }: Lock): boolean {
  const others = [...holders.values()].filter((holder) => holder.owner !== owner);
  if (others.some(({ writes }) => excludes(writes > 0 ? 'write' : 'read', mode))) return false;
  return limit === undefined || others.reduce((sum, { reads }) => sum + reads, take) <= limit;
}

/** True if somebody waits before it whom it would overtake. */
function isBehind({ mode, limit }: Request, { queue }: Lock, own: Place | undefined): boolean {
  const before = own ? queue.slice(0, queue.indexOf(own)) : queue;
  return before.some((place) => limit !== undefined || excludes(place.request.mode, mode));
}

export class LockTable {
  readonly #clock: TestClock;
  readonly #locks = new Map<string, Lock>();
  readonly #publish: (channel: string, text: string) => void;
  #fence = 0;
  /** How many requests began to wait. */
  queued = 0;

  constructor(clock: TestClock, publish: (channel: string, text: string) => void) {
    this.#clock = clock;
    this.#publish = publish;
  }

  get(key: string): Lock | undefined {
    return this.#locks.get(key);
  }

  #of(key: string): Lock {
    let lock = this.#locks.get(key);
    if (!lock) {
      lock = { holders: new Map(), queue: [] };
      this.#locks.set(key, lock);
    }
    return lock;
  }

  /** The hold of an owner that knows of it. */
  holder(key: string, owner: string, fence?: number): Holder | undefined {
    const found = this.#locks.get(key)?.holders.get(owner);
    return found && !found.offer && (fence === undefined || fence === found.fence) ? found : undefined;
  }

  #placeOf(key: string, owner: string): Place | undefined {
    return this.#locks.get(key)?.queue.find((place) => place.request.owner === owner);
  }

  // --- Asking ---

  /** Grants it, or lets it wait. */
  acquire(request: Request, peer: Peer): Promise<Reply> | Reply {
    const { keys, owner } = request;
    const own = this.#locks.get(keys[0] as string)?.holders.get(owner);
    if (own && (own.offer || (request.mode === 'write' ? own.writes : own.reads) > 0)) return this.#again(request);
    const place = this.#placeOf(keys[0] as string, owner);
    if (this.#isFree(request, place)) {
      if (place) this.#leave(place, null);
      return this.#grant(request, undefined);
    }
    if (request.block === undefined && request.queue === undefined) return null;
    if (own && request.queue !== undefined) throw new ReplyError('ERR QUEUE cannot wait for an upgrade: use BLOCK');
    if (!place) this.#refuseCycle(request);
    return this.#wait(request, peer, place);
  }

  /** Of an owner that has it already, or an offer of it. */
  #again(request: Request): Reply {
    const { owner } = request;
    const holders = request.keys.map((key) => this.#of(key).holders.get(owner));
    if (holders.some((holder) => !holder))
      throw new ReplyError('ERR owner stands there with other keys: release that first');
    for (const [at, holder] of (holders as Holder[]).entries())
      this.#countOn(request, request.keys[at] as string, holder);
    return this.#fences(request);
  }

  #countOn({ mode, take, retry, lease, note, minFence }: Request, key: string, holder: Holder): void {
    const until = this.#clock.now() + lease;
    if (!holder.offer) {
      const name = mode === 'write' ? 'writes' : 'reads';
      holder[name] = retry > 0 ? Math.max(holder[name], retry) : holder[name] + take;
    }
    this.lease(key, holder, holder.offer ? until : Math.max(until, holder.until));
    if (note !== undefined) holder.note = note;
    holder.offer = undefined;
    this.raise(holder, minFence);
  }

  #fences({ keys, owner, isSeveral }: Request): Reply {
    const fences = keys.map((key) => this.#of(key).holders.get(owner)?.fence ?? null);
    return isSeveral ? fences : (fences[0] as Reply);
  }

  /** True if nobody holds what excludes the request, or waits before it. */
  #isFree(request: Request, own: Place | undefined): boolean {
    return request.keys.every((key) => {
      const lock = this.#locks.get(key);
      return !lock || (fits(request, lock) && !isBehind(request, lock, own));
    });
  }

  #grant(request: Request, offer: Place | undefined): Reply {
    for (const key of request.keys) {
      const now = this.#clock.now();
      const lock = this.#of(key);
      const before = lock.holders.get(request.owner);
      before?.cancel();
      const [reads, writes] = request.mode === 'write' ? [before?.reads ?? 0, 1] : [request.take, before?.writes ?? 0];
      const until = offer ? offer.until : now + request.lease;
      const fence = before && request.mode === 'read' ? before.fence : this.#nextFence(request.minFence);
      const { owner, note } = request;
      const holder: Holder = { owner, reads, writes, fence, note, since: now, until, offer, cancel: none };
      lock.holders.set(owner, holder);
      this.lease(key, holder, until);
    }
    return this.#fences(request);
  }

  #nextFence(least = 0): number {
    const wall = this.#clock.wall();
    if (least > this.#fence && least > wall + 30_000_000) {
      throw new ReplyError('ERR MINFENCE is more than half of lock.promotion-skew-ms ahead of the clock');
    }
    this.#fence = Math.max(this.#fence + 1, wall, least);
    return this.#fence;
  }

  /** A higher fence for a hold. The former one is void. */
  raise(holder: Holder, least: number): void {
    if (holder.fence < least) holder.fence = this.#nextFence(least);
  }

  /** Ends a hold at that time. */
  lease(key: string, holder: Holder, until: number): void {
    holder.cancel();
    holder.until = until;
    if (until === Number.POSITIVE_INFINITY) return;
    const end = () => {
      if (this.#locks.get(key)?.holders.get(holder.owner) === holder) this.remove(key, holder.owner);
    };
    holder.cancel = this.#clock.after(until - this.#clock.now(), end, true);
  }

  // --- Waiting ---

  #wait(request: Request, peer: Peer, known: Place | undefined): Promise<Reply> | Reply {
    const place: Place = known ?? {
      request,
      since: this.#clock.now(),
      parked: undefined,
      until: Number.POSITIVE_INFINITY,
      from: undefined,
      cancel: none,
    };
    if (!known) {
      this.queued += 1;
      for (const key of request.keys) this.#of(key).queue.push(place);
    }
    const { parked } = place;
    if (parked && request.block === undefined) {
      place.request = { ...place.request, channel: request.channel, queue: request.queue };
      return null;
    }
    if (parked) {
      place.parked = undefined;
      parked.answer(new ReplyError('UNBLOCKED lock wait ended: a later request of this owner waits there now'));
    }
    place.request = request;
    place.from = request.block !== undefined || request.channel !== undefined ? peer : undefined;
    const { block } = request;
    if (block === undefined) {
      this.#detach(place);
      return null;
    }
    return new Promise((resolve, reject) => {
      const until = block === 0 ? Number.POSITIVE_INFINITY : this.#clock.now() + block;
      const answer = (reply: Reply | Error) => (reply instanceof Error ? reject(reply) : resolve(reply));
      place.parked = { peer, until, answer };
      place.cancel();
      if (block > 0) place.cancel = this.#clock.after(block, () => this.unpark(place, null), true);
    });
  }

  /** The client that waits there is answered. The place stays for as long as its owner asked for. */
  unpark(place: Place, reply: Reply | Error): void {
    const { parked } = place;
    place.parked = undefined;
    this.#detach(place);
    parked?.answer(reply);
  }

  #detach(place: Place): void {
    if (place.request.queue === undefined) this.#leave(place, null);
    else this.#keep(place, this.#clock.now() + place.request.queue);
    this.#serve(place.request.keys);
  }

  #keep(place: Place, until: number): void {
    place.cancel();
    place.until = until;
    const end = () => {
      this.#leave(place, null);
      this.#serve(place.request.keys);
    };
    place.cancel = this.#clock.after(until - this.#clock.now(), end, true);
  }

  #leave(place: Place, reply: Reply | Error): void {
    place.cancel();
    for (const key of place.request.keys) {
      const lock = this.#of(key);
      lock.queue = lock.queue.filter((other) => other !== place);
    }
    const { parked } = place;
    place.parked = undefined;
    parked?.answer(reply);
  }

  /** Grants or offers what can be had now. */
  #serve(keys: readonly string[]): void {
    const todo = new Set(keys);
    for (const key of todo) {
      const lock = this.#locks.get(key);
      const next = lock?.queue.find((place) => this.#isFree(place.request, place));
      todo.delete(key);
      if (!next) {
        if (lock && lock.holders.size === 0 && lock.queue.length === 0) this.#locks.delete(key);
        continue;
      }
      const { parked, request } = next;
      next.parked = undefined;
      this.#leave(next, null);
      const reply = this.#grant(request, parked ? undefined : next);
      if (parked) parked.answer(reply);
      else this.#tell(next);
      for (const other of request.keys) todo.add(other);
    }
  }

  #tell({ request: { channel, owner } }: Place): void {
    if (channel !== undefined) this.#publish(channel, owner);
  }

  /** Throws if the wait would close a cycle of owners. */
  #refuseCycle({ keys, owner }: Request): void {
    const path = this.#wayTo(owner, keys, new Set());
    if (path) throw new ReplyError(`DEADLOCK ${[owner, ...path].join(' -> ')}`);
  }

  /** The keys and owners from a wait for these keys to this owner. Its own hold of a key is no way. */
  #wayTo(owner: string, keys: readonly string[], seen: Set<string>, isFirst = true): string[] | undefined {
    for (const key of keys) {
      for (const other of this.#locks.get(key)?.holders.keys() ?? []) {
        if (other === owner && !isFirst) return [key, other];
        if (other === owner || seen.has(other)) continue;
        seen.add(other);
        const wanted = this.places().flatMap(({ request }) => (request.owner === other ? request.keys : []));
        const rest = this.#wayTo(owner, wanted, seen, false);
        if (rest) return [key, other, ...rest];
      }
    }
    return undefined;
  }

  *#places(): Generator<Place> {
    for (const { queue } of this.#locks.values()) yield* queue;
  }

  places(): Place[] {
    return [...new Set(this.#places())];
  }

  /** The connection is closed: its places and offers end soon. */
  gone(peer: Peer): void {
    const soon = this.#clock.now() + AWAY_MS;
    for (const place of this.places()) {
      if (place.from !== peer) continue;
      place.parked = undefined;
      if (place.request.queue === undefined) this.#leave(place, null);
      else this.#keep(place, Math.min(soon, place.until));
      this.#serve(place.request.keys);
    }
    for (const [key, { holders }] of this.#locks)
      for (const holder of holders.values())
        if (holder.offer?.from === peer && holder.until > soon) this.lease(key, holder, soon);
  }

  // --- Giving back ---

  remove(key: string, owner: string): boolean {
    const holder = this.#locks.get(key)?.holders.get(owner);
    if (!holder) return false;
    holder.cancel();
    this.#locks.get(key)?.holders.delete(owner);
    // An offer of several keys ends as a whole.
    for (const other of holder.offer?.request.keys ?? []) if (other !== key) this.remove(other, owner);
    this.#serve([key]);
    return true;
  }

  /** Ends the place of an owner, if it is of this mode. */
  #leaveAs(key: string, owner: string, mode: Mode | undefined): void {
    const place = this.#placeOf(key, owner);
    if (!place || (mode && mode !== place.request.mode)) return;
    this.#leave(place, null);
    this.#serve(place.request.keys);
  }

  /** The counts that are left, or null if nothing was held there. */
  release(key: string, owner: string, { mode, to, fence }: { mode?: Mode; to?: number; fence?: number }): Reply {
    if (fence === undefined && !to) this.#leaveAs(key, owner, mode);
    const holder = this.#locks.get(key)?.holders.get(owner);
    if (!holder || (fence !== undefined && fence !== holder.fence)) return null;
    if (holder.offer) return to ? holder.reads + holder.writes : Number(!this.remove(key, owner));
    if (holder.reads > 0 && holder.writes > 0 && !mode && to !== 0)
      throw new ReplyError('ERR the owner holds both modes: name READ or WRITE');
    const less = (count: number) => (to === undefined ? Math.max(0, count - 1) : Math.min(count, to));
    if (mode !== 'write') holder.reads = less(holder.reads);
    if (mode !== 'read') holder.writes = less(holder.writes);
    const left = holder.reads + holder.writes;
    if (left === 0) this.remove(key, owner);
    else this.#serve([key]);
    return left;
  }

  /** Takes it from its holders, or from one. Returns how many there were. */
  break(key: string, owner?: string): number {
    const owners = [...(this.#locks.get(key)?.holders.keys() ?? [])].filter(
      (each) => owner === undefined || each === owner,
    );
    const place = owner === undefined ? undefined : this.#placeOf(key, owner);
    if (place) {
      this.#leave(place, null);
      this.#tell(place);
      this.#serve(place.request.keys);
    }
    for (const each of owners) this.remove(key, each);
    return owners.length;
  }

  /** Something else lies on the key now. */
  overwrite(key: string): void {
    const lock = this.#locks.get(key);
    if (!lock) return;
    for (const place of lock.queue) {
      this.#leave(place, new ReplyError('WRONGTYPE Operation against a key holding the wrong kind of value'));
      this.#tell(place);
    }
    for (const holder of lock.holders.values()) holder.cancel();
    this.#locks.delete(key);
  }

  // --- Showing ---

  info(key: string, owner: string | undefined, most: number): Reply {
    const lock = this.get(key);
    if (!lock) return null;
    const now = this.#clock.now();
    const left = (until: number) => (Number.isFinite(until) ? Math.max(0, Math.ceil(until - now)) : 86_400_000);
    const holders = [...lock.holders.values()].filter((holder) => owner === undefined || holder.owner === owner);
    if (owner !== undefined && holders.length === 0) return null;
    const modeOf = ({ reads, writes }: Holder) => (writes > 0 ? (reads > 0 ? 'both' : 'write') : 'read');
    const all = [...lock.holders.values()];
    const held = holders
      .slice(0, most)
      .map((holder): Reply[] => [
        ...['owner', holder.owner, 'mode', modeOf(holder), 'reads', holder.reads, 'writes', holder.writes],
        ...['fence', holder.fence, 'ttl_ms', left(holder.until), 'held_ms', Math.floor(now - holder.since)],
        ...[
          'offered',
          Number(holder.offer !== undefined),
          'session',
          null,
          'client',
          null,
          'note',
          holder.note || null,
        ],
      ]);
    const waiters = lock.queue
      .slice(0, most)
      .map(({ request, parked, since, until }): Reply[] => [
        ...['owner', request.owner, 'mode', request.mode, 'limit', request.limit ?? null],
        ...['take', request.limit === undefined ? null : request.take, 'waited_ms', Math.floor(now - since)],
        ...['left_ms', parked && Number.isFinite(parked.until) ? left(parked.until) : null],
        ...[
          'queue_left_ms',
          parked ? null : left(until),
          'keys',
          request.keys.length,
          'client',
          parked?.peer.id ?? null,
        ],
      ]);
    return [
      ...['mode', all.length === 0 ? null : all.some(({ writes }) => writes > 0) ? 'write' : 'read'],
      ...['fence', all.length === 0 ? null : Math.max(...all.map(({ fence }) => fence))],
      ...['shares', all.reduce((sum, { reads }) => sum + reads, 0), 'holding', all.length, 'holders', held],
      ...['waiting', lock.queue.length, 'waiters', waiters, 'reserved_by', null],
    ];
  }
}
