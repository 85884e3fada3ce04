// SPDX-License-Identifier: MIT

// Package lockgoredis leads redislock to its servers through go-redis.
package lockgoredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"redis-lock.example/clients/go/redislock"

	"github.com/redis/go-redis/v9"
)

// New returns a transport to the server, or the cluster, of a client of go-redis: a Client, a FailoverClient or a
// ClusterClient. It has connections of its own, with the address, the rights, TLS and the hooks of dialing of the
// client, and without its retries and time limits. Keep the client open for as long. A Ring is refused: while one
// of its servers is away, others take over its keys, and two would hold one lock.
func New(client redis.UniversalClient) (redislock.Transport, error) {
	switch client := client.(type) {
	case *redis.Client:
		return &transport{options: client.Options(), homes: redislock.NewHomes(client.Options().Addr)}, nil
	case *redis.ClusterClient:
		o := client.Options()
		one := &redis.Options{
			Addr:                       "",
			ClientName:                 o.ClientName,
			Dialer:                     o.Dialer,
			OnConnect:                  o.OnConnect,
			Username:                   o.Username,
			Password:                   o.Password,
			CredentialsProvider:        o.CredentialsProvider,
			CredentialsProviderContext: o.CredentialsProviderContext,
			DialTimeout:                o.DialTimeout,
			TLSConfig:                  o.TLSConfig,
		}
		return &transport{options: one, homes: redislock.NewHomes(o.Addrs...)}, nil
	case nil:
		return nil, fmt.Errorf("%w: no client", redislock.ErrInvalid)
	}
	return nil, fmt.Errorf("%w: a %T spreads keys by what it can reach, so that two may hold one lock",
		redislock.ErrInvalid, client)
}

type transport struct {
	options *redis.Options // the live ones of the client: to be read only
	homes   *redislock.Homes
}

func (t *transport) Close() error { return nil }

func (t *transport) Dial(ctx context.Context, address string) (redislock.Conn, error) {
	return redislock.At(t.homes, address, func(at string) (redislock.Conn, error) { return t.open(ctx, at) })
}

// A conn is a client of go-redis that has one connection, and never a second one. What it sends goes through conn:
// newer versions send the requests of a Pipeline through a pool of their own.
type conn struct {
	client *redis.Client
	conn   *redis.Conn
	net    net.Conn
	lent   atomic.Bool // the client has it
}

var errOnce = errors.New("lockgoredis: the connection is closed")

func (t *transport) open(ctx context.Context, address string) (redislock.Conn, error) {
	c, err := t.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	c.conn = c.client.Conn()
	// The greeting ends with the context, too.
	stop := context.AfterFunc(ctx, func() { c.net.Close() })
	err = c.conn.Ping(ctx).Err()
	if !stop() {
		c.Close()
		return nil, context.Cause(ctx)
	}
	var refusal redis.Error
	if errors.As(err, &refusal) {
		// A user who may not send PING may have the right to lock.
		if failure := redislock.NewServerError(refusal.Error()); failure.Code != "NOPERM" {
			c.Close()
			return nil, failure
		}
	} else if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// dial connects, and greets with the first command.
func (t *transport) dial(ctx context.Context, address string) (*conn, error) {
	o := t.options
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(&redis.Options{Addr: address, DialTimeout: dialTimeout(o), TLSConfig: o.TLSConfig})
	}
	network := o.Network
	if network == "" {
		network = "tcp"
	}
	// Newer versions would dial again and again.
	limit, cancel := context.WithTimeout(ctx, dialTimeout(o))
	defer cancel()
	found, err := redislock.Within(limit, func() (net.Conn, error) { return dial(limit, network, address) })
	if err != nil {
		return nil, err
	}
	c := &conn{net: found}
	// Zero is a default in many of these, and -1 is none.
	c.client = redis.NewClient(&redis.Options{
		Network:    network,
		Addr:       address,
		ClientName: o.ClientName,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			if c.lent.Swap(true) {
				return nil, errOnce
			}
			return c.net, nil
		},
		OnConnect:                  o.OnConnect,
		Protocol:                   2,
		Username:                   o.Username,
		Password:                   o.Password,
		CredentialsProvider:        o.CredentialsProvider,
		CredentialsProviderContext: o.CredentialsProviderContext,
		DB:                         o.DB,
		MaxRetries:                 -1,
		DialTimeout:                dialTimeout(o),
		ReadTimeout:                -1,
		WriteTimeout:               -1,
		ContextTimeoutEnabled:      true,
		PoolSize:                   1,
		PoolTimeout:                time.Minute,
		ConnMaxIdleTime:            -1,
		DisableIndentity:           o.DisableIndentity,
		IdentitySuffix:             o.IdentitySuffix,
	})
	return c, nil
}

func dialTimeout(o *redis.Options) time.Duration {
	if o.DialTimeout > 0 {
		return o.DialTimeout
	}
	return 5 * time.Second
}

func (c *conn) Close() error {
	c.net.Close()
	return c.client.Close()
}

func (c *conn) Do(ctx context.Context, requests []redislock.Request) []redislock.Reply {
	replies := make([]redislock.Reply, len(requests))
	if len(requests) == 1 {
		replies[0] = replyOf(do(ctx, c.conn.Process, requests[0]))
		return replies
	}
	pipe := c.conn.Pipeline()
	cmds := make([]*redis.Cmd, len(requests))
	for at, request := range requests {
		cmds[at] = pipe.Do(ctx, args(request)...)
	}
	pipe.Exec(ctx)
	for at, cmd := range cmds {
		replies[at] = replyOf(cmd)
	}
	return replies
}

func do(ctx context.Context, process func(context.Context, redis.Cmder) error, request redislock.Request) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args(request)...)
	process(ctx, cmd)
	return cmd
}

func args(request redislock.Request) []any {
	words := make([]any, len(request))
	for at, word := range request {
		words[at] = word
	}
	return words
}

func replyOf(cmd *redis.Cmd) redislock.Reply {
	value, err := cmd.Result()
	var refusal redis.Error
	switch {
	case err == redis.Nil:
		return redislock.Reply{}
	case errors.As(err, &refusal):
		return redislock.Reply{Err: redislock.NewServerError(refusal.Error())}
	case err != nil:
		return redislock.Reply{Err: err}
	}
	return redislock.Reply{Value: plain(value)}
}

// plain makes texts of errors within a list.
func plain(value any) any {
	switch value := value.(type) {
	case error:
		return value.Error()
	case []any:
		for at := range value {
			value[at] = plain(value[at])
		}
	}
	return value
}
