// SPDX-License-Identifier: MIT

// Package lockrueidis leads redislock to its servers through rueidis.
package lockrueidis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"redis-lock.example/clients/go/redislock"

	"github.com/redis/rueidis"
)

// New returns a transport to the server, the master of a Sentinel, or the cluster of these options. It takes options
// and no client: a wait through a client with the buffers of rueidis takes 400 KB, and one of these a few.
func New(options rueidis.ClientOption) (redislock.Transport, error) {
	if len(options.InitAddress) == 0 {
		return nil, fmt.Errorf("%w: InitAddress is empty", redislock.ErrInvalid)
	}
	if options.ReplicaOnly {
		return nil, fmt.Errorf("%w: ReplicaOnly: replicas give no locks", redislock.ErrInvalid)
	}
	t := &transport{options: options, homes: redislock.NewHomes(options.InitAddress...)}
	return t, nil
}

type transport struct {
	options rueidis.ClientOption
	homes   *redislock.Homes
}

func (t *transport) Close() error { return nil }

func (t *transport) Dial(ctx context.Context, address string) (redislock.Conn, error) {
	if address != "" {
		return t.open(ctx, address)
	}
	return redislock.At(t.homes, "", func(home string) (redislock.Conn, error) {
		server, err := t.serverBy(ctx, home)
		if err != nil {
			return nil, err
		}
		return t.open(ctx, server)
	})
}

// serverBy is the address itself, or the master that the Sentinel there names.
func (t *transport) serverBy(ctx context.Context, home string) (string, error) {
	if t.options.Sentinel.MasterSet == "" {
		return home, nil
	}
	return t.master(ctx, home)
}

// master asks a Sentinel.
func (t *transport) master(ctx context.Context, sentinel string) (string, error) {
	options := t.options
	own := options.Sentinel
	options.Dialer, options.TLSConfig = own.Dialer, own.TLSConfig
	options.Username, options.Password, options.ClientName = own.Username, own.Password, own.ClientName
	options.AuthCredentialsFn, options.SelectDB, options.ConnWriteTimeout = nil, 0, -1
	c, err := openWith(ctx, options, sentinel)
	if err != nil {
		return "", err
	}
	defer c.Close()
	limit, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	reply := c.Do(limit, []redislock.Request{{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", own.MasterSet}})[0]
	if reply.Err != nil {
		return "", reply.Err
	}
	if list, ok := reply.Value.([]any); ok && len(list) == 2 {
		return net.JoinHostPort(fmt.Sprint(list[0]), fmt.Sprint(list[1])), nil
	}
	return "", fmt.Errorf("lockrueidis: the Sentinel at %s knows no master %q", sentinel, own.MasterSet)
}

func (t *transport) open(ctx context.Context, address string) (redislock.Conn, error) {
	options := t.options
	// Requests have deadlines. A limit of the client's would end those that wait, and ping between them.
	options.ConnWriteTimeout = -1
	return openWith(ctx, options, address)
}

// A conn is a client of rueidis that opens one connection, and never a second one.
type conn struct {
	client rueidis.Client
	mu     sync.Mutex
	net    net.Conn
	closed bool
}

var errOnce = errors.New("lockrueidis: the connection is closed")

// openWith opens a connection, with the time limit of the options.
func openWith(ctx context.Context, options rueidis.ClientOption, address string) (*conn, error) {
	c := &conn{}
	dial, dialCtx := options.DialFn, options.DialCtxFn
	options.InitAddress = []string{address}
	options.Sentinel = rueidis.SentinelOption{}
	options.Standalone = rueidis.StandaloneOption{}
	options.SendToReplicas = nil
	options.ForceSingleClient = true
	options.DisableCache = true
	options.DisableRetry = true
	options.PipelineMultiplex = -1
	options.AlwaysPipelining = false
	options.ConnLifetime = 0
	options.ReadBufferEachConn, options.WriteBufferEachConn = 4096, 4096
	options.RingScaleEachConn = 4
	options.DialFn = nil
	options.DialCtxFn = func(_ context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		return c.dial(ctx, func() (net.Conn, error) {
			switch {
			case dialCtx != nil:
				return dialCtx(ctx, address, dialer, config)
			case dial != nil:
				return dial(address, dialer, config)
			case config != nil:
				return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", address)
			}
			return dialer.DialContext(ctx, "tcp", address)
		})
	}
	// The dial and the greeting end with the context, too.
	stop := context.AfterFunc(ctx, c.cut)
	client, err := rueidis.NewClient(options)
	if !stop() {
		if client != nil {
			client.Close()
		}
		return nil, context.Cause(ctx)
	}
	if refusal, ok := rueidis.IsRedisErr(err); ok {
		return nil, serverError(refusal)
	} else if err != nil {
		return nil, err
	}
	c.client = client
	return c, nil
}

func (c *conn) dial(ctx context.Context, dial func() (net.Conn, error)) (net.Conn, error) {
	c.mu.Lock()
	isOver := c.closed || c.net != nil
	c.mu.Unlock()
	if isOver {
		return nil, errOnce
	}
	found, err := redislock.Within(ctx, dial)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		found.Close()
		return nil, errOnce
	}
	c.net = found
	return found, nil
}

func (c *conn) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.net != nil {
		c.net.Close()
	}
}

func (c *conn) Close() error {
	c.cut()
	c.client.Close()
	return nil
}

func (c *conn) Do(ctx context.Context, requests []redislock.Request) []redislock.Reply {
	replies := make([]redislock.Reply, len(requests))
	if len(requests) == 1 {
		replies[0] = replyOf(c.client.Do(ctx, c.command(requests[0])))
		return replies
	}
	commands := make(rueidis.Commands, len(requests))
	for at, request := range requests {
		commands[at] = c.command(request)
	}
	for at, result := range c.client.DoMulti(ctx, commands...) {
		replies[at] = replyOf(result)
	}
	return replies
}

func (c *conn) command(request redislock.Request) rueidis.Completed {
	return c.client.B().Arbitrary(request...).Build()
}

func replyOf(result rueidis.RedisResult) redislock.Reply {
	value, err := result.ToAny()
	if rueidis.IsRedisNil(err) {
		return redislock.Reply{}
	}
	if refusal, ok := rueidis.IsRedisErr(err); ok {
		return redislock.Reply{Err: serverError(refusal)}
	}
	return redislock.Reply{Value: plain(value), Err: err}
}

// serverError adds the code that rueidis leaves out, where that can be seen: other codes have capitals only.
func serverError(refusal *rueidis.RedisError) *redislock.ServerError {
	text := refusal.Error()
	if code, _, _ := strings.Cut(text, " "); code != strings.ToUpper(code) {
		text = "ERR " + text
	}
	return redislock.NewServerError(text)
}

// plain makes texts of errors within a list.
func plain(value any) any {
	switch value := value.(type) {
	case error:
		if rueidis.IsRedisNil(value) {
			return nil
		}
		return value.Error()
	case []any:
		for at := range value {
			value[at] = plain(value[at])
		}
	case map[string]any:
		list := make([]any, 0, 2*len(value))
		for key, one := range value {
			list = append(list, key, plain(one))
		}
		return list
	}
	return value
}
