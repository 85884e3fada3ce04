// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// A server is one without the module, which can hang.
type server struct {
	process *os.Process
	client  *redis.Client
}

func start(t *testing.T) server {
	program := os.Getenv("REDIS_LOCK_SERVER")
	if program == "" {
		program = "redis-server"
	}
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := probe.Addr().(*net.TCPAddr).Port
	probe.Close()
	command := exec.Command(program, "--port", strconv.Itoa(port), "--save", "")
	command.Dir = t.TempDir()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	s := server{command.Process, redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + strconv.Itoa(port)})}
	t.Cleanup(func() {
		s.client.Close()
		s.process.Kill()
		command.Wait()
	})
	s.await(t, "the server", func() bool { return s.client.Ping(t.Context()).Err() == nil })
	return s
}

// hang stops the server, or lets it go on.
func (s server) hang(t *testing.T, on bool) {
	signal := syscall.SIGCONT
	if on {
		signal = syscall.SIGSTOP
	}
	if err := s.process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

func (s server) await(t *testing.T, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited for", what)
		}
	}
}

// A rival takes the lock "k" of a client for a lease, and returns what gives it back.
var rivals = map[string]func(context.Context, *redis.Client, time.Duration) (unlock func() error, err error){
	"redsync": func(ctx context.Context, c *redis.Client, lease time.Duration) (func() error, error) {
		mutex := redsync.New(goredis.NewPool(c)).NewMutex("k", redsync.WithExpiry(lease))
		unlock := func() error {
			_, err := mutex.UnlockContext(context.Background())
			return err
		}
		return unlock, mutex.LockContext(ctx)
	},
	"bsm": func(ctx context.Context, c *redis.Client, lease time.Duration) (func() error, error) {
		lock, err := bsm.New(c).Obtain(ctx, "k", lease, nil)
		return func() error { return lock.Release(context.Background()) }, err
	},
}

// Work that outlasts the lease: another one works at the same time. The first learns of it when it gives back.
func TestARivalHasTwoHoldersWhenWorkOutlastsTheLease(t *testing.T) {
	for name, take := range rivals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			first, err := take(t.Context(), s.client, 2*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			s.await(t, "the lease to end", func() bool { return s.client.Exists(t.Context(), "k").Val() == 0 })
			second, err := take(t.Context(), s.client, time.Minute)
			if err != nil {
				t.Fatal("the first one keeps it:", err)
			}
			if first() == nil {
				t.Error("nobody tells the first one")
			}
			if err := second(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A server that hangs, and goes on when its caller's time is over. By default go-redis waits on, and its caller too.
func TestARivalLocksForACallerWhoseTimeIsOver(t *testing.T) {
	for name, take := range rivals {
		for _, obeys := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/ContextTimeoutEnabled=%v", name, obeys), func(t *testing.T) {
				t.Parallel()
				s := start(t)
				options := *s.client.Options()
				options.ContextTimeoutEnabled, options.ReadTimeout = obeys, time.Minute
				client := redis.NewClient(&options)
				defer client.Close()
				// Its scripts are known to the server from here on.
				unlock, err := take(t.Context(), client, time.Hour)
				if err != nil {
					t.Fatal(err)
				}
				if err := unlock(); err != nil {
					t.Fatal(err)
				}
				s.hang(t, true)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				if !obeys {
					context.AfterFunc(ctx, func() { s.hang(t, false) })
				}
				_, err = take(ctx, client, time.Hour)
				if obeys {
					s.hang(t, false)
				}
				s.await(t, "the lock to be taken", func() bool { return s.client.PTTL(t.Context(), "k").Val() > 0 })
				if (err == nil) == obeys {
					t.Error("it says:", err)
				}
			})
		}
	}
}
