// What tests of an application need: a server in memory, and a real one.
//
// SPDX-License-Identifier: MIT

export { type Answer, FakeServer } from './fake-server.ts';
export { type Hooks, type ServerOptions, startServer, type TestServer, useServer } from './server.ts';
