// A server in memory: the commands that the helper sends, and some that tests send.
//
// SPDX-License-Identifier: MIT

import type { Connection, Ears, Word } from '../transport/libraries.ts';
import { Source } from '../transport/libraries.ts';
import { TestClock } from './clock.ts';
import { LockTable, type Peer, type Reply } from './locks.ts';
import { fenceOf, leaseOf, type Mode, ReplyError, requestOf, Words } from './request.ts';

/** Answers a command of the application that `guard` sends, or throws its error. */
export type Answer = (command: readonly string[]) => Reply;

const WRONG_TYPE = 'WRONGTYPE Operation against a key holding the wrong kind of value';
const FOREIGN = 'another';

interface FakeConnection extends Peer {
  end: () => void;
  hears: Map<string, Ears>;
}

/**
 * A server in memory with the locks of the module, for tests without Redis: `new Locks(server)`. It knows LOCK.* as the
 * helper sends it, and GET, SET, DEL, EXISTS and PUBLISH.
 */
export class FakeServer extends Source {
  /** The time of the server and of the locks. */
  readonly time = new TestClock();
  /** Answers commands that it does not know. */
  answer: Answer | undefined;
  readonly #locks = new LockTable(this.time, (channel, text) => this.#publish(channel, text));
  readonly #strings = new Map<string, string>();
  readonly #connections = new Set<FakeConnection>();
  readonly #calls = new Map<string, number>();
  readonly #own: Peer = { id: 1 };
  #nextId = 2;
  #isDown = false;

  // --- What a test does ---

  /** Moves the clock by so many milliseconds, and lets happen what is due. From then on it stands still in between. */
  async advance(ms: number): Promise<void> {
    await this.time.advance(ms);
  }

  /** Takes a lock away from all its holders, as an operator does with LOCK.BREAK. Returns how many there were. */
  lose(key: string): number {
    return this.#locks.break(key);
  }

  /** Ends the leases of a lock now. Returns how many holders there were. */
  expire(key: string): number {
    return this.#locks.break(key);
  }

  /** Holds a lock for somebody else, who never gives it back: until `lose`. Returns the fence; null if it is not free. */
  take(key: string): number | null {
    if (this.holders(key).length > 0) return null;
    const request = requestOf('LOCK.ACQUIRE', ['LOCK.ACQUIRE', key, FOREIGN, 'PX', '86400000']);
    const fence = this.#locks.acquire(request, this.#own);
    const holder = this.#locks.holder(key, FOREIGN);
    if (holder) this.#locks.lease(key, holder, Number.POSITIVE_INFINITY);
    return typeof fence === 'number' ? fence : null;
  }

  /** The owners that hold a lock. */
  holders(key: string): string[] {
    return [...(this.#locks.get(key)?.holders.keys() ?? [])];
  }

  /** How many owners wait for a lock. */
  waiting(key: string): number {
    return this.#locks.get(key)?.queue.length ?? 0;
  }

  /** Ends all connections, and refuses new ones, until `start`. Locks stay until their leases end. */
  stop(): void {
    this.#isDown = true;
    for (const connection of this.#connections) connection.end();
  }

  start(): void {
    this.#isDown = false;
  }

  /** Sends a command, as a client of its own. Resolves with the reply as RESP2 has it, or rejects with its error. */
  async send(...words: string[]): Promise<Reply> {
    return await this.#execute(words, this.#own);
  }

  // --- Connections ---

  /** @internal */
  async open(): Promise<Connection> {
    let tell: () => void = () => undefined;
    let isOpen = false;
    const pending = new Set<(error: Error) => void>();
    const mine: FakeConnection = {
      id: this.#nextId,
      hears: new Map(),
      end: () => {
        if (!isOpen) return;
        isOpen = false;
        this.#connections.delete(mine);
        this.#locks.gone(mine);
        for (const reject of pending) reject(new Error('Connection is closed.'));
        tell();
      },
    };
    this.#nextId += 1;
    const send = async (words: Word[]): Promise<unknown> => {
      if (!isOpen) throw new Error('Connection is closed.');
      return await new Promise((resolve, reject) => {
        pending.add(reject);
        this.#execute(words.map(String), mine)
          .then(resolve, reject)
          .finally(() => pending.delete(reject));
      });
    };
    return {
      connect: async () => {
        if (this.#isDown) throw new Error('connect ECONNREFUSED: the server in memory is stopped');
        isOpen = true;
        this.#connections.add(mine);
      },
      send,
      subscribe: async (channel, _, ears) => {
        if (!isOpen) throw new Error('Connection is closed.');
        mine.hears.set(channel, ears);
      },
      keepProcessAlive: () => undefined,
      onEnd: (listener) => {
        tell = listener;
      },
      close: () => mine.end(),
    };
  }

  #publish(channel: string, text: string): number {
    const hearers = [...this.#connections].filter(({ hears }) => hears.has(channel));
    // Not within the step of the server.
    for (const { hears } of hearers) queueMicrotask(() => hears.get(channel)?.hear(text));
    return hearers.length;
  }

  // --- Commands ---

  async #execute(words: readonly string[], peer: Peer): Promise<Reply> {
    const command = words[0]?.toUpperCase() ?? '';
    const name = command.toLowerCase();
    this.#calls.set(name, (this.#calls.get(name) ?? 0) + 1);
    if (/^LOCK\.(ACQUIRE|RW|SHARE|MACQUIRE)$/.test(command)) {
      const request = requestOf(command, words);
      for (const key of request.keys) this.#refuseString(key);
      return await this.#locks.acquire(request, peer);
    }
    return command.startsWith('LOCK.') ? this.#lockCommand(command, words) : this.#plainCommand(command, words);
  }

  #refuseString(key: string): void {
    if (this.#strings.has(key)) throw new ReplyError(WRONG_TYPE);
  }

  #lockCommand(command: string, all: readonly string[]): Reply {
    const words = new Words(all);
    if (command === 'LOCK.MRELEASE') {
      const [keys, owner] = [words.keys(), words.next()];
      const how = releaseOf(words);
      return keys.map((key) => this.#locks.release(key, owner, how));
    }
    const key = words.next();
    this.#refuseString(key);
    switch (command) {
      case 'LOCK.RELEASE':
        return this.#locks.release(key, words.next(), releaseOf(words));
      case 'LOCK.EXTEND':
        return this.#extend(key, words);
      case 'LOCK.CHECK':
        return this.#check(key, words);
      case 'LOCK.GUARD':
        return this.#guard(key, words);
      case 'LOCK.BREAK':
        return this.#locks.break(key, words.isAtEnd ? undefined : words.next());
      case 'LOCK.INFO': {
        const options = words.options(['OWNER', 'COUNT']);
        return this.#locks.info(key, options.get('OWNER'), Number(options.get('COUNT') ?? 10));
      }
      default:
        throw unknown(command);
    }
  }

  #extend(key: string, words: Words): Reply {
    const owner = words.next();
    const options = words.options(['PX', 'EX', 'FENCE', 'NOTE', 'MINFENCE']);
    const lease = leaseOf(options);
    if (lease === undefined) throw new ReplyError('ERR PX or EX is needed');
    const holder = this.#locks.holder(key, owner, fenceOf(options));
    if (!holder) return null;
    this.#locks.raise(holder, fenceOf(options, 'MINFENCE') ?? 0);
    const note = options.get('NOTE');
    if (note !== undefined) holder.note = note;
    this.#locks.lease(key, holder, this.time.now() + lease);
    return holder.fence;
  }

  #check(key: string, words: Words): Reply {
    const owner = words.next();
    const mode = words.oneOf('READ', 'WRITE');
    const holder = this.#locks.holder(key, owner, fenceOf(words.options(['FENCE'])));
    if (!holder) return null;
    return mode && (mode === 'READ' ? holder.reads : holder.writes) === 0 ? null : holder.fence;
  }

  #guard(key: string, words: Words): Reply {
    const holder = this.#locks.holder(key, words.next(), words.number('fence'));
    if (!holder || holder.writes === 0) return null;
    const command: string[] = [];
    while (!words.isAtEnd) command.push(words.next());
    return [holder.fence, this.#plainCommand(command[0]?.toUpperCase() ?? '', command)];
  }

  #plainCommand(command: string, words: readonly string[]): Reply {
    const [, key = '', value = ''] = words;
    switch (command) {
      case 'PING':
        return 'PONG';
      case 'HELLO':
        return ['server', 'fake', 'mode', 'standalone'];
      case 'GET':
        if (this.#locks.get(key)) throw new ReplyError(WRONG_TYPE);
        return this.#strings.get(key) ?? null;
      case 'SET':
        this.#locks.overwrite(key);
        this.#strings.set(key, value);
        return 'OK';
      case 'EXISTS':
        return words.slice(1).filter((each) => this.#strings.has(each) || this.#locks.get(each)?.holders.size).length;
      case 'DEL':
        return words.slice(1).filter((each) => this.#strings.delete(each) || this.#locks.break(each) > 0).length;
      case 'PUBLISH':
        return this.#publish(key, value);
      case 'INFO':
        return [
          `lock_queued:${this.#locks.queued}\r\n`,
          ...[...this.#calls].map(([called, calls]) => `cmdstat_${called}:calls=${calls},\r\n`),
        ].join('');
      default:
        if (this.answer) return this.answer(words);
        throw unknown(command);
    }
  }
}

function unknown(command: string): ReplyError {
  return new ReplyError(`ERR unknown command '${command}'`);
}

function releaseOf(words: Words): { mode?: Mode; to?: number; fence?: number } {
  const options = words.options(['TO', 'FENCE'], ['READ', 'WRITE', 'ALL']);
  const to = options.has('ALL') ? 0 : options.has('TO') ? Number(options.get('TO')) : undefined;
  const fence = fenceOf(options);
  const mode = options.has('READ') ? 'read' : options.has('WRITE') ? 'write' : undefined;
  return { ...(mode && { mode }), ...(to !== undefined && { to }), ...(fence !== undefined && { fence }) };
}
