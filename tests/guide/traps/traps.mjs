// Clients for Node.js as they come: node traps.mjs LIBRARY PORT MODE. tests/guide/traps.rs says what the modes are.
// REDIS_LOCK_NODE_MODULES: where the libraries lie.

import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';

const [library, port, mode] = [process.argv[2], Number(process.argv[3]), process.argv[4]];
const require = createRequire(`${process.env.REDIS_LOCK_NODE_MODULES}/`);
const WAIT = ['LOCK.ACQUIRE', 'traps', 'client', 'PX', '600000', 'BLOCK', '600000'];
const NULL = ['LOCK.ACQUIRE', 'traps', 'other'];
const ERROR = ['LOCK.ACQUIRE', 'traps', 'other', 'PX', '0'];
const say = (...words) => console.log(...words);
const failed = (error) => say('error', error.constructor.name, error.message);

const libraries = {
  'node-redis': async () => {
    const client = await require('redis').createClient({ socket: { host: '127.0.0.1', port } });
    await client.on('error', () => {}).connect();
    return (words) => client.sendCommand(words);
  },
  ioredis: async () => {
    const client = new (require('ioredis'))(port, '127.0.0.1').on('error', () => {});
    return ([name, ...words]) => client.call(name, ...words);
  },
  iovalkey: async () => {
    const client = new (require('iovalkey'))(port, '127.0.0.1').on('error', () => {});
    return ([name, ...words]) => client.call(name, ...words);
  },
  glide: async () => {
    const { GlideClient } = require('@valkey/valkey-glide');
    const client = await GlideClient.createClient({ addresses: [{ host: '127.0.0.1', port }] });
    return (words) => client.customCommand(words);
  },
};

const send = await libraries[library]();
const wait = () => send(WAIT).then((reply) => say('reply', String(reply)), failed);
if (mode === 'wait') {
  await wait();
} else if (mode === 'shared') {
  const waiting = wait();
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  await lines.next();
  say('get sent');
  await send(['GET', 'traps:other']).then(() => say('get answered'), () => say('get failed'));
  await waiting;
} else {
  const name = { 'node-redis': 'redis', glide: '@valkey/valkey-glide' }[library] ?? library;
  const file = `${process.env.REDIS_LOCK_NODE_MODULES}/node_modules/${name}/package.json`;
  say('version', JSON.parse(readFileSync(file)).version);
  say('null', String(await send(NULL)));
  await send(ERROR).catch(failed);
}
process.exit(0);
