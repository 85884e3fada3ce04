// SPDX-License-Identifier: MIT

package redislock

// What lies between a lock and redigo: owners, requests that end in time, nodes, and errors that pass.

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"
)

// An owner is what the server takes for one thread of control: an outermost acquisition, and those within.
type owner struct {
	name string
	keys sync.Map // of ownedKey: those that it has, or may have
}

type ownedKey struct {
	pool *redis.Pool
	key  string
}

func newOwner() *owner {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		panic("redislock: no random numbers: " + err.Error())
	}
	return &owner{name: fmt.Sprintf("%.64s:%d:%x", host, os.Getpid(), random)}
}

// enter returns false if the owner may have one of the keys already: until the server has answered that it gave it
// back.
func (o *owner) enter(pool *redis.Pool, keys []string) bool {
	for i, key := range keys {
		if _, taken := o.keys.LoadOrStore(ownedKey{pool, key}, true); taken {
			o.exit(pool, keys[:i])
			return false
		}
	}
	return true
}

func (o *owner) exit(pool *redis.Pool, keys []string) {
	for _, key := range keys {
		o.keys.Delete(ownedKey{pool, key})
	}
}

type request struct {
	command string
	args    redis.Args
}

// isOfHold says whether null means that the lock is not held. WRONGTYPE does so, too: something else lies at the key.
// From LOCK.GUARD it may be the error of the guarded command.
func (r request) isOfHold() bool {
	return r.command == "LOCK.CHECK" || r.command == "LOCK.EXTEND" || r.command == "LOCK.RELEASE"
}

// An answer has a reply for each request, or an error. It has both if the error is the server's.
type answer struct {
	replies  []any
	err      error
	sent     time.Duration // when the requests were sent
	repeated bool          // the requests may have been served before
	open     bool          // they may still be served
}

// null says whether one of the replies is null.
func (a answer) null() bool {
	for _, reply := range a.replies {
		if reply == nil {
			return true
		}
	}
	return false
}

// A server is where a lock is.
type server struct {
	node  func(address string) *redis.Pool
	home  *redis.Pool // which the user gave
	mu    sync.Mutex
	pool  *redis.Pool // which is asked now
	named *redis.Pool // by the last MOVED
	hops  int
}

type connector func(context.Context) (redis.Conn, error)

func (s *server) current() *redis.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pool
}

// pooled returns a connection of the pool. If all are in use, it may be by goroutines that wait for this very lock.
func (s *server) pooled(ctx context.Context) (redis.Conn, error) {
	pool := s.current()
	if pool.MaxActive > 0 && pool.ActiveCount() >= pool.MaxActive && pool.IdleCount() == 0 {
		return s.dialled(ctx)
	}
	return pool.GetContext(ctx)
}

// dialled returns a connection outside of the pool. The Dial of a pool knows no contexts, and may go on beyond its
// end.
func (s *server) dialled(ctx context.Context) (redis.Conn, error) {
	pool := s.current()
	if pool.DialContext != nil {
		return pool.DialContext(ctx)
	}
	return pool.Dial()
}

// redirect goes to the node that MOVED names, and returns true. After an error that is no reply it goes back to the
// pool that the user gave: the node may be dead, and another one knows who took its place. If that one is dead, it
// returns to the node.
func (s *server) redirect(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if isReply(err) {
		words := strings.Fields(err.Error())
		if s.node != nil && len(words) == 3 && words[0] == "MOVED" && s.hops < hopsMax {
			if named := s.node(words[2]); named != nil {
				s.hops++
				s.named, s.pool = named, named
				return true
			}
		}
	} else if err != nil && s.named != nil && !isOver(err) {
		if s.pool == s.home {
			s.pool = s.named
		} else {
			s.pool = s.home
		}
	}
	s.hops = 0
	return false
}

// callTwice sends requests, and once more on a new connection after an error. No context ends it.
func (s *server) callTwice(requests ...request) answer {
	got := s.call(context.Background(), requestLimit, s.pooled, requests...)
	if got.err != nil {
		got = s.call(context.Background(), requestLimit, s.dialled, requests...)
		got.repeated = true
	}
	return got
}

// call sends requests and waits for the answer, until the limit or ctx is over.
func (s *server) call(ctx context.Context, limit time.Duration, connect connector, requests ...request) answer {
	got := await(ctx, limit, s.send(ctx, limit, connect, requests...))
	if s.redirect(got.err) {
		return s.call(ctx, limit, connect, requests...)
	}
	return got
}

// send sends requests, unless the limit or ctx is over before it has a connection. It returns at once.
func (s *server) send(ctx context.Context, limit time.Duration, connect connector, requests ...request) <-chan answer {
	done := make(chan answer, 1)
	end := now() + limit
	go func() {
		bounded, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
		defer cancel()
		conn, err := connect(bounded)
		if err != nil {
			if bounded.Err() != nil {
				err = context.Cause(bounded)
			}
			done <- answer{err: err}
			return
		}
		got := exchange(bounded, conn, end, requests)
		conn.Close()
		done <- got
	}()
	return done
}

func exchange(ctx context.Context, conn redis.Conn, end time.Duration, requests []request) (got answer) {
	got.sent = now()
	if ctx.Err() != nil {
		return answer{err: context.Cause(ctx)}
	} else if got.sent >= end {
		return answer{err: errTimeout}
	}
	for _, r := range requests {
		if err := conn.Send(r.command, r.args...); err != nil {
			return answer{err: err}
		}
	}
	if err := conn.Flush(); err != nil {
		return answer{err: err}
	}
	for _, r := range requests {
		reply, err := redis.ReceiveWithTimeout(conn, max(end-now(), time.Millisecond))
		if r.isOfHold() && isReply(err) && strings.HasPrefix(err.Error(), "WRONGTYPE ") {
			reply = nil
		} else if isReply(err) {
			reply, got.err = err, err
		} else if err != nil {
			return answer{err: err}
		}
		got.replies = append(got.replies, reply)
	}
	return got
}

// await waits for an answer, until the limit or ctx is over.
func await(ctx context.Context, limit time.Duration, pending <-chan answer) answer {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case got := <-pending:
		return got
	case <-ctx.Done():
		return answer{err: ctx.Err(), open: true}
	case <-timer.C:
		return answer{err: errTimeout, open: true}
	}
}

// fencesOf reads the reply to a request that acquires: null, the fence, or one for each of several keys.
func fencesOf(reply any) ([]int64, error) {
	switch reply := reply.(type) {
	case nil:
		return nil, nil
	case int64:
		return []int64{reply}, nil
	}
	return redis.Int64s(reply, nil)
}

func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// isOver says whether the caller's context has ended, which says nothing of the server.
func isOver(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// breaks says whether a connection ended, at once and not for want of time.
func breaks(err error) bool {
	return err != nil && passes(err) && !isReply(err) && !isOver(err) &&
		!errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, ErrNotAcquired)
}

// passes says whether the same request may succeed later.
func passes(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return !errors.Is(err, ErrInvalid)
	}
	switch code, text, _ := strings.Cut(string(reply), " "); code {
	case "UNBLOCKED", "GRACE", "READONLY", "LOADING", "NOREPLICAS", "MISCONF", // this server, soon
		"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN": // another one
		return true
	case "LIMIT":
		return strings.Contains(text, "waiters") || strings.Contains(text, "places")
	default:
		return false
	}
}

// A backoff is the time to wait before asking again after an error.
type backoff time.Duration

func (b *backoff) next() time.Duration {
	*b = min(max(*b*2, backoff(backoffMin)), backoff(backoffMax))
	d := time.Duration(*b)
	return d + time.Duration(mathrand.Int63n(int64(d/4)))
}

// sleep ends early at the end of ctx, or at a time of the clock if that is not 0.
func sleep(ctx context.Context, d, end time.Duration) {
	if end > 0 {
		d = min(d, end-now())
	}
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
