// The scenarios' agent for Node.js: uses clients/node as an application would, and does what it is told on stdin.
//
// node node.mjs node-redis|ioredis URL [--cluster] [blocking=N]: one JSON object a line, in and out. Each request runs
// by itself, and its answer carries its id. With the URL fake: the server is one in memory, in this process.
// At most N waits have a connection each; with 0 all are told by messages.
// It never cleans up: at the end of stdin the process ends as one that dies.

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const [library, url, ...words] = process.argv.slice(2);
const root = new URL('../../../', import.meta.url);
const require = createRequire(new URL('target/node/', root));
const helper = process.env.REDIS_LOCK_NODE_HELPER ?? new URL('target/helpers/node/redis-lock.js', root);
const { LockDeadlock, LockLost, LockMisuse, LockTimeout, LockUnreachable, Locks } = await import(helper);

const isCluster = words.includes('--cluster');
const blocking = words.find((word) => word.startsWith('blocking='))?.slice('blocking='.length);
const libraries = {
  'node-redis': {
    open: () => {
      const { createClient, createCluster } = require('redis');
      const client = isCluster ? createCluster({ rootNodes: [{ url }] }) : createClient({ url });
      return client.on('error', () => {}).connect();
    },
    ping: (client) => (isCluster ? client.sendCommand(undefined, true, ['PING']) : client.ping()),
    close: (client) => client.close(),
  },
  ioredis: {
    open: async () => {
      const Redis = require('ioredis');
      return (isCluster ? new Redis.Cluster([url]) : new Redis(url)).on('error', () => {});
    },
    ping: (client) => client.ping(),
    close: (client) => client.quit(),
  },
};
// In place of a server, one in memory: then no client library is used.
const isFake = url === 'fake:';
const fake = {
  open: async () => new (await import(new URL('testing/index.js', new URL(helper, root)))).FakeServer(),
  ping: (server) => server.send('PING'),
  close: () => {},
};
const { open, ping, close } = isFake ? fake : libraries[library];
const client = await open();
const told = [];
const onTrouble = (error, kind) => told.push(`${kind}: ${error.message}`);
const locks = new Locks(client, { onTrouble, ...(blocking === undefined ? {} : { maxBlocking: Number(blocking) }) });

// By name: what to ask for, and the lock that was acquired last, with how often its loss was signalled.
const asked = new Map();
const taken = new Map();
const cancels = new Map();

const milliseconds = (seconds) => (seconds == null ? undefined : seconds * 1_000);
const some = (value) => value ?? undefined;
const lockOf = (name) => taken.get(name).lock;

const actions = {
  open: ({ lock, keys, lease, wait, shared, limit, take, note, within }) => {
    const options = {
      lease: milliseconds(lease),
      wait: milliseconds(wait),
      shared: some(shared),
      limit: some(limit),
      take: some(take),
      note: some(note),
    };
    asked.set(lock, { keys: keys.length === 1 ? keys[0] : keys, options, within });
    return {};
  },
  acquire: async ({ id, lock: name }) => {
    const { keys, options, within } = asked.get(name);
    const control = new AbortController();
    cancels.set(id, control);
    const inside = within == null ? {} : { within: lockOf(within) };
    try {
      const lock = await locks.acquire(keys, { ...options, ...inside, signal: control.signal });
      const entry = { lock, signals: 0 };
      lock.signal.addEventListener('abort', () => {
        entry.signals += 1;
      });
      taken.set(name, entry);
      return { fences: lock.fences };
    } catch (error) {
      if (error instanceof LockTimeout) return { fences: null };
      throw error;
    }
  },
  cancel: ({ of }) => {
    // A release takes no signal: it is never cancelled.
    cancels.get(of)?.abort();
    return {};
  },
  release: async ({ lock }) => {
    await lockOf(lock).release();
    return { released: true };
  },
  check: async ({ lock }) => ({ held: await lockOf(lock).check() }),
  guard: async ({ lock, command: [command, ...words] }) => ({ reply: await lockOf(lock).guard(command, ...words) }),
  lost: ({ lock }) => ({ lost: lockOf(lock).lost }),
  'await-lost': async ({ lock: name }) => {
    const entry = taken.get(name);
    const { signal } = entry.lock;
    if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve));
    return { signals: entry.signals };
  },
  owner: ({ lock }) => ({ owner: lockOf(lock).owner }),
  troubles: () => ({ troubles: told }),
  tasks: () => ({ tasks: process.getActiveResourcesInfo().length }),
  ping: async () => {
    await ping(client);
    return {};
  },
  close: async () => {
    await close(client);
    return {};
  },
  server: async ({ command }) => ({
    reply: await client.send(...command).catch((error) => ({ error: error.message })),
  }),
};

function kindOf(error) {
  if (error.name === 'AbortError') return 'cancelled';
  if (error instanceof LockDeadlock) return 'deadlock';
  if (error instanceof LockLost) return 'lost';
  if (error instanceof LockMisuse) return 'refused';
  if (error instanceof LockUnreachable) return 'connection';
  // The helper's own sentence has the reply as its cause.
  return /^[A-Z]+ /.test((error.cause ?? error).message) ? 'server' : 'connection';
}

const write = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);

async function answer(request) {
  try {
    write({ id: request.id, ...(await actions[request.do](request)) });
  } catch (error) {
    write({ id: request.id, error: kindOf(error), message: error.message });
  } finally {
    cancels.delete(request.id);
  }
}

write({ ready: library });
createInterface({ input: process.stdin })
  .on('line', (line) => void answer(JSON.parse(line)))
  .on('close', () => process.exit(0));
