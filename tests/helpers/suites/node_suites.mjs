// Runs the lock suites of other makers against clients/node.
//
// REDIS_LOCK_PORT=PORT node node_suites.mjs: a server with the module on 127.0.0.1. npm fetches the suite into
// target/suites/node; nothing of it is in this repository. Exit code 0: each test did what is written here, 1: one did
// not, 77: the suite cannot be fetched.
//
// Looked at, by npm: redlock 4.2.0 (node-redlock, what `npm install redlock` gets) has its tests in its package, and is
// run. redlock 5.0.0-beta.2 and redis-semaphore 5.8.0 have no tests in theirs, and there is no async-redis-lock on npm.

import { execFileSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const VERSIONS = ['redlock@4.2.0', 'mocha@8.4.0', 'chai@4.5.0'];

// What differs, by a part of a test's title, and why. A test of this list that passes fails the run, too.
const DIFFERENCES = [
  [/emits a clientError event/, 'an error that will not pass (WRONGTYPE) is thrown at once, and not after three tries'],
  [/supports custom script functions/, 'there are no scripts'],
  [/should unlock an already-unlocked/, 'a second release has the outcome of the first, and no error'],
];

// What is not run, and why.
const NOT_RUN = [
  [/multi-server/, 'one lock on several servers is not what the helper does'],
  [/unable to fully release/, 'it changes the key of a lock that is held: the helper gives back what it took'],
];

const port = Number(process.env.REDIS_LOCK_PORT);
const root = new URL('../../../', import.meta.url);
const home = fileURLToPath(new URL('target/suites/node/', root));
const suites = createRequire(home);
const clients = createRequire(new URL('target/node/', root));

try {
  const options = ['--no-save', '--no-package-lock', '--no-audit', '--no-fund', '--ignore-scripts', '--loglevel=error'];
  execFileSync('npm', ['install', '--prefix', home, ...options, ...VERSIONS], { stdio: ['ignore', 'ignore', 'pipe'] });
} catch (error) {
  const why = String(error.stderr ?? error).match(/npm error .*/)?.[0] ?? error.message;
  console.log(`NOT RUN: npm cannot fetch ${VERSIONS.join(', ')}: ${why}`);
  process.exit(77);
}

const helper = process.env.REDIS_LOCK_NODE_HELPER ?? new URL('target/helpers/node/redis-lock.js', root).href;
const { Locks, LockTimeout } = await import(helper);
const Bluebird = suites('bluebird');

class LockError extends Error {
  constructor(message, attempts) {
    super(message);
    this.attempts = attempts;
  }
}

// A lock of node-redlock: it is not renewed, so it is given back when its time is up.
class Lock {
  constructor(held, ttl, properties) {
    Object.assign(this, properties, { held });
    this.last(ttl);
  }

  last(ttl) {
    clearTimeout(this.timer);
    this.expiration = Date.now() + ttl;
    this.timer = setTimeout(() => this.held.release(), ttl);
  }

  unlock(callback) {
    clearTimeout(this.timer);
    this.expiration = 0;
    return Bluebird.resolve(this.held.release()).nodeify(callback);
  }

  extend(ttl, callback) {
    const extended = async () => {
      if (this.expiration < Date.now()) throw new LockError('it has expired', 0);
      if (!(await this.held.check())) throw new LockError('it is lost', 1);
      this.last(ttl);
      return this;
    };
    return Bluebird.resolve(extended()).nodeify(callback);
  }
}

// The interface of node-redlock 4, on top of the helper. One try is one wait of `retryDelay`.
class Redlock extends clients('node:events') {
  static Lock = Lock;
  static LockError = LockError;

  constructor(servers, options) {
    super();
    Object.assign(this, { servers }, options);
    this.locks = new Locks(servers[0].native ?? servers[0]);
  }

  lock(resource, ttl, callback) {
    return this.lockWithOptions(resource, ttl, {}, callback);
  }

  lockWithOptions(resource, ttl, options, callback) {
    const { retryCount, retryDelay } = { ...this, ...options };
    const locked = async () => {
      for (let attempts = 1; ; attempts += 1) {
        try {
          const held = await this.locks.acquire(resource, { lease: Math.max(ttl, 1000), wait: retryDelay });
          return new Lock(held, ttl, { resource, attempts, attemptsRemaining: retryCount - attempts });
        } catch (error) {
          this.emit('clientError', error);
          if (!(error instanceof LockTimeout) || attempts > retryCount) throw new LockError(error.message, attempts);
        }
      }
    };
    return Bluebird.resolve(locked()).nodeify(callback);
  }

  _lock(resource, _value, ttl, callback) {
    return this.lock(resource, ttl, callback);
  }

  disposer(resource, ttl, onError = () => undefined) {
    return this.lock(resource, ttl).disposer((lock) => lock.unlock().catch(onError));
  }

  quit() {
    return Bluebird.all(this.servers.map((client) => client.quit()));
  }
}

// The clients as the suite makes them: of the versions that this repository uses, on our port.
const { createClient, RESP_TYPES } = clients('redis');
const IoRedis = clients('ioredis');

function oldClient({ string_numbers: areStrings } = {}) {
  const typeMapping = areStrings ? { [RESP_TYPES.NUMBER]: String } : {};
  const native = createClient({ socket: { host: '127.0.0.1', port }, commandOptions: { typeMapping } });
  const opened = native.on('error', () => undefined).connect();
  const send = (...words) => {
    const callback = words.pop();
    opened.then(() => native.sendCommand(words)).then((reply) => callback(null, reply), callback);
  };
  return {
    native,
    sadd: (...words) => send('SADD', ...words),
    script: (...words) => send('SCRIPT', ...words),
    del: (...words) => send('DEL', ...words),
    quit: () => native.close(),
  };
}

class OldIoRedis extends IoRedis {
  constructor(options) {
    super({ host: '127.0.0.1', port, ...options });
  }
}

const replaced = { './redlock': Redlock, redis: { createClient: oldClient }, ioredis: OldIoRedis };
const Module = clients('node:module');
const load = Module._load;
Module._load = (request, parent, ...rest) => {
  const isOfSuite = parent?.filename?.endsWith('/redlock/test.js');
  return isOfSuite && request in replaced ? replaced[request] : load.call(Module, request, parent, ...rest);
};

const Mocha = suites('mocha');
const mocha = new Mocha({ reporter: class {}, timeout: 20_000 });
mocha.addFile(suites.resolve('redlock/test.js'));
mocha.loadFiles();
const reasonIn = (list, test) => list.find(([pattern]) => pattern.test(test.fullTitle()))?.[1];
mocha.suite.eachTest((test) => {
  test.pending = reasonIn(NOT_RUN, test) !== undefined;
});

const counts = { passed: 0, differ: 0, notRun: 0 };
const wrong = [];
mocha
  .run(() => {
    for (const line of wrong) console.log(line);
    console.log(
      `redlock 4.2.0: ${counts.passed} passed, ${counts.differ} differ, ${counts.notRun} not run, as listed:`,
    );
    for (const [pattern, reason] of [...DIFFERENCES, ...NOT_RUN]) console.log(`  ${pattern.source}: ${reason}`);
    process.exit(wrong.length === 0 && counts.passed > 0 ? 0 : 1);
  })
  .on('pass', (test) => {
    counts.passed += 1;
    if (reasonIn(DIFFERENCES, test)) wrong.push(`passes, and is listed as different: ${test.fullTitle()}`);
  })
  .on('fail', (test, error) => {
    counts.differ += 1;
    if (!reasonIn(DIFFERENCES, test)) wrong.push(`fails: ${test.fullTitle()}: ${error.message}`);
  })
  .on('pending', () => {
    counts.notRun += 1;
  });
