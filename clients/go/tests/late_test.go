package tests

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"redis-lock.example/clients/go/redislock"
)

// readLate lets the server read what was held back: at least so many requests.
func (s *stage) readLate(least int64) {
	s.Helper()
	least += s.proxy.late.Load()
	s.proxy.thaw()
	s.until("the bytes to arrive", func() bool { return s.proxy.late.Load() >= least })
	// The server reads what is there before it answers the second.
	s.do("PING")
	s.do("PING")
}

// left is how long the lease of a key lasts still.
func (s *stage) left(key string) time.Duration {
	s.Helper()
	holders, _ := fieldOf(s.do("LOCK.INFO", key), "holders").([]any)
	if len(holders) == 0 {
		return 0
	}
	millis, _ := fieldOf(holders[0], "ttl_ms").(int64)
	return time.Duration(millis) * time.Millisecond
}

// endsIn expects a lease to end in a minute before that. A shorter one may have ended, where the machine is busy.
func (s *stage) endsIn(key string, most time.Duration) {
	s.Helper()
	if left := s.left(key); left > most || left < most-time.Minute {
		s.Error(strings.TrimPrefix(key, s.key), "ends in", left, "and not in", most)
	}
}

// doubted is a lock with a request that the server may read late. It lasts for an hour.
func (s *stage) doubted(opts ...redislock.LockOption) *redislock.Hold {
	s.Helper()
	hold := s.lock(append(opts, redislock.WithLease(time.Hour))...)
	s.proxy.refuses.Store(true)
	s.proxy.cut()
	if err := hold.SetNote(s.ctx, "late"); !errors.Is(err, redislock.ErrUnavailable) {
		s.Error(err)
	}
	s.proxy.refuses.Store(false)
	_, err := hold.Check(s.ctx) // opens a connection
	s.must(err)
	return hold
}

func TestARenewalThatIsReadLateDoesNotChangeWhenALockEnds(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		var failed atomic.Int64
		heard := redislock.WithListener(redislock.Listener{RenewalFailed: func() { failed.Add(1) }})
		client := s.open(quiet, heard, redislock.WithLease(safeLease))
		var holds []*redislock.Hold
		for _, keys := range [][]string{{"short"}, {"long"}, {"{both}1", "{both}2"}, {"handed"}} {
			for at := range keys {
				keys[at] = s.key + keys[at]
			}
			hold, err := client.LockAll(s.ctx, keys)
			s.must(err)
			holds = append(holds, hold)
		}
		s.proxy.hang(true)
		s.until("renewals to fail", func() bool { return failed.Load() >= int64(len(holds)) })
		s.proxy.freeze()
		s.proxy.hang(false)
		s.until("renewals over a new connection", func() bool {
			least := safeLease
			for _, hold := range holds {
				least = min(least, hold.ValidFor())
			}
			return least > safeLease*3/4
		})
		const long = 10 * time.Minute
		s.must(holds[0].UnlockAfter(5 * time.Second))
		s.must(holds[1].UnlockAfter(long))
		s.must(holds[2].UnlockAfter(long))
		token, err := holds[3].Detach(s.ctx)
		s.must(err)
		token.Lease = long
		adopted, err := s.open(quiet).Adopt(s.ctx, token)
		s.must(err)
		s.readLate(1)
		s.endsIn(s.key+"short", 5*time.Second)
		for _, key := range []string{"long", "{both}1", "{both}2", "handed"} {
			s.endsIn(s.key+key, long)
		}
		s.must(adopted.Unlock(s.ctx))
	})
}

// The first request for the end is read after the second.
func TestAnEndThatIsReadLateChangesNothing(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		hold := s.lock(redislock.WithLease(time.Hour))
		s.proxy.freeze()
		if err := hold.UnlockAfter(5 * time.Minute); !errors.Is(err, redislock.ErrUnavailable) {
			s.Error(err)
		}
		s.until("the second", func() bool { return s.left(s.key) < 10*time.Minute })
		time.Sleep(time.Second)
		before := s.left(s.key)
		s.readLate(1)
		s.endsIn(s.key, before)
	})
}

// Two requests for the end are read after the third, and after the owner took the lock again.
func TestAnEndThatIsReadLateChangesNoLaterHoldOfItsOwner(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		outer, err := s.client.Lock(s.ctx, s.key+"outer", redislock.WithLease(time.Hour))
		s.must(err)
		hold := s.doubted(redislock.WithOuter(outer))
		s.proxy.stall(2)
		if err := hold.UnlockAfter(5 * time.Minute); !errors.Is(err, redislock.ErrUnavailable) {
			s.Error(err)
		}
		const long = 10 * time.Minute
		var later *redislock.Hold
		s.until("the third", func() bool {
			later, err = s.client.Lock(s.ctx, s.key, redislock.WithOuter(outer), redislock.WithLease(long))
			return err == nil
		})
		if later.Owner() != hold.Owner() {
			s.Error("another owner")
		}
		s.readLate(2)
		s.endsIn(s.key, long)
	})
}

// What is sent again names the former fence: null says that the first was read.
func TestALockWhoseFenceWasRaisedWithoutAnAnswerIsLetGo(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		hold := s.doubted()
		s.proxy.deafen(true)
		ended := make(chan error, 1)
		go func() { ended <- hold.UnlockAfter(5 * time.Minute) }()
		s.until("a higher fence", func() bool { return s.info("fence").(int64) > hold.Fence() })
		s.proxy.deafen(false)
		s.proxy.cut()
		// Where the machine is busy, its time may be over.
		if err := <-ended; err != nil && !errors.Is(err, redislock.ErrUnavailable) {
			s.Error(err)
		}
		s.endsIn(s.key, 5*time.Minute)
	})
}

// Who adopts it raises the fence.
func TestALockThatIsDetachedKeepsItsFenceOrIsGivenBack(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		hold := s.doubted()
		token, err := hold.Detach(s.ctx)
		s.must(err)
		if fence := s.info("fence"); token.Fence != hold.Fence() || fence != token.Fence {
			s.Error(hold.Fence(), token.Fence, fence)
		}
		adopted, err := s.client.Adopt(s.ctx, token)
		s.must(err)
		s.must(adopted.Unlock(s.ctx))
		hold = s.doubted()
		s.proxy.deafen(true)
		if _, err := hold.Detach(s.ctx); !errors.Is(err, redislock.ErrUnavailable) {
			s.Error(err)
		}
		s.proxy.deafen(false)
		s.untilFree()
	})
}

// The server's clock of fences lags, as right after a start.
func TestALockThatCanHaveNoHigherFenceYetEndsAllTheSame(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		hold := s.doubted()
		s.proxy.rewrite(func(words []byte) []byte {
			// After the year 2200.
			return bytes.ReplaceAll(words, []byte("MINFENCE\r\n$16\r\n1"), []byte("MINFENCE\r\n$16\r\n8"))
		})
		s.must(hold.UnlockAfter(5 * time.Minute))
		s.endsIn(s.key, 5*time.Minute)
	})
}

// Nobody has its token.
func TestALockThatTheServerRefusesToHandOverIsGivenBack(t *testing.T) {
	t.Parallel()
	p := limited(t, program())
	for _, library := range libraries {
		e, key := elsewhere{t, p, library.name, ways[0]}, library.name
		e.do("ACL", "SETUSER", "app", "+lock.extend")
		told := make(chan redislock.Trouble, 8)
		tell := redislock.WithTrouble(func(trouble redislock.Trouble) { told <- trouble })
		client := redislock.New(p.to(t, library.name), quiet, tell, redislock.WithLease(10*time.Minute))
		hold := lock(e, client, key)
		e.do("ACL", "SETUSER", "app", "-lock.extend")
		var reply *redislock.ServerError
		if _, err := hold.Detach(bg); !errors.As(err, &reply) || reply.Code != "NOPERM" {
			t.Error(key, err)
		}
		if e.holding(key) > 0 {
			t.Error(key, "held")
		}
		if trouble := <-told; trouble.Kind != "release" {
			t.Error(key, trouble)
		}
		must(e, client.Close())
	}
}
