// What the tests of the helper share: the server, the client libraries, and a wire that can break.
//
// REDIS_LOCK_PORT is the port of a server with the module on 127.0.0.1. The tests use keys of their own.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { connect, createServer } from 'node:net';
import { fileURLToPath } from 'node:url';

const root = new URL('../../../', import.meta.url);
export const port = Number(process.env.REDIS_LOCK_PORT);
assert.ok(port > 0, 'REDIS_LOCK_PORT must be the port of a server with the module');

/** The compiled helper: as the packages install it, or as tools/install.sh node-helper builds it. */
export const helper = process.env.REDIS_LOCK_NODE_HELPER ?? new URL('target/helpers/node/redis-lock.js', root).href;
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
    send: (client, ...words) => client.call(...words),
    close: (client) => client.disconnect(),
    strings: () => ({ stringNumbers: true, keyPrefix: 'app:' }),
  },
};

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
  /** What becomes of the bytes from the client. */
  rewrite = (bytes) => bytes;

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
      const pass = (bytes) => to.write(from === socket ? this.rewrite(bytes) : bytes);
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

  /** The connections that there are die without a word. New ones are well. */
  silence() {
    this.#each((socket) => socket.pause());
  }

  #each(act) {
    for (const { socket, far } of this.#pairs) for (const end of [socket, far]) act(end);
  }

  cut() {
    for (const { socket } of this.#pairs) socket.destroy();
  }

  close() {
    this.#server.close();
    this.cut();
  }
}
