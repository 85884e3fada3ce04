// A real server with the module, for tests.
//
// SPDX-License-Identifier: MIT

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';

/** Where the server comes from. */
export interface ServerOptions {
  /**
   * The module.
   * @defaultValue the environment variable REDIS_LOCK_MODULE
   */
  module?: string | undefined;
  /**
   * The program.
   * @defaultValue the environment variable REDIS_LOCK_SERVER, or else redis-server
   */
  program?: string | undefined;
}

/** A server of one's own, which listens on 127.0.0.1 only, and saves nothing. */
export interface TestServer {
  readonly port: number;
  /** As `redis://127.0.0.1:6379`. */
  readonly url: string;
  stop(): Promise<void>;
}

/** `before` and `after` of node:test, Vitest, Jest, or Mocha. */
export interface Hooks {
  before(hook: () => Promise<void>): unknown;
  after(hook: () => Promise<void>): unknown;
}

const START_MS = 60_000;

/** Starts a server with the module. Rejects if it ends at once, as one does that cannot load the module. */
export async function startServer(options: ServerOptions = {}): Promise<TestServer> {
  const { module = process.env.REDIS_LOCK_MODULE, program = process.env.REDIS_LOCK_SERVER ?? 'redis-server' } = options;
  if (!module) throw new Error('name the module: startServer({ module }), or REDIS_LOCK_MODULE');
  const folder = await mkdtemp(join(tmpdir(), 'redis-lock-'));
  const port = await freePort();
  const where = ['--port', String(port), '--bind', '127.0.0.1', '--dir', folder, '--save', ''];
  const child = spawn(program, [...where, '--loadmodule', module], { stdio: ['ignore', 'pipe', 'ignore'] });
  let said = '';
  child.stdout.on('data', (text) => {
    said = (said + text).slice(-2_000);
  });
  let failure: Error | undefined;
  child.on('error', (error) => {
    failure = error;
  });
  const closed = once(child, 'close').catch(() => undefined);
  const stop = async () => {
    child.kill('SIGKILL');
    await closed;
    await rm(folder, { recursive: true, force: true });
  };
  const end = performance.now() + START_MS;
  while (!(await answers(port))) {
    if (!failure && child.exitCode === null && performance.now() < end) continue;
    await stop();
    throw new Error(`${program} does not start: ${failure?.message ?? said}`);
  }
  return { port, url: `redis://127.0.0.1:${port}`, stop };
}

/**
 * Has a server for the tests of a file: `const server = useServer({ before, after, module })`. Its fields may be read from
 * the first test on. The options may also stand apart, as the second argument.
 */
export function useServer(
  { before, after, ...own }: Hooks & ServerOptions,
  options: ServerOptions = {},
): Pick<TestServer, 'port' | 'url'> {
  let running: TestServer | undefined;
  before(async () => {
    running = await startServer({ ...own, ...options });
  });
  after(async () => {
    await running?.stop();
  });
  const started = () => {
    if (!running) throw new Error('the server starts before the first test');
    return running;
  };
  return {
    get port() {
      return started().port;
    },
    get url() {
      return started().url;
    },
  };
}

async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const address = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return typeof address === 'object' && address ? address.port : 0;
}

/** True once it answers. */
async function answers(port: number): Promise<boolean> {
  const socket = connect(port, '127.0.0.1');
  try {
    await once(socket, 'connect');
    socket.write('PING\r\n');
    const [reply] = await once(socket, 'data');
    return String(reply).startsWith('+PONG');
  } catch {
    await new Promise((resolve) => setTimeout(resolve, 20));
    return false;
  } finally {
    socket.destroy();
  }
}
