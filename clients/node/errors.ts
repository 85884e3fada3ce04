// The errors of the helper, and what an error reply of the server means.
//
// SPDX-License-Identifier: MIT

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
export function codeOf(error: unknown): string | undefined {
  return error instanceof Error ? /^([A-Z]{3,}) /.exec(error.message)?.[1] : undefined;
}

const PASSING =
  /^(UNBLOCKED|GRACE|READONLY|LOADING|CLUSTERDOWN|TRYAGAIN|MASTERDOWN|NOREPLICAS|MISCONF|OOM|LIMIT .*(waiters|places?|(place|waiter)-bytes))\b/;

/** True if the same request may succeed later. */
export function isPassing(error: unknown): boolean {
  if (error instanceof LockUnreachable || isRedirection(error)) return true;
  return PASSING.test((error as Error).message);
}

/** True if the fence that was asked for is too far ahead of the server's clock of fences, as right after a start. */
export function isAhead(error: unknown): boolean {
  return /MINFENCE is more than/.test((error as Error).message);
}

/** True if another node of the cluster has the key. */
export function isRedirection(error: unknown): boolean {
  const code = codeOf(error);
  return code === 'MOVED' || code === 'ASK';
}

// --- Trouble ---

/**
 * What kind of trouble it is: no connection or no answer; a server without the module, or with one that is too old; a right that the user lacks;
 * a server at `maxmemory`; no messages for waits; another error reply that may pass; a renewal or a release that failed; a
 * lock that is lost.
 */
export type TroubleKind =
  | 'unreachable'
  | 'no-module'
  | 'old-module'
  | 'no-right'
  | 'memory'
  | 'notify'
  | 'refused'
  | 'renewal'
  | 'release'
  | 'lost';

/** Told of trouble at its first failed attempt. What it throws is ignored. */
export type OnTrouble = (error: Error, kind: TroubleKind) => unknown;

const NO_RIGHT: ReadonlySet<string | undefined> = new Set(['NOAUTH', 'WRONGPASS', 'NOPERM']);
/** What comes and goes by itself, when a server has started or a slot moves. */
const USUAL: ReadonlySet<string | undefined> = new Set(['GRACE', 'UNBLOCKED', 'MOVED', 'ASK', 'TRYAGAIN']);

/** True if the server does not let the client in. */
export function isRefusal(error: unknown): boolean {
  return NO_RIGHT.has(codeOf(error));
}

/** The kind of trouble that a failed request shows, if any. */
export function kindOf(error: unknown): TroubleKind | undefined {
  if (error instanceof LockUnreachable) return 'unreachable';
  const code = codeOf(error);
  if (isUnknownCommand(error)) return 'no-module';
  if (isUnknownOption(error)) return 'old-module';
  if (NO_RIGHT.has(code)) return 'no-right';
  if (code === 'OOM') return 'memory';
  return USUAL.has(code) || !isPassing(error) ? undefined : 'refused';
}

function isUnknownCommand(error: unknown): boolean {
  return /^ERR unknown command '?LOCK\./i.test((error as Error).message);
}

/** True if the module lacks an option that the helper sends. */
function isUnknownOption(error: unknown): boolean {
  return /^ERR unknown option/.test((error as Error).message);
}

/** The error, or for a server without the module, or with an old one, one with a sentence that helps. */
export function explained(error: unknown): unknown {
  const isOld = isUnknownOption(error);
  if (!(isOld || isUnknownCommand(error))) return error;
  const text = isOld
    ? 'the module redis-lock of the server is too old: this helper needs 1.0 or newer'
    : 'the server has no locks: load the module redis-lock (libredis_lock.so) there, or mend host and port';
  return new LockError(`${text}. It said: ${(error as Error).message}`, { cause: error });
}

/** What is told for each kind, behind what happened. */
const ADVICE: Partial<Record<TroubleKind, string>> = {
  unreachable: 'is the server up, and are host and port right?',
  'no-right': 'may the user of this client run the commands LOCK.* on this key?',
  notify: 'does the server know NOTIFY, and may this user SUBSCRIBE and PUBLISH on lock:notify:* there?',
  memory: 'the server is at maxmemory; a wait goes on and keeps its place',
};

/** Tells the application of each kind of trouble once, and again after it was over. */
export class Troubles {
  readonly #tell: OnTrouble;
  readonly #told = new Set<TroubleKind>();

  constructor(tell: OnTrouble) {
    this.#tell = tell;
  }

  /** Of a request that failed, and perhaps is repeated. */
  failed(error: unknown): void {
    const kind = kindOf(error);
    if (kind) this.tell(kind, error);
  }

  tell(kind: TroubleKind, error: unknown): void {
    // Each loss is one of its own.
    if (kind !== 'lost' && this.#told.has(kind)) return;
    this.#told.add(kind);
    const plain = explained(error) as Error;
    const advice = ADVICE[kind];
    const told = advice ? new LockError(`${plain.message}: ${advice}`, { cause: error }) : plain;
    try {
      Promise.resolve(this.#tell(told, kind)).catch(() => undefined);
    } catch {
      // The application's own.
    }
  }

  /** A lock was granted, or renewed, or released: what was told before is over. */
  over(...kinds: TroubleKind[]): void {
    if (this.#told.size === 0) return;
    if (kinds.length === 0) this.#told.clear();
    for (const kind of kinds) this.#told.delete(kind);
  }
}
