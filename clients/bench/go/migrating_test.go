// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"redis-lock.example/clients/go/lockgoredis"
	"redis-lock.example/clients/go/redislock"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type task = func(context.Context, *redislock.Hold) error

func both(
	ctx context.Context, old *redsync.Mutex, locks *redislock.Client, work func(context.Context, *redislock.Hold) error,
) error {
	if err := old.LockContext(ctx); err != nil {
		return err
	}
	defer old.UnlockContext(context.WithoutCancel(ctx))
	return locks.Do(ctx, "report:v2", work, redislock.WithWait(5*time.Second))
}

func bothWithBsm(
	ctx context.Context, old *bsm.Client, options *bsm.Options, locks *redislock.Client,
	work func(context.Context, *redislock.Hold) error,
) error {
	first, err := old.Obtain(ctx, "report", time.Minute, options)
	if err != nil {
		return err
	}
	defer first.Release(context.WithoutCancel(ctx))
	return locks.Do(ctx, "report:v2", work, redislock.WithWait(5*time.Second))
}

// The page shows the functions above.
func TestThePageShowsHowBothAreTaken(t *testing.T) {
	page, err := os.ReadFile("../../../docs/guide/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("migrating_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "\n```go\n")[1:]
	if len(blocks) != 2 {
		t.Fatalf("%d blocks", len(blocks))
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "\n```")
		if !strings.Contains(string(own), "\n"+block+"\n") {
			t.Errorf("no such function here:\n%s", block)
		}
	}
}

// Today's code, that of release 1 and that of release 2, each beside its neighbour: none is let in, and then it is.
func TestBothLocksKeepOutTheReleasesBeforeAndAfter(t *testing.T) {
	port := os.Getenv("REDIS_LOCK_PORT")
	if port == "" {
		t.Fatal("REDIS_LOCK_PORT names no server with the module")
	}
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	defer client.Close()
	transport, err := lockgoredis.New(client)
	if err != nil {
		t.Fatal(err)
	}
	// Without a limit of its own: the page gives one.
	locks := redislock.New(transport)
	defer locks.Close()
	mutex := func() *redsync.Mutex {
		return redsync.New(goredis.NewPool(client)).NewMutex("report", redsync.WithTries(1))
	}
	today := func(ctx context.Context, work task) error {
		old := mutex()
		if err := old.LockContext(ctx); err != nil {
			return err
		}
		return errors.Join(work(ctx, nil), func() error { _, err := old.UnlockContext(ctx); return err }())
	}
	first := func(ctx context.Context, work task) error { return both(ctx, mutex(), locks, work) }
	second := func(ctx context.Context, work task) error {
		return locks.Do(ctx, "report:v2", work, redislock.WithWait(0))
	}
	locker := bsm.New(client)
	todayOfBsm := func(ctx context.Context, work task) error {
		old, err := locker.Obtain(ctx, "report", time.Minute, nil)
		if err != nil {
			return err
		}
		return errors.Join(work(ctx, nil), old.Release(ctx))
	}
	firstOfBsm := func(ctx context.Context, work task) error { return bothWithBsm(ctx, locker, nil, locks, work) }
	for old, releases := range map[string][]func(context.Context, task) error{
		"redsync": {today, first, second}, "bsm": {todayOfBsm, firstOfBsm, second},
	} {
		t.Run(old, func(t *testing.T) { neighboursKeepOutEachOther(t, releases) })
	}
}

func TestRedsyncAndALockKeepOutEachOtherUnderOneKey(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Getenv("REDIS_LOCK_PORT")})
	defer client.Close()
	transport, err := lockgoredis.New(client)
	if err != nil {
		t.Fatal(err)
	}
	locks := redislock.New(transport, redislock.WithWait(0), redislock.WithOldClients())
	defer locks.Close()
	old := redsync.New(goredis.NewPool(client)).NewMutex("one key", redsync.WithTries(1))
	patient := &bsm.Options{RetryStrategy: bsm.LinearBackoff(time.Millisecond)}
	work := func(ctx context.Context, _ *redislock.Hold) error {
		// It would wait for one of its own.
		if _, err := bsm.New(client).Obtain(ctx, "one key", time.Minute, patient); !redis.HasErrorPrefix(err, "WRONGTYPE") {
			t.Error("bsm's package does not fail at a lock:", err)
		}
		var taken *redsync.ErrTaken
		if err := old.Lock(); !errors.As(err, &taken) {
			t.Error("the old one is let in beside a lock:", err)
		}
		return nil
	}
	if err := locks.Do(t.Context(), "one key", work); err != nil {
		t.Fatal(err)
	}
	if err := old.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := locks.Do(t.Context(), "one key", work); !errors.Is(err, redislock.ErrHeld) {
		t.Error("a lock is let in beside the old one:", err)
	}
	if _, err := old.Unlock(); err != nil {
		t.Error(err)
	}
}

func neighboursKeepOutEachOther(t *testing.T, releases []func(context.Context, task) error) {
	isTaken := func(err error) bool {
		var taken *redsync.ErrTaken
		isOfOld := errors.Is(err, bsm.ErrNotObtained) || errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed)
		return isOfOld || errors.Is(err, redislock.ErrHeld)
	}
	for number, one := range releases {
		for other := max(0, number-1); other < min(number+2, len(releases)); other++ {
			ran := false
			inner := func(context.Context, *redislock.Hold) error { ran = true; return nil }
			err := one(t.Context(), func(context.Context, *redislock.Hold) error {
				if err := releases[other](t.Context(), inner); ran || !isTaken(err) {
					t.Errorf("%d is let in beside %d: %v", other, number, err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(number, other, err)
			}
			if err := releases[other](t.Context(), inner); err != nil || !ran {
				t.Errorf("%d is not let in after %d: %v", other, number, err)
			}
		}
	}
}
