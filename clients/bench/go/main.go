// SPDX-License-Identifier: MIT

// Command driver takes locks with a library for Go as fast as it can, as README.md of the folder above says.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"redis-lock.example/clients/go/lockgoredis"
	"redis-lock.example/clients/go/lockredigo"
	"redis-lock.example/clients/go/lockrueidis"
	"redis-lock.example/clients/go/redislock"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redigo "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

const lease = 10 * time.Second

type plan struct {
	Kind     string   `json:"kind"`
	URL      string   `json:"url"`
	Keys     []string `json:"keys"`
	Seconds  float64  `json:"seconds"`
	HoldMs   int      `json:"hold_ms"`
	Blocking int      `json:"blocking"`
}

type result struct {
	Ready   bool    `json:"ready"`
	Locks   []int   `json:"locks"`
	Failed  int     `json:"failed"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`
	Longest float64 `json:"longest"`
}

// A taker takes the lock of a key, and returns what gives it back.
type taker func(ctx context.Context, key string) (release func() error, err error)

func main() {
	var p plan
	if err := json.Unmarshal([]byte(os.Args[len(os.Args)-1]), &p); err != nil {
		fail(err)
	}
	take, err := open(p)
	if err != nil {
		fail(err)
	}
	// bsm/redislock gives up after a lease without a deadline.
	ctx, cancel := context.WithTimeout(context.Background(), 24*time.Hour)
	defer cancel()
	work := &work{take: take, hold: time.Duration(p.HoldMs) * time.Millisecond}
	work.result.Locks = make([]int, len(p.Keys))
	var all sync.WaitGroup
	for owner, key := range p.Keys {
		all.Add(1)
		go work.run(ctx, owner, key, sync.OnceFunc(all.Done))
	}
	all.Wait()
	lines := bufio.NewScanner(os.Stdin)
	write(result{Ready: true})
	lines.Scan()
	work.swap()
	before, begin := processorTime(), time.Now()
	time.Sleep(time.Duration(p.Seconds * float64(time.Second)))
	out := work.swap()
	out.Seconds, out.CPU = time.Since(begin).Seconds(), (processorTime() - before).Seconds()
	write(out)
	lines.Scan()
}

// A work is that of all owners, and what came of it.
type work struct {
	take taker
	hold time.Duration

	mu     sync.Mutex
	result result
}

// run takes the lock again and again. It tells when it has had it.
func (w *work) run(ctx context.Context, owner int, key string, had func()) {
	for {
		begin := time.Now()
		release, err := w.take(ctx, key)
		waited := time.Since(begin)
		if err == nil {
			if w.hold > 0 {
				time.Sleep(w.hold)
			}
			err = release()
		}
		w.mu.Lock()
		if err == nil {
			w.result.Locks[owner]++
			w.result.Longest = max(w.result.Longest, waited.Seconds())
			had()
		} else {
			w.result.Failed++
		}
		w.mu.Unlock()
	}
}

// swap returns what came of it since the last time.
func (w *work) swap() result {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.result
	w.result = result{Locks: make([]int, len(before.Locks))}
	return before
}

func open(p plan) (taker, error) {
	options, err := redis.ParseURL(p.URL)
	if err != nil {
		return nil, err
	}
	var transport redislock.Transport
	switch strings.Replace(p.Kind, " by NOTIFY", "", 1) {
	case "redislock, go-redis":
		transport, err = lockgoredis.New(redis.NewClient(options))
	case "redislock, rueidis":
		transport, err = lockrueidis.New(rueidis.ClientOption{InitAddress: []string{options.Addr}})
	case "redislock, redigo":
		transport = lockredigo.New(&redigo.Pool{Dial: func() (redigo.Conn, error) { return redigo.DialURL(p.URL) }})
	case "redsync":
		locks := redsync.New(goredis.NewPool(redis.NewClient(options)))
		return func(ctx context.Context, key string) (func() error, error) {
			mutex := locks.NewMutex(key, redsync.WithExpiry(lease), redsync.WithTries(1_000_000))
			if err := mutex.LockContext(ctx); err != nil {
				return nil, err
			}
			return func() error {
				if ok, err := mutex.UnlockContext(ctx); !ok {
					return errors.Join(err, redsync.ErrFailed)
				}
				return nil
			}, nil
		}, nil
	case "bsm/redislock":
		locks := bsm.New(redis.NewClient(options))
		// As its page has it.
		again := &bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)}
		return func(ctx context.Context, key string) (func() error, error) {
			lock, err := locks.Obtain(ctx, key, lease, again)
			return func() error { return lock.Release(ctx) }, err
		}, nil
	default:
		err = fmt.Errorf("no kind %q", p.Kind)
	}
	if err != nil {
		return nil, err
	}
	locks := redislock.New(transport, redislock.WithLease(lease), redislock.WithMaxBlocking(p.Blocking))
	return func(ctx context.Context, key string) (func() error, error) {
		hold, err := locks.Lock(ctx, key)
		return func() error { return hold.Unlock(ctx) }, err
	}, nil
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		fail(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func write(r result) {
	line, err := json.Marshal(r)
	if err == nil {
		_, err = fmt.Println(string(line))
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "driver:", err)
	os.Exit(1)
}
