// SPDX-License-Identifier: MIT

// Package lockgocron lets one of several schedulers of gocron run each job.
package lockgocron

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"redis-lock.example/clients/go/redislock"

	"github.com/go-co-op/gocron/v2"
)

// A Locker lets the first scheduler that comes run a job, each time that it is due: for gocron.WithDistributedLocker.
type Locker struct {
	Client *redislock.Client
	// AtLeast is how long a job counts as run, from its begin. It must be more than what the clocks of the schedulers
	// differ by, and less than the interval of the job. Without it a job that ends before the others come is run by
	// each of them, so that zero is refused.
	AtLeast time.Duration
	// Prefix stands before the name of the job, and makes the key of the lock.
	Prefix string
	// Options of the locks. They are never waited for.
	Options []redislock.LockOption
}

type jobLock struct {
	hold  *redislock.Hold
	until time.Time
}

// Lock tries once. gocron skips the job when it fails.
func (l *Locker) Lock(ctx context.Context, name string) (gocron.Lock, error) {
	if l.AtLeast <= 0 {
		return nil, fmt.Errorf("%w: a Locker needs AtLeast", redislock.ErrInvalid)
	}
	begin := time.Now()
	hold, err := l.Client.TryLock(ctx, l.Prefix+name, l.Options...)
	if err != nil {
		return nil, err
	}
	return &jobLock{hold, begin.Add(l.AtLeast)}, nil
}

// Unlock gives the lock back: at once, or when the job counts as run no more.
func (l *jobLock) Unlock(ctx context.Context) error {
	if rest := time.Until(l.until); rest > 0 {
		return l.hold.UnlockAfter(rest)
	}
	return l.hold.Unlock(ctx)
}

// ErrNotLeader says that another scheduler runs the jobs.
var ErrNotLeader = errors.New("another scheduler is the leader")

// An Elector lets one scheduler run all jobs, until its process ends: for gocron.WithDistributedElector.
type Elector struct {
	hold  atomic.Pointer[redislock.Hold]
	leave context.CancelFunc
	ended sync.WaitGroup
	err   error // of Lead, when it has ended
}

// NewElector stands for election as the holder of the key, until Close.
func NewElector(client *redislock.Client, key string, opts ...redislock.LockOption) *Elector {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Elector{leave: cancel}
	e.ended.Add(1)
	go func() {
		defer e.ended.Done()
		err := client.Lead(ctx, key, func(term context.Context, hold *redislock.Hold) error {
			e.hold.Store(hold)
			<-term.Done()
			e.hold.Store(nil)
			return context.Cause(term)
		}, opts...)
		if ctx.Err() == nil {
			e.err = err
		}
	}()
	return e
}

// IsLeader is nil while this scheduler is the leader. It sends no request.
func (e *Elector) IsLeader(context.Context) error {
	if hold := e.hold.Load(); hold != nil && hold.Err() == nil {
		return nil
	}
	return ErrNotLeader
}

// Close steps down. Close the Client after it. The error is why the Elector stood no more, if it ended before.
func (e *Elector) Close() error {
	e.leave()
	e.ended.Wait()
	return e.err
}
