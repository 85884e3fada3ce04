package tests

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"redis-lock.example/clients/go/redislock"
	"redis-lock.example/clients/go/redislocktest"
)

// A tapped server is one in memory that counts requests, and can be far, hang, be old or mute.
type tapped struct {
	*redislocktest.Server
	isMute  bool                               // it delivers no message
	unknown string                             // an option that it does not know
	isSlow  atomic.Bool                        // it confirms no subscription
	delay   func(command string) time.Duration // until its reply comes
	late    func(command string) time.Duration // until the server reads it
	greets  func(number int64) error           // opens a connection, which may take time
	most    atomic.Int64                       // requests in one write
	channel atomic.Value
	dialled atomic.Int64
	open    atomic.Int64 // connections, and not subscriptions

	mu    sync.Mutex
	calls map[string]int
	hangs chan struct{} // closed when it goes on; nil: it does not hang
}

// asked is how often a command was sent.
func (t *tapped) asked(command string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(t.calls[command])
}

// hang lets the server answer nothing, or go on.
func (t *tapped) hang(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if on {
		t.hangs = make(chan struct{})
	} else {
		close(t.hangs)
		t.hangs = nil
	}
}

type tappedConn struct {
	redislock.Conn
	tapped *tapped
	closed chan struct{}
	close  func()
}

func (c *tappedConn) Close() error {
	c.close()
	return c.Conn.Close()
}

func (c *tappedConn) Do(ctx context.Context, requests []redislock.Request) []redislock.Reply {
	t := c.tapped
	t.most.Store(max(t.most.Load(), int64(len(requests))))
	t.mu.Lock()
	for _, request := range requests {
		t.calls[request[0]]++
	}
	hangs := t.hangs
	t.mu.Unlock()
	if t.unknown != "" && slices.Contains(requests[0], t.unknown) {
		failure := redislock.NewServerError(fmt.Sprintf("ERR unknown option %q", t.unknown))
		return slices.Repeat([]redislock.Reply{{Err: failure}}, len(requests))
	}
	deadline, _ := ctx.Deadline()
	if hangs != nil && !c.isOver(hangs, deadline) {
		// It is read all the same, when the server goes on.
		go func() {
			<-hangs
			for _, request := range requests {
				t.Command(context.Background(), request...)
			}
		}()
		return slices.Repeat([]redislock.Reply{{Err: os.ErrDeadlineExceeded}}, len(requests))
	}
	if t.late != nil {
		time.Sleep(t.late(requests[0][0]))
	}
	replies := c.Conn.Do(ctx, requests)
	if t.delay != nil {
		time.Sleep(t.delay(requests[0][0]))
	}
	return replies
}

// isOver waits until the server hangs no more. False: the time of the request is over before.
func (c *tappedConn) isOver(hangs chan struct{}, deadline time.Time) bool {
	limit := time.NewTimer(time.Until(deadline))
	defer limit.Stop()
	select {
	case <-hangs:
		return true
	case <-limit.C:
	case <-c.closed:
	}
	return false
}

func (t *tapped) Dial(ctx context.Context, address string) (redislock.Conn, error) {
	number := t.dialled.Add(1)
	if t.greets != nil {
		if err := t.greets(number); err != nil {
			return nil, err
		}
	}
	conn, err := t.Server.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	t.open.Add(1)
	closed := make(chan struct{})
	return &tappedConn{conn, t, closed, sync.OnceFunc(func() { t.open.Add(-1); close(closed) })}, nil
}

func (t *tapped) Subscribe(
	ctx context.Context, address string, channel redislock.Channel, message func(string),
) (redislock.Subscription, error) {
	t.channel.Store(channel.Name)
	if t.isSlow.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return t.Server.Subscribe(ctx, address, channel, func(text string) {
		if !t.isMute {
			message(text)
		}
	})
}

// inBubble plays with a client of a server in memory, where time flies. The clock of the client is ahead by jump.
func inBubble(
	t *testing.T, server *tapped, options []redislock.ClientOption,
	play func(t *testing.T, client *redislock.Client, jump *atomic.Int64),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server.Server, server.calls = redislocktest.NewServer(), map[string]int{}
		begin, jump := time.Now(), &atomic.Int64{}
		clock := redislock.WithClock(func() time.Duration { return time.Since(begin) + time.Duration(jump.Load()) })
		client := redislock.New(server, slices.Concat(options, []redislock.ClientOption{clock, quiet})...)
		play(t, client, jump)
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
}

// inMemory plays with a wait on a lock that another has.
func inMemory(t *testing.T, server *tapped, play func(server *tapped, got <-chan error)) {
	inBubble(t, server, []redislock.ClientOption{none}, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		server.Take("k")
		got := make(chan error, 1)
		go func() { got <- lockAndUnlock(bg, client, "k") }()
		synctest.Wait()
		play(server, got)
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}
