// A hold that comes from another process.
//
// SPDX-License-Identifier: MIT

import { codeOf, explained, isAhead, isPassing, LockLost, LockUnreachable } from '../errors.ts';
import { ignore } from '../transport/libraries.ts';
import { Line } from '../transport/links.ts';
import { type Engine, Hold, isAnswered, repeated } from './hold.ts';
import type { Owner } from './owner.ts';
import { numberOf, type Terms } from './terms.ts';
import { ANSWER_MS, jittered, PAUSE_MAX_MS, PAUSE_MIN_MS, until } from './times.ts';

/** What the other process had: its fence, and for how long it waits to be taken over. */
interface Former {
  owner: Owner;
  fence: number;
  lease: number;
}

/** Takes it over. The signal ends that, and gives the lock back. */
export async function adopt(engine: Engine, terms: Terms, former: Former, signal?: AbortSignal): Promise<Hold> {
  const line = new Line(engine.wire, terms.wired[0] ?? '');
  let cancel: () => void = ignore;
  const cancelled = new Promise<never>((_, reject) => {
    cancel = () => reject(signal?.reason);
  });
  signal?.addEventListener('abort', cancel);
  const raising = raise(engine, line, { terms, ...former, cancelled });
  try {
    return await Promise.race([cancelled, raising]);
  } catch (error) {
    if (signal?.aborted && error === signal.reason) {
      // If a request without an answer has raised the fence, the lock ends with its lease.
      const words = [...terms.leave(former.owner.name), 'FENCE', String(former.fence)];
      const send = () => line.ask(words, ANSWER_MS, { isQuiet: true });
      const giveBack = async () => (await isAnswered(send())) || repeated(engine.wire, former.lease, send);
      raising.then((hold) => hold.release(), giveBack).catch(ignore);
    }
    throw error;
  } finally {
    signal?.removeEventListener('abort', cancel);
  }
}

/** Raises its fence, so that the former one is void. It is asked for until its lease, or the wait, is over. */
async function raise(
  engine: Engine,
  line: Line,
  { terms, owner, fence, lease, cancelled }: Former & { terms: Terms; cancelled: Promise<never> },
): Promise<Hold> {
  const { time } = engine.wire;
  const end = time.now() + Math.min(terms.wait, lease);
  const words = terms.adopt(owner.name, fence);
  let unanswered: unknown;
  for (let pause = PAUSE_MIN_MS; ; pause = Math.min(2 * pause, PAUSE_MAX_MS)) {
    const sent = time.clock();
    try {
      const raised = await line.request(words, ANSWER_MS).catch(noneOfWrongType);
      if (raised !== null) {
        const hold = new Hold(engine, line, { owner, terms, fences: [numberOf(raised)], sent });
        engine.renewer.add(hold);
        return hold;
      }
    } catch (error) {
      engine.troubles.failed(error);
      if (!(isPassing(error) || isAhead(error)) || time.now() >= end) throw explained(error);
      if (error instanceof LockUnreachable) unanswered = error;
      await until(time, Math.min(jittered(pause), Math.max(0, end - time.now())), cancelled);
      continue;
    }
    // Null to a request that is repeated: the first one may have raised the fence.
    throw unanswered ?? new LockLost(`${terms} is lost: it cannot be taken over`);
  }
}

function noneOfWrongType(error: unknown): null {
  if (codeOf(error) === 'WRONGTYPE') return null;
  throw error;
}
