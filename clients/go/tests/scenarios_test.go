package tests

import (
	"context"
	"errors"
	"testing"
	"time"

	"redis-lock.example/clients/go/redislock"
)

func TestALockIsTakenAndGivenBack(t *testing.T) {
	onEach(t, func(s *stage) {
		hold := s.lock()
		if fence := s.info("fence"); fence != hold.Fence() {
			s.Error(fence, hold.Fence())
		}
		if held, err := hold.Check(s.ctx); !held || err != nil {
			s.Error(held, err)
		}
		s.must(hold.Unlock(s.ctx))
		if err := hold.Unlock(s.ctx); !errors.Is(err, redislock.ErrReleased) {
			s.Error(err)
		}
		if !s.isFree() {
			s.Error("held")
		}
	})
}

func TestAWaitIsGrantedAndCancelled(t *testing.T) {
	onEach(t, func(s *stage) {
		hold := s.lock()
		got := make(chan error)
		go func() {
			next, err := s.client.Lock(s.ctx, s.key)
			if err == nil {
				err = next.Unlock(s.ctx)
			}
			got <- err
		}()
		s.until("a waiter", func() bool { return s.waiters() == 1 })
		ctx, cancel := context.WithCancelCause(s.ctx)
		own := errors.New("own")
		go func() { s.until("another", func() bool { return s.waiters() == 2 }); cancel(own) }()
		if _, err := s.client.Lock(ctx, s.key); !errors.Is(err, own) {
			s.Error(err)
		}
		if n := s.waiters(); n != 1 {
			s.Error(n)
		}
		s.must(hold.Unlock(s.ctx))
		s.must(<-got)
		s.untilFree()
	})
}

func TestALockIsRenewed(t *testing.T) {
	onEach(t, func(s *stage) {
		hold := s.lock(redislock.WithLease(time.Second))
		fence := s.info("fence")
		time.Sleep(3 * time.Second)
		if s.info("fence") != fence || hold.Err() != nil {
			s.Error(hold.Err())
		}
		s.must(hold.Unlock(s.ctx))
	})
}
