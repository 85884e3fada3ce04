// What the tests of the helper share: the server, the client libraries, and a wire that can break.
//
// REDIS_LOCK_PORT is the port of a server with the module on 127.0.0.1. The tests use keys of their own.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = new URL('../../../', import.meta.url);
export const port = Number(process.env.REDIS_LOCK_PORT);
assert.ok(port > 0, 'REDIS_LOCK_PORT must be the port of a server with the module');

/** The compiled helper: as the packages install it, or as tools/install.sh node-helper builds it. */
export const helper = process.env.REDIS_LOCK_NODE_HELPER ?? new URL('target/helpers/node/redis-lock.js', root).href;
/** What the package gives to tests of applications. */
export const testing = new URL('testing/index.js', new URL(helper, import.meta.url)).href;
export const { FakeServer, startServer, useServer } = await import(testing);
export const { Locks, LockDeadlock, LockError, LockLost, LockMisuse, LockTimeout, LockUnreachable } = await import(
  helper
);

export const modules = fileURLToPath(new URL('target/node/', root));
const require = createRequire(modules);

/** The client libraries, each with a client as it comes, or with options. */
export const libraries = {
  'node-redis': {
    open: (at = port, options = {}) => {
      const client = require('redis').createClient({ socket: { host: '127.0.0.1', port: at }, ...options });
      return client.on('error', () => undefined).connect();
    },
    openCluster: async (ports) => {
      const rootNodes = ports.map((at) => ({ url: `redis://127.0.0.1:${at}` }));
      return await require('redis')
        .createCluster({ rootNodes })
        .on('error', () => undefined)
        .connect();
    },
    send: (client, ...words) => client.sendCommand(words.map(String)),
    close: (client) => client.destroy(),
    strings: () => ({ commandOptions: { typeMapping: { [require('redis').RESP_TYPES.NUMBER]: String } } }),
  },
  ioredis: {
    open: async (at = port, options = {}) => {
      const Redis = require('ioredis');
      const client = new Redis(at, '127.0.0.1', options).on('error', () => undefined);
      await once(client, 'ready');
      return client;
    },
    openCluster: async (ports) => {
      const { Cluster } = require('ioredis');
      const client = new Cluster(ports.map((at) => ({ host: '127.0.0.1', port: at }))).on('error', () => undefined);
      await once(client, 'ready');
      return client;
    },
    send: (client, ...words) => client.call(...words),
    close: (client) => client.disconnect(),
    strings: () => ({ stringNumbers: true, keyPrefix: 'app:' }),
  },
};

/** RESP2 has flat arrays where RESP3 has maps. */
export const asMap = (reply) =>
  Array.isArray(reply) ? Object.fromEntries(reply.flatMap((x, at) => (at % 2 ? [] : [[x, reply[at + 1]]]))) : reply;

/** For the tests of one client library: keys of their own, and a client to ask the server with. */
export function tester(library, name) {
  const { open, send, close } = libraries[library];
  let number = 0;
  const self = {
    /** The key of a number; the last one's without one. */
    keyOf: (which = number) => `test:${name}:${library}:${process.pid}:${which}`,
    newKey: () => {
      number += 1;
      return self.keyOf();
    },
    ask: (...words) => send(self.client, ...words),
    info: async (key) => asMap(await self.ask('LOCK.INFO', key, 'COUNT', 1_000)),
    isFree: async (key) => (await self.info(key)) === null,
    waiting: async (key) => (await self.info(key))?.waiting ?? 0,
    /** How often this command was called, or all of the module. */
    calls: async (command) => {
      const stats = await self.ask('INFO', 'commandstats');
      return [...stats.matchAll(/cmdstat_(lock\.\w+):calls=(\d+)/g)]
        .filter(([, called]) => command === undefined || called === command)
        .reduce((sum, [, , count]) => sum + Number(count), 0);
    },
    /** A test with a wire of its own, and a client behind it. */
    wired: (title, body) =>
      it(title, async () => {
        const wire = await new Wire().listen();
        const far = await open(wire.port);
        try {
          await body(wire, far);
        } finally {
          close(far);
          wire.close();
        }
      }),
  };
  before(async () => {
    self.client = await open();
  });
  after(() => close(self.client));
  return self;
}

/** A process of its own, in which `locks` are those of a `client`, and `jump` sets the clocks forward by seconds. */
export async function run(library, code, ...flags) {
  const opening = {
    'node-redis': `await require('redis').createClient({ url }).connect()`,
    ioredis: `new (require('ioredis'))(url, { lazyConnect: true })`,
  };
  const script = `
    import { createRequire, syncBuiltinESMExports } from 'node:module';
    import os from 'node:os';
    let jump = 0;
    const [uptime, now] = [os.uptime, Date.now];
    os.uptime = () => uptime() + jump;
    Date.now = () => now() + 1_000 * jump;
    syncBuiltinESMExports();
    const { Locks } = await import(${JSON.stringify(helper)});
    const require = createRequire(${JSON.stringify(modules)});
    const url = 'redis://127.0.0.1:${port}';
    const client = ${opening[library]};
    const locks = new Locks(client);
    ${code}`;
  const child = spawn(process.execPath, [...flags, '--input-type=module', '--eval', script], {
    stdio: ['ignore', 'pipe', 2],
  });
  let output = '';
  child.stdout.on('data', (data) => {
    output += data;
  });
  const [status] = await once(child, 'close');
  return { status, output };
}

/** The lines as Node.js 20 runs them: it does not know `await using` yet. Nothing without TypeScript. */
export function compiled(code) {
  try {
    const ts = createRequire(new URL('target/typescript/', root))('typescript');
    return ts.transpile(code, { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 });
  } catch {
    return undefined;
  }
}

/** Asks until it is so. */
export async function until(what, condition) {
  const end = performance.now() + 60_000;
  while (!(await condition())) {
    assert.ok(performance.now() < end, `waited in vain for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** A wire to the server. It can be cut, slow, and frozen: then nothing is heard, and nothing is closed. */
export class Wire {
  #server = createServer((socket) => this.#connected(socket));
  #pairs = new Set();
  #isFrozen = false;
  /** How many connections may be opened still. */
  left = Number.POSITIVE_INFINITY;
  /** How many may be open at once. */
  most = Number.POSITIVE_INFINITY;
  /** How many were opened. */
  opened = 0;
  /** Whether new connections are frozen, until the wire is not. */
  isSlow = false;
  /** How many of them there were. */
  slow = 0;
  /** How long each byte takes, in milliseconds. */
  delay = 0;
  /** What becomes of the bytes from the client, and from the server, on a connection. */
  rewrite = (bytes) => bytes;
  answer = (bytes) => bytes;

  async listen() {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    this.port = this.#server.address().port;
    return this;
  }

  get open() {
    return this.#pairs.size;
  }

  #connected(socket) {
    if (this.left <= 0 || this.open >= this.most) {
      socket.destroy();
      return;
    }
    this.left -= 1;
    this.opened += 1;
    const far = connect(port, '127.0.0.1');
    const pair = { socket, far };
    this.#pairs.add(pair);
    for (const [from, to] of [
      [socket, far],
      [far, socket],
    ]) {
      const pass = (bytes) => to.write(from === socket ? this.rewrite(bytes, socket) : this.answer(bytes, socket));
      from.on('error', () => undefined).on('close', () => to.destroy());
      from.on('data', (bytes) => (this.delay > 0 ? setTimeout(pass, this.delay, bytes) : pass(bytes)));
      if (this.#isFrozen || this.isSlow) from.pause();
    }
    if (this.isSlow) this.slow += 1;
    socket.on('close', () => this.#pairs.delete(pair));
  }

  freeze(isFrozen) {
    this.#isFrozen = isFrozen;
    this.#each((socket) => (isFrozen ? socket.pause() : socket.resume()));
  }

  /** The connections that there are die without a word, but for the eldest ones. New ones are well. */
  silence(eldest = 0) {
    this.#each((socket) => socket.pause(), eldest);
  }

  #each(act, eldest = 0) {
    for (const { socket, far } of [...this.#pairs].slice(eldest)) for (const end of [socket, far]) act(end);
  }

  /**
   * The next bytes with these words, and all behind them on their connection, do not arrive. Returns what is true once
   * there are some, and what lets the server read them late, whatever became of that connection.
   */
  holdBack(words) {
    let from;
    const kept = [];
    this.rewrite = (bytes, socket) => {
      if (!from && bytes.includes(words)) from = socket;
      if (socket !== from) return bytes;
      kept.push(bytes);
      return Buffer.alloc(0);
    };
    const arrive = () => {
      const late = connect(port, '127.0.0.1', () => late.end(Buffer.concat(kept)));
      late.on('error', () => undefined).resume();
    };
    return { isHeld: () => kept.length > 0, arrive };
  }

  /** Ends connections: all, or from this one to before that one, by age. */
  cut(from = 0, to = this.open) {
    for (const { socket } of [...this.#pairs].slice(from, to)) socket.destroy();
  }

  close() {
    this.#server.close();
    this.cut();
  }
}

/** Two primaries, each with half of the slots, without replicas. */
export class Cluster {
  #folder = mkdtempSync(join(tmpdir(), 'redis-lock-'));
  #processes = [];
  #clients = [];
  ports = [];

  async start() {
    const slots = [
      [0, 8191],
      [8192, 16383],
    ];
    for (const node of slots.keys()) await this.#startNode(node);
    await this.ask(0, 'CLUSTER', 'MEET', '127.0.0.1', this.ports[1]);
    for (const [node, range] of slots.entries()) await this.ask(node, 'CLUSTER', 'ADDSLOTSRANGE', ...range);
    for (const node of slots.keys()) {
      await until('the cluster', async () => {
        const said = String(await this.ask(node, 'CLUSTER', 'INFO'));
        return said.includes('cluster_state:ok') && said.includes('cluster_known_nodes:2');
      });
    }
    return this;
  }

  /** The port, and that of the bus, may be taken meanwhile: then another one. */
  async #startNode(node) {
    for (;;) {
      const probe = createServer().listen(0, '127.0.0.1');
      await once(probe, 'listening');
      const { port: at } = probe.address();
      await new Promise((resolve) => probe.close(resolve));
      if (at > 55_000) continue;
      const settings = ['--port', at, '--dir', this.#folder, '--cluster-enabled', 'yes', '--save', ''];
      const rest = ['--cluster-config-file', `nodes-${at}`, '--loadmodule', process.env.REDIS_LOCK_MODULE];
      const program = process.env.REDIS_LOCK_SERVER ?? 'redis-server';
      const server = spawn(program, [...settings, ...rest].map(String), { stdio: 'ignore' });
      this.#processes.push(server);
      const isUp = async () =>
        await new Promise((resolve) => {
          const socket = connect(at, '127.0.0.1', () => resolve(true)).on('error', () => resolve(false));
          socket.on('connect', () => socket.end());
        });
      await until('a node', async () => server.exitCode !== null || (await isUp()));
      if (server.exitCode !== null) continue;
      this.ports[node] = at;
      this.#clients[node] = await libraries.ioredis.open(at);
      return;
    }
  }

  ask(node, ...words) {
    return libraries.ioredis.send(this.#clients[node], ...words);
  }

  /** A key of this node, each number another one in another slot. */
  key(node, number) {
    // Their slots: 3300 and 7365, 15495 and 11298.
    return ['bc', 'ad'][node][number];
  }

  /** Moves the slot of a key, in which nothing lies. */
  async move(key, target) {
    const slot = await this.ask(target, 'CLUSTER', 'KEYSLOT', key);
    const id = await this.ask(target, 'CLUSTER', 'MYID');
    for (const node of [target, 1 - target]) await this.ask(node, 'CLUSTER', 'SETSLOT', slot, 'NODE', id);
  }

  close() {
    for (const client of this.#clients) client.disconnect();
    for (const server of this.#processes) server.kill('SIGKILL');
    rmSync(this.#folder, { recursive: true, force: true, maxRetries: 3 });
  }
}
