// Leads as often as it can, until SIGTERM: node leader.mjs redis://127.0.0.1:6379 KEY [LEASE]
//
// Run several of them, and end or stop one, or its server: it says that its term is over, and another one leads.

import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';
import { createClient } from 'redis';
import { Locks } from 'redis-lock-client';

const [url, key = 'leader', lease = '30000'] = process.argv.slice(2);
const stop = new AbortController();
process.once('SIGTERM', () => stop.abort(new Error('SIGTERM')));

// The helper makes its own connections, by the settings of a client that need not be connected.
const locks = new Locks(createClient({ url }), { lease: Number(lease) });
try {
  await locks.lead(key, { signal: stop.signal }, async (signal, { fence }) => {
    console.log(`leads ${fence}`);
    try {
      for (;;) await sleep(60_000, undefined, { signal }); // the work, which writes under its fence
    } finally {
      console.log(`over ${fence}`);
    }
  });
} catch (error) {
  if (!stop.signal.aborted) throw error;
}
