// A hold that comes from another process.
//
// SPDX-License-Identifier: MIT

import { codeOf, explained, isPassing, LockLost, LockUnreachable } from '../errors.ts';
import { Line } from '../transport/links.ts';
import { type Engine, Hold } from './hold.ts';
import type { Owner } from './owner.ts';
import type { Terms } from './terms.ts';
import { ANSWER_MS, jittered, nap, PAUSE_MAX_MS, PAUSE_MIN_MS } from './times.ts';
import { numberOf } from './wait.ts';

/** Raises its fence, so that the one of the former process is void. It is asked for as long as the wait lasts. */
export async function adopt(engine: Engine, terms: Terms, owner: Owner, fence: number): Promise<Hold> {
  const { time } = engine.wire;
  const line = new Line(engine.wire, terms.wired[0] ?? '');
  const end = time.now() + terms.wait;
  const words = ['LOCK.EXTEND', terms.wired[0] ?? '', owner.name, 'PX', String(terms.lease)];
  words.push('FENCE', String(fence), 'MINFENCE', String(fence + 1));
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
      if (!mayPass(error) || time.now() >= end) throw explained(error);
      if (error instanceof LockUnreachable) unanswered = error;
      await nap(time, Math.min(jittered(pause), Math.max(0, end - time.now())));
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

/** The clock of the fences is ahead for a while after a start. */
function mayPass(error: unknown): boolean {
  return isPassing(error) || /MINFENCE is more than/.test((error as Error).message);
}
