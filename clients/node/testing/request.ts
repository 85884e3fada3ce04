// The words of a LOCK command, read as the module reads them.
//
// SPDX-License-Identifier: MIT

/** An error reply. */
export class ReplyError extends Error {
  override name = 'ReplyError';
}

export type Mode = 'read' | 'write';

/** An acquisition. */
export interface Request {
  keys: readonly string[];
  owner: string;
  mode: Mode;
  /** All read counts together stay within it. */
  limit: number | undefined;
  take: number;
  lease: number;
  /** Undefined: it does not wait in the server. */
  block: number | undefined;
  queue: number | undefined;
  channel: string | undefined;
  retry: number;
  note: string | undefined;
  minFence: number;
  isSeveral: boolean;
}

const LEASE_MS = 30_000;

/** Reads words one after the other. */
export class Words {
  readonly #words: readonly string[];
  #at: number;

  constructor(words: readonly string[], from = 1) {
    this.#words = words;
    this.#at = from;
  }

  get isAtEnd(): boolean {
    return this.#at >= this.#words.length;
  }

  next(): string {
    const word = this.#words[this.#at];
    if (word === undefined) throw new ReplyError(`ERR wrong number of arguments for '${this.#words[0]}' command`);
    this.#at += 1;
    return word;
  }

  number(name: string, least = 0): number {
    const word = this.next();
    const value = Number(word);
    if (!/^\d+$/.test(word) || value < least || !Number.isSafeInteger(value))
      throw new ReplyError(`ERR ${name} must be a whole number from ${least}`);
    return value;
  }

  /** Takes a word if it is one of these. */
  oneOf(...names: string[]): string | undefined {
    const word = this.#words[this.#at]?.toUpperCase();
    if (word === undefined || !names.includes(word)) return undefined;
    this.#at += 1;
    return word;
  }

  keys(): string[] {
    const count = this.number('numkeys', 1);
    return Array.from({ length: count }, () => this.next());
  }

  /** The options that are left, with their values. */
  options(values: readonly string[], flags: readonly string[] = []): Map<string, string> {
    const found = new Map<string, string>();
    while (!this.isAtEnd) {
      const word = this.next();
      const name = word.toUpperCase();
      if (flags.includes(name)) found.set(name, '');
      else if (values.includes(name)) found.set(name, this.next());
      else throw new ReplyError(`ERR unknown option "${word}"`);
    }
    return found;
  }
}

function count(options: Map<string, string>, name: string, least: number): number | undefined {
  const word = options.get(name);
  return word === undefined ? undefined : new Words([word], 0).number(name, least);
}

/** The length of a lease; undefined if there is none. */
export function leaseOf(options: Map<string, string>): number | undefined {
  const seconds = count(options, 'EX', 1);
  return count(options, 'PX', 1) ?? (seconds === undefined ? undefined : seconds * 1_000);
}

export function fenceOf(options: Map<string, string>, name = 'FENCE'): number | undefined {
  return count(options, name, 0);
}

const ACQUIRING = ['PX', 'EX', 'BLOCK', 'QUEUE', 'NOTIFY', 'RETRY', 'NOTE', 'MINFENCE', 'TAKE'];

/** Reads an acquisition. */
export function requestOf(command: string, all: readonly string[]): Request {
  const words = new Words(all);
  const isSeveral = command === 'LOCK.MACQUIRE';
  const keys = isSeveral ? words.keys() : [words.next()];
  const owner = words.next();
  const limit = command === 'LOCK.SHARE' ? words.number('limit', 1) : undefined;
  const named = command === 'LOCK.RW' || isSeveral ? words.oneOf('READ', 'WRITE') : undefined;
  if (command === 'LOCK.RW' && !named) throw new ReplyError('ERR mode must be READ or WRITE');
  const options = words.options(ACQUIRING);
  const queue = count(options, 'QUEUE', 1);
  const channel = options.get('NOTIFY');
  if (channel !== undefined && queue === undefined) throw new ReplyError('ERR NOTIFY needs QUEUE');
  return {
    keys,
    owner,
    mode: limit !== undefined || named === 'READ' ? 'read' : 'write',
    limit,
    take: count(options, 'TAKE', 1) ?? 1,
    lease: leaseOf(options) ?? LEASE_MS,
    block: count(options, 'BLOCK', 0),
    queue,
    channel,
    retry: count(options, 'RETRY', 1) ?? (queue === undefined ? 0 : 1),
    note: options.get('NOTE'),
    minFence: fenceOf(options, 'MINFENCE') ?? 0,
    isSeveral,
  };
}
