package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"redis-lock.example/clients/go/redislock"
)

// farAway is how long a request to a far server and its reply take.
const farAway = 100 * time.Millisecond

// keptFar holds 450 locks with leases of 30 s for 45 s. Each takes four renewals, in a few writes, and no connection.
func keptFar(t *testing.T, client *redislock.Client, failed *atomic.Int64, dialled, extends func() int64) {
	const locks, renewals, lasts = 450, 4, 45 * time.Second
	holds := make([]*redislock.Hold, locks)
	var all sync.WaitGroup
	for n := range holds {
		all.Go(func() {
			hold, err := client.Lock(bg, fmt.Sprint(t.Name(), n), redislock.WithLease(30*time.Second))
			if err != nil {
				t.Error(err)
			}
			holds[n] = hold
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	begin, before := time.Now(), dialled()
	time.Sleep(lasts)
	opened, sent, isLate := dialled()-before, extends(), time.Since(begin) > lasts+time.Second
	for _, hold := range holds {
		all.Go(func() {
			if err := errors.Join(hold.Err(), hold.Unlock(bg)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	// A busy machine may leave a renewal without an answer, which is then sent again over a new connection.
	if failed.Load() == 0 && !isLate && (opened > 0 || sent != locks*renewals) {
		t.Errorf("%d connections and %d renewals for %d locks", opened, sent, locks)
	}
}

func TestManyLocksOfAFarServerAreKept(t *testing.T) {
	t.Parallel()
	counted := func(failed *atomic.Int64) redislock.ClientOption {
		return redislock.WithListener(redislock.Listener{RenewalFailed: func() { failed.Add(1) }})
	}
	t.Run("memory", func(t *testing.T) {
		server, failed := &tapped{delay: func(string) time.Duration { return farAway }}, &atomic.Int64{}
		options := []redislock.ClientOption{counted(failed)}
		inBubble(t, server, options, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
			keptFar(t, client, failed, server.dialled.Load, func() int64 { return server.asked("LOCK.EXTEND") })
			if failed.Load() > 0 {
				t.Error("renewals failed:", failed.Load())
			}
		})
	})
	for number, one := range libraries {
		t.Run(one.name, func(t *testing.T) {
			if number > 0 && os.Getenv("REDIS_LOCK_NIGHTLY") == "" {
				t.Skip("make nightly plays it")
			}
			t.Parallel()
			p, failed := alone(t, program()), &atomic.Int64{}
			far := newProxy(t, p.homes[0])
			far.slow(farAway / 2)
			client := redislock.New(one.to(t, far.address()), quiet, counted(failed))
			defer client.Close()
			keptFar(t, client, failed, far.dialled.Load, func() int64 { return calls(t, p.servers[0], "lock.extend") })
		})
	}
}

// footprint is what the heap and the stacks of this process take.
func footprint() int64 {
	runtime.GC()
	var found runtime.MemStats
	runtime.ReadMemStats(&found)
	return int64(found.HeapAlloc + found.StackInuse)
}

// Nobody else runs meanwhile: the memory of this process is measured.
func TestTenThousandWaitsTakeFewConnectionsAndLittleMemory(t *testing.T) {
	const waits, bytesEach, connections = 10_000, 6_600, 32 + 6
	for _, one := range libraries {
		t.Run(one.name, func(t *testing.T) {
			p := alone(t, program())
			e := elsewhere{T: t, place: p, library: one.name}
			e.do("CONFIG", "SET", "lock.max-waiters", 2*waits)
			client := e.open(quiet)
			e.take("k")
			own := len(e.clients())
			before := footprint()
			ctx, cancel := context.WithCancel(bg)
			var all sync.WaitGroup
			for range waits {
				all.Go(func() {
					if _, err := client.Lock(ctx, "k"); !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				})
			}
			var each int64
			e.within("all to wait", func() bool { return e.number("k", "waiting") == waits })
			// Those that ask in this moment take more.
			for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
				if each = (footprint() - before) / waits; each <= bytesEach {
					break
				} else if time.Now().After(end) {
					t.Error(each, "bytes each")
					break
				}
			}
			if more := len(e.clients()) - own; more > connections {
				t.Error("connections:", more)
			}
			t.Log(each, "bytes each")
			cancel()
			all.Wait()
			e.within("no place", func() bool { return e.number("k", "waiting") == 0 })
			must(e, client.Close())
		})
	}
}

// Buffers of rueidis, as its users have them, are a thousand times as large.
func TestAWaitThatBlocksTakesLittleMemory(t *testing.T) {
	const waits, bytesEach = 32, 128 << 10
	for _, one := range libraries {
		t.Run(one.name, func(t *testing.T) {
			p := alone(t, program())
			e := elsewhere{T: t, place: p, library: one.name}
			client := e.open(quiet)
			e.take("k")
			before := footprint()
			ctx, cancel := context.WithCancel(bg)
			var all sync.WaitGroup
			for range waits {
				all.Go(func() { client.Lock(ctx, "k") })
			}
			e.within("all to block", func() bool {
				return strings.Count(strings.Join(e.clients(), "\n"), " flags=b ") == waits
			})
			each := (footprint() - before) / waits
			if each > bytesEach {
				t.Error(each, "bytes each")
			}
			t.Log(each, "bytes each")
			cancel()
			all.Wait()
			must(e, client.Close())
		})
	}
}

// The times are exact, since they are those of the bubble.
func TestAServerThatHangsHoldsUpItsCallersForAShortTime(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			server := &tapped{}
			inBubble(t, server, way.options, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
				within := func(what string, least, most time.Duration, call func() error, want error) {
					t.Helper()
					begin := time.Now()
					err := call()
					if took := time.Since(begin); took < least || took > most || !errors.Is(err, want) {
						t.Error(what, took, err)
					}
				}
				lock := func(ctx context.Context, key string, opts ...redislock.LockOption) func() error {
					return func() error {
						_, err := client.Lock(ctx, key, opts...)
						return err
					}
				}
				server.Take("taken")
				waiting, leave := context.WithCancel(bg)
				parked := make(chan error, 1)
				go func() { parked <- lock(waiting, "taken")() }()
				var holds []*redislock.Hold
				for n := range 3 {
					hold, err := client.Lock(bg, fmt.Sprint("held", n))
					if err != nil {
						t.Fatal(err)
					}
					holds = append(holds, hold)
				}
				synctest.Wait()
				server.hang(true)
				leave()
				within("a cancelled wait", 0, 500*time.Millisecond, func() error { return <-parked }, context.Canceled)
				half := redislock.WithWait(500 * time.Millisecond)
				within("a wait of half a second", 500*time.Millisecond, 800*time.Millisecond, lock(bg, "free", half),
					redislock.ErrUnavailable)
				soon, cancel := context.WithTimeout(bg, 100*time.Millisecond)
				defer cancel()
				within("a deadline", 100*time.Millisecond, 350*time.Millisecond, lock(soon, "free"), context.DeadlineExceeded)
				within("a try", 0, 3*time.Second, lock(bg, "free", redislock.WithWait(0)), redislock.ErrUnavailable)
				within("a release whose context is over", 0, 250*time.Millisecond,
					func() error { return holds[0].Unlock(soon) }, context.DeadlineExceeded)
				within("a release", 0, 3*time.Second, func() error { return holds[1].Unlock(bg) }, redislock.ErrUnavailable)
				server.hang(false)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				for _, key := range []string{"free", "held0", "held1"} {
					if owners := append(server.Holders(key), server.WaitingOwners(key)...); len(owners) > 0 {
						t.Error(key, owners)
					}
				}
				if waiting := server.WaitingOwners("taken"); len(waiting) > 0 {
					t.Error(waiting)
				}
				if err := holds[2].Unlock(bg); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Locks are kept, waits go on, and whoever gave up has nothing.
func TestAServerThatSleepsForFourSecondsLosesNothing(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		var holds []*redislock.Hold
		for n := range 20 {
			hold, err := s.client.Lock(s.ctx, fmt.Sprint(s.key, n))
			s.must(err)
			holds = append(holds, hold)
		}
		s.do("LOCK.ACQUIRE", s.key, "another", "PX", 600_000)
		got := []<-chan error{s.wait(s.client), s.wait(s.open(quiet, none))}
		s.proxy.hang(true)
		begin := time.Now()
		_, err := s.client.Lock(s.ctx, s.key+"free", redislock.WithWait(500*time.Millisecond))
		if !errors.Is(err, redislock.ErrUnavailable) {
			s.Error(err)
		}
		time.Sleep(4*time.Second - time.Since(begin))
		s.proxy.hang(false)
		for _, hold := range holds {
			if err := errors.Join(hold.Err(), hold.Unlock(s.ctx)); err != nil {
				s.Error(err)
			}
		}
		s.do("LOCK.RELEASE", s.key, "another")
		for _, one := range got {
			s.must(<-one)
		}
		s.untilFree()
		s.key += "free"
		s.untilFree()
	})
}

// torn lets 16 goroutines take a lock for 1 ms again and again for five seconds, while all connections are killed each
// 250 ms. It returns how many locks there were, and for how long at most nobody had one.
func torn(t *testing.T, client *redislock.Client, key string, kill func()) (locks int, idle time.Duration) {
	const lasts = 5 * time.Second
	var mu sync.Mutex
	var all sync.WaitGroup
	begin := time.Now()
	last := begin
	for range 16 {
		all.Go(func() {
			own := 0
			// Each has one at least, however slow the machine is.
			for time.Since(begin) < lasts || own == 0 {
				hold, err := client.Lock(bg, key)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				now := time.Now()
				idle, last = max(idle, now.Sub(last)), now
				mu.Unlock()
				time.Sleep(time.Millisecond)
				if err := hold.Unlock(bg); err == nil {
					own++
				} else if !errors.Is(err, redislock.ErrUnavailable) {
					t.Error(err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			locks += own
		})
	}
	for time.Since(begin) < lasts {
		time.Sleep(250 * time.Millisecond)
		kill()
	}
	all.Wait()
	return locks, idle
}

func TestConnectionsThatAreKilledAgainAndAgainHoldUpNobody(t *testing.T) {
	t.Parallel()
	for _, way := range ways {
		t.Run("memory "+way.name, func(t *testing.T) {
			server := &tapped{}
			inBubble(t, server, way.options, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
				locks, idle := torn(t, client, "k", func() { server.SetDown(true); server.SetDown(false) })
				if locks < 3500 || idle > 150*time.Millisecond {
					t.Error(locks, "locks, and nobody had one for", idle)
				}
				t.Log(locks, idle)
			})
		})
		for _, one := range libraries {
			t.Run(one.name+" "+way.name, func(t *testing.T) {
				t.Parallel()
				p := alone(t, program())
				e := elsewhere{t, p, one.name, way}
				client := redislock.New(p.to(t, one.name), append(way.options, quiet)...)
				defer client.Close()
				locks, idle := torn(t, client, "k", func() {
					for _, kind := range []string{"normal", "pubsub"} {
						e.do("CLIENT", "KILL", "TYPE", kind)
					}
				})
				t.Log(locks, idle)
				e.within("nothing to be left", func() bool { return e.holding("k")+e.waiting("k") == 0 })
			})
		}
	}
}

// Each of them returns at once, and nothing is left.
func cancelledTogether(w world, c *redislock.Client, key string) {
	const waits = 200
	w.take(key)
	ctx, cancel := context.WithCancel(bg)
	var all sync.WaitGroup
	for range waits {
		all.Go(func() {
			_, err := c.Lock(ctx, key)
			is(w, err, context.Canceled)
		})
	}
	w.within("all to wait", func() bool { return w.waiting(key) == waits })
	begin := time.Now()
	cancel()
	all.Wait()
	if _, isFake := w.(fake); isFake && time.Since(begin) > 20*time.Millisecond {
		w.Error(time.Since(begin))
	}
	w.within("no place", func() bool { return w.waiting(key) == 0 })
	w.lose(key)
	must(w, lock(w, c, key).Unlock(bg))
}

// It counts from the request. A lock that was granted long ago is extended first, and one that has lapsed since is no
// lock.
func TestAGrantThatArrivesLateIsNotTakenForANewOne(t *testing.T) {
	for _, one := range []struct {
		late, lease time.Duration
		extends     int64
		least, most time.Duration // of its validity
	}{
		{900 * time.Millisecond, 3 * time.Second, 0, 1990 * time.Millisecond, 2 * time.Second},
		{2 * time.Second, 3 * time.Second, 1, 2890 * time.Millisecond, 2900 * time.Millisecond},
		{2 * time.Second, time.Second, 1, 890 * time.Millisecond, 900 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(one.late, " of ", one.lease), func(t *testing.T) {
			var isLate atomic.Bool
			isLate.Store(true)
			server := &tapped{delay: func(command string) time.Duration {
				if command == "LOCK.ACQUIRE" && isLate.Swap(false) {
					return one.late
				}
				return 0
			}}
			inBubble(t, server, nil, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
				hold, err := client.Lock(bg, "k", redislock.WithLease(one.lease))
				if err != nil {
					t.Fatal(err)
				}
				valid := hold.ValidFor()
				if valid < one.least || valid > one.most || server.asked("LOCK.EXTEND") != one.extends {
					t.Error(valid, server.asked("LOCK.EXTEND"))
				}
				if err := hold.Unlock(bg); err != nil || len(server.Holders("k")) > 0 {
					t.Error(err, server.Holders("k"))
				}
			})
		})
	}
}

// Timers stand still while the machine sleeps, and this clock does not.
func TestALossIsToldWithinASecondWhenTheClockJumps(t *testing.T) {
	inBubble(t, &tapped{}, nil, func(t *testing.T, client *redislock.Client, jump *atomic.Int64) {
		hold, err := client.Lock(bg, "k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		jump.Store(int64(30 * time.Second))
		begin := time.Now()
		<-hold.Done()
		if took := time.Since(begin); took > time.Second || !errors.Is(hold.Err(), redislock.ErrLost) {
			t.Error(took, hold.Err())
		}
		hold.Unlock(bg)
	})
}

// Half a minute later none is left.
func TestABurstOfWaitsLeavesFewConnections(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			server := &tapped{}
			inBubble(t, server, way.options, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
				server.Take("k")
				var all sync.WaitGroup
				for range 100 {
					all.Go(func() {
						if err := lockAndUnlock(bg, client, "k"); err != nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				if open := server.open.Load(); open > 32+6 {
					t.Error("connections while they wait:", open)
				}
				server.Lose("k")
				all.Wait()
				synctest.Wait()
				if open := server.open.Load(); open > 8 {
					t.Error("connections after it:", open)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if open := server.open.Load(); open > 0 {
					t.Error("connections that nobody uses:", open)
				}
			})
		})
	}
}
