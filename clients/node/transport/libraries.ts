// Connections of the helper's own, made from the settings of the application's client: node-redis, ioredis, iovalkey.
//
// SPDX-License-Identifier: MIT

import { type EventEmitter, once } from 'node:events';
import type { Time } from '../engine/times.ts';

/** A client of node-redis (`createClient`, `createCluster`), ioredis or iovalkey (`Redis`, `Cluster`), or a server in memory. */
export type Client =
  | Source
  | { duplicate(...args: never[]): unknown; sendCommand(...args: never[]): unknown; readonly isOpen: boolean }
  | { duplicate(...args: never[]): unknown; call(...args: never[]): unknown; readonly status: string };

export type Word = string | Buffer;
type Place = { host: string; port: number };
type AddressMap = Record<string, Place> | ((address: string) => Place | null | undefined) | undefined;

/** ioredis has no listener here. */
type Subscribe = (channel: string, listener?: (message: string) => void) => Promise<unknown>;

/** What is used of a client of either library. */
export interface Native {
  options: { socket?: object; commandOptions?: object; keyPrefix?: unknown };
  stream?: { ref?(): void; unref?(): void; cork?(): void; uncork?(): void; destroyed?: boolean; destroy(): void };
  duplicate(options: object): Native;
  on(
    event: 'error' | 'end' | 'connect' | 'moved' | 'sharded-channel-moved',
    listener: (error?: unknown) => void,
  ): unknown;
  on(event: 'message' | 'smessage', listener: (channel: string, message: string) => void): unknown;
  connect(): Promise<unknown>;
  sendCommand(words: Word[]): Promise<unknown>;
  call(command: Word, words: Word[]): Promise<unknown>;
  subscribe: Subscribe;
  sSubscribe: Subscribe;
  ssubscribe: Subscribe;
  ref(): void;
  unref(): void;
  destroy(): void;
  disconnect(): void;
}

/** What is used of a cluster client of either library. */
interface NativeCluster extends EventEmitter {
  masters: { client?: Native }[];
  _options: { nodeAddressMap?: AddressMap };
  nodeClient(node: object): Promise<Native>;
  status: string;
  options: { natMap?: AddressMap };
  nodes(role: 'master'): Native[];
  connect(): Promise<unknown>;
}

/** What hears of a subscription. */
export interface Ears {
  /** A message came. */
  hear(message: string): void;
  /** The server ended the subscription: the slot of its channel has moved. */
  end(): void;
}

/** A connection that neither connects again nor sends anything twice. */
export interface Connection {
  connect(): Promise<unknown>;
  /** What is sent in one turn of the event loop goes out in one write. */
  send(words: Word[]): Promise<unknown>;
  /** Resolves when the server has confirmed it. `isSharded`: by SSUBSCRIBE, as in a cluster. */
  subscribe(channel: string, isSharded: boolean, ears: Ears): Promise<unknown>;
  keepProcessAlive(yes: boolean): void;
  onEnd(listener: () => void): void;
  close(): void;
}

function likeNodeRedis(client: Native, place?: Place): Connection {
  const own = client.duplicate({
    socket: { ...client.options.socket, ...place, reconnectStrategy: false, socketTimeout: undefined },
    commandOptions: { ...client.options.commandOptions, timeout: undefined, abortSignal: undefined },
    disableOfflineQueue: true,
    commandsQueueMaxLength: undefined,
    pingInterval: undefined,
    clientSideCache: undefined,
    emitInvalidate: undefined,
    maintNotifications: 'disabled',
    readonly: false,
  });
  own.on('error', ignore);
  return {
    connect: () => own.connect(),
    send: (words) => own.sendCommand(words),
    subscribe: (channel, isSharded, { hear, end }) => {
      own.on('sharded-channel-moved', end);
      return isSharded ? own.sSubscribe(channel, hear) : own.subscribe(channel, hear);
    },
    keepProcessAlive: (yes) => (yes ? own.ref() : own.unref()),
    // An end that it did not ask for is an error to it.
    onEnd: (listener) => own.on('error', listener),
    close: () => own.destroy(),
  };
}

function likeIoRedis(client: Native, place?: Place): Connection {
  const own = client.duplicate({
    ...place,
    // Keys have it already.
    keyPrefix: '',
    lazyConnect: true,
    retryStrategy: () => null,
    reconnectOnError: null,
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    enableReadyCheck: false,
    enableAutoPipelining: false,
    commandTimeout: undefined,
    socketTimeout: undefined,
    readOnly: false,
  });
  // The caller is told "Connection is closed.", and the listeners why.
  let why: unknown;
  let isAlive = true;
  let corked: Native['stream'];
  const uncork = () => {
    corked?.uncork?.();
    corked = undefined;
  };
  const keepProcessAlive = (yes: boolean) => {
    isAlive = yes;
    if (yes) own.stream?.ref?.();
    else own.stream?.unref?.();
  };
  own.on('error', (error) => {
    why = error;
  });
  own.on('connect', () => keepProcessAlive(isAlive));
  return {
    connect: () => own.connect().catch((error) => Promise.reject(why ?? error)),
    send: ([command = '', ...words]) => {
      if (!corked && own.stream) {
        corked = own.stream;
        corked.cork?.();
        setImmediate(uncork);
      }
      return own.call(command, words);
    },
    subscribe: (channel, isSharded, { hear, end }) => {
      own.on('moved', end);
      own.on(isSharded ? 'smessage' : 'message', (_, message) => hear(message));
      return isSharded ? own.ssubscribe(channel) : own.subscribe(channel);
    },
    keepProcessAlive,
    onEnd: (listener) => own.on('end', listener),
    close: () => {
      // Of one that is closed already it would wait for the end, in vain, for two seconds.
      if (own.stream?.destroyed !== true) own.disconnect();
      // Alone, it waits for the server to close as well.
      own.stream?.destroy();
    },
  };
}

/** What makes connections by itself, as the server in memory does: {@link Client} need not be a client of a library. */
export abstract class Source {
  abstract readonly time: Time;
  abstract open(address?: string): Promise<Connection>;
}

export type Maker = (address?: string) => Promise<Connection>;

/** Returns what makes connections like those of the client: to its server, or to this node of its cluster, or to any. */
export function makerFor(client: object): Maker {
  const [native, cluster] = [client as Native, client as NativeCluster];
  if ('masters' in client) {
    return async (address) => {
      const node = oneOf(cluster.masters);
      const like = node.client ?? (await cluster.nodeClient(node));
      return likeNodeRedis(like, placeOf(address, cluster._options.nodeAddressMap));
    };
  }
  if ('isCluster' in client && client.isCluster === true) {
    return async (address) => {
      if (cluster.status === 'wait') await cluster.connect();
      if (cluster.nodes('master').length === 0) await once(cluster, 'ready');
      return likeIoRedis(oneOf(cluster.nodes('master')), placeOf(address, cluster.options.natMap));
    };
  }
  if ('call' in client) return async () => likeIoRedis(native);
  if ('unref' in client) return async () => likeNodeRedis(native);
  throw unusable();
}

export function unusable(): TypeError {
  return new TypeError('client must be one of createClient or createCluster of node-redis, or one of ioredis');
}

function oneOf<T>(nodes: T[]): T {
  const node = nodes[Math.floor(Math.random() * nodes.length)];
  if (!node) throw new Error('the cluster client knows no node: connect it first');
  return node;
}

/** Returns where a node is for this client: behind address translation not where the cluster says. */
function placeOf(address: string | undefined, map: AddressMap): Place | undefined {
  if (address === undefined) return undefined;
  const place = typeof map === 'function' ? map(address) : map?.[address];
  const colon = address.lastIndexOf(':');
  return place ?? { host: address.slice(0, colon), port: Number(address.slice(colon + 1)) };
}

export function ignore(): void {}
