// SPDX-License-Identifier: MIT

// Package lockredigo leads redislock to its servers through redigo.
package lockredigo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"redis-lock.example/clients/go/redislock"

	"github.com/gomodule/redigo/redis"
)

// Dial opens a connection to the server at an address, with what it needs: password, TLS, time limits for the dial and
// for writes. It obeys the context, as redis.DialContext does.
type Dial func(ctx context.Context, address string) (redis.Conn, error)

type transport struct {
	dial  Dial
	homes *redislock.Homes
}

// New returns a transport to the server that a pool leads to. It dials as the pool does, and takes no connection of it.
func New(pool *redis.Pool) redislock.Transport {
	return NewDial(func(ctx context.Context, address string) (redis.Conn, error) {
		switch {
		case address != "":
			return nil, errors.New("lockredigo: New is for one server: NewDial is for a cluster")
		case pool.DialContext != nil:
			return pool.DialContext(ctx)
		case pool.Dial != nil:
			return pool.Dial()
		}
		return nil, errors.New("lockredigo: the pool has no Dial")
	}, "")
}

// NewDial returns a transport to the server at the first of these addresses that can be reached: the nodes of a
// cluster, of which a few will do, or one server.
func NewDial(dial Dial, addresses ...string) redislock.Transport {
	return &transport{dial: dial, homes: redislock.NewHomes(addresses...)}
}

func (t *transport) Close() error { return nil }

func (t *transport) Dial(ctx context.Context, address string) (redislock.Conn, error) {
	return redislock.At(t.homes, address, func(at string) (redislock.Conn, error) { return t.open(ctx, at) })
}

func (t *transport) open(ctx context.Context, address string) (redislock.Conn, error) {
	found, err := redislock.Within(ctx, func() (redis.Conn, error) { return t.dial(ctx, address) })
	if err != nil {
		return nil, replyOf(nil, err).Err
	}
	limits, ok := found.(redis.ConnWithTimeout)
	if !ok {
		found.Close()
		return nil, fmt.Errorf("%w: a connection of redigo must be a redis.ConnWithTimeout", redislock.ErrInvalid)
	}
	return greeted(ctx, &conn{limits})
}

// greeted is the connection if the server serves it: one that has no more of them says so to the first request.
func greeted(ctx context.Context, c *conn) (redislock.Conn, error) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	value, err := c.DoWithTimeout(0, "PING")
	err = replyOf(value, err).Err
	if !stop() {
		c.Close()
		return nil, context.Cause(ctx)
	}
	// A user who may not send PING may have the right to lock.
	var refusal *redislock.ServerError
	if err != nil && !(errors.As(err, &refusal) && refusal.Code == "NOPERM") {
		c.Close()
		return nil, err
	}
	return c, nil
}

type conn struct{ redis.ConnWithTimeout }

func (c *conn) Do(ctx context.Context, requests []redislock.Request) []redislock.Reply {
	replies := make([]redislock.Reply, len(requests))
	fail := func(from int, err error) []redislock.Reply {
		for at := from; at < len(replies); at++ {
			replies[at].Err = err
		}
		return replies
	}
	deadline, _ := ctx.Deadline()
	// A write has no time limit of its own.
	limit := time.AfterFunc(time.Until(deadline)+time.Second, func() { c.Close() })
	defer limit.Stop()
	for _, request := range requests {
		args := make([]any, len(request)-1)
		for at := range args {
			args[at] = request[at+1]
		}
		if err := c.Send(request[0], args...); err != nil {
			return fail(0, err)
		}
	}
	if err := c.Flush(); err != nil {
		return fail(0, err)
	}
	for at := range replies {
		value, err := c.ReceiveWithTimeout(max(time.Until(deadline), time.Millisecond))
		replies[at] = replyOf(value, err)
		var refusal redis.Error
		if err != nil && !errors.As(err, &refusal) {
			return fail(at, err)
		}
	}
	return replies
}

func replyOf(value any, err error) redislock.Reply {
	var refusal redis.Error
	if errors.As(err, &refusal) {
		return redislock.Reply{Err: redislock.NewServerError(string(refusal))}
	}
	return redislock.Reply{Value: plain(value), Err: err}
}

// plain makes strings of bytes.
func plain(value any) any {
	switch value := value.(type) {
	case []byte:
		return string(value)
	case redis.Error:
		return string(value)
	case []any:
		for at := range value {
			value[at] = plain(value[at])
		}
	}
	return value
}
