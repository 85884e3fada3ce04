package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"redis-lock.example/clients/go/lockgoredis"
	"redis-lock.example/clients/go/lockrueidis"
	"redis-lock.example/clients/go/redislock"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// calls is how often a server was asked for a command.
func calls(t testing.TB, server *redis.Client, command string) int64 {
	t.Helper()
	text, err := server.Info(bg, "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`cmdstat_` + strings.ToLower(command) + `:calls=(\d+)`).FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	count, _ := strconv.ParseInt(found[1], 10, 64)
	return count
}

// requests is how many commands of locks the server was asked for.
func (s *stage) requests() int {
	s.Helper()
	text, err := s.admin.Info(s.ctx, "commandstats").Result()
	s.must(err)
	sum := 0
	for _, found := range regexp.MustCompile(`cmdstat_lock\.(\w+):calls=(\d+)`).FindAllStringSubmatch(text, -1) {
		if count, _ := strconv.Atoi(found[2]); found[1] != "info" {
			sum += count
		}
	}
	return sum
}

// A cost is what one lock takes.
type cost struct{ Requests, Connections int }

// costs is what clients/costs.json allows.
func costs(t testing.TB) map[string]cost {
	text, err := os.ReadFile("../../costs.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]map[string]cost
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all["go"]
}

// The server is used by nobody else, since its requests are counted.
func TestALockCostsWhatCostsJsonSays(t *testing.T) {
	allowed := costs(t)
	onEach(t, func(s *stage) {
		blocks, notified := s.open(quiet), s.open(quiet, none)
		contended := func(client *redislock.Client) {
			s.do("LOCK.ACQUIRE", s.key, "another", "PX", 60_000)
			got := s.wait(client)
			s.do("LOCK.RELEASE", s.key, "another")
			s.must(<-got)
		}
		for name, play := range map[string]func(){
			"free":      func() { s.must(s.lock().Unlock(s.ctx)) },
			"contended": func() { contended(blocks) },
			"notified":  func() { contended(notified) },
		} {
			play() // opens the connections
			const rounds = 10
			// Those of the other, and none in a free lock.
			requests, dialled := s.requests()+2*rounds, s.proxy.dialled.Load()
			if name == "free" {
				requests -= 2 * rounds
			}
			for range rounds {
				play()
			}
			more := s.proxy.dialled.Load() - dialled
			if took := s.requests() - requests; took > rounds*allowed[name].Requests || more > int64(allowed[name].Connections) {
				s.Errorf("%s: %d requests and %d connections for %d locks", name, took, more, rounds)
			}
		}
	})
}

func TestAWaitOutlivesItsConnectionInItsPlace(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		hold := s.lock()
		order := make(chan string, 2)
		var all sync.WaitGroup
		wait := func(name string) {
			next, err := s.client.Lock(s.ctx, s.key)
			if err != nil {
				s.Error(err)
				return
			}
			order <- name
			if err := next.Unlock(s.ctx); err != nil {
				s.Error(err)
			}
		}
		all.Go(func() { wait("first") })
		s.until("a waiter", func() bool { return s.waiters() == 1 })
		before := s.proxy.dialled.Load()
		s.proxy.cut()
		s.until("a new connection", func() bool { return s.proxy.dialled.Load() > before })
		all.Go(func() { wait("second") })
		s.until("two waiters", func() bool { return s.waiters() == 2 })
		s.must(hold.Unlock(s.ctx))
		all.Wait()
		if first := <-order; first != "first" {
			s.Error(first)
		}
	})
}

// Connections that died without use are no reason to fail, also for the only try.
func TestDeadIdleConnectionsCostNothing(t *testing.T) {
	onEach(t, func(s *stage) {
		s.must(s.lock().Unlock(s.ctx))
		s.proxy.cut()
		hold, err := s.client.TryLock(s.ctx, s.key)
		s.must(err)
		s.proxy.cut()
		s.must(hold.Unlock(s.ctx))
		if !s.isFree() {
			s.Error("held")
		}
	})
}

// The server hangs for a while, and goes on: one grant, of which nothing is left.
func TestAServerThatHangsServesNoRequestTwice(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		s.must(s.lock().Unlock(s.ctx)) // opens a connection
		s.proxy.hang(true)
		got := make(chan *redislock.Hold)
		go func() {
			hold, err := s.client.Lock(s.ctx, s.key)
			if err != nil {
				s.Error(err)
			}
			got <- hold
		}()
		time.Sleep(time.Second)
		s.proxy.hang(false)
		hold := <-got
		s.must(hold.Unlock(s.ctx))
		if !s.isFree() {
			s.Error("it counts twice")
		}
	})
}

func TestAServerThatHangsProlongsNoWaitAndNoCancel(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		s.must(s.lock().Unlock(s.ctx))
		s.proxy.hang(true)
		_, err := s.client.Lock(s.ctx, s.key, redislock.WithWait(500*time.Millisecond))
		if !errors.Is(err, redislock.ErrUnavailable) || errors.Is(err, redislock.ErrHeld) {
			s.Error(err)
		}
		ctx, cancel := context.WithTimeout(s.ctx, 100*time.Millisecond)
		defer cancel()
		begin := time.Now()
		_, err = s.client.Lock(ctx, s.key)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 2*time.Second {
			s.Error(err, time.Since(begin))
		}
		s.proxy.hang(false)
		s.untilFree()
		s.must(s.lock().Unlock(s.ctx))
	})
}

// The cancelled place ends, though its request is parked on a connection that hangs.
func TestACancelWhileTheServerHangsLeavesNothing(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		s.do("LOCK.ACQUIRE", s.key, "another", "PX", 60_000)
		ctx, cancel := context.WithCancel(s.ctx)
		got := make(chan error)
		go func() {
			_, err := s.client.Lock(ctx, s.key)
			got <- err
		}()
		s.until("a waiter", func() bool { return s.waiters() == 1 })
		s.proxy.hang(true)
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			s.Error(err)
		}
		s.proxy.hang(false)
		s.until("the place to end", func() bool { return s.waiters() == 0 })
		s.do("LOCK.RELEASE", s.key, "another")
		s.untilFree()
	})
}

// What has no answer is sent again, until it is answered or the lease is over.
func TestAnEndThatIsLostOnTheWayIsRepeated(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		for name, lose := range map[string]func(){
			"silence": s.proxy.freeze,
			"cut":     func() { s.proxy.refuses.Store(true); s.proxy.cut() },
		} {
			hold := s.lock(redislock.WithLease(10 * time.Minute))
			lose()
			if err := hold.UnlockAfter(time.Second); !errors.Is(err, redislock.ErrUnavailable) {
				s.Error(name, err)
			}
			s.proxy.refuses.Store(false)
			s.untilFree()
		}
		// Nobody has the token.
		hold := s.lock(redislock.WithLease(10 * time.Minute))
		s.proxy.freeze()
		if _, err := hold.Detach(s.ctx); !errors.Is(err, redislock.ErrUnavailable) {
			s.Error("detach", err)
		}
		s.untilFree()
	})
}

// Null to the second request is no loss if the first one has ended the lock as it should.
func TestAnEndWhoseAnswerIsLostIsNoLoss(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		hold := s.lock(redislock.WithLease(10 * time.Minute))
		s.proxy.deafen(true)
		ended := make(chan error)
		go func() { ended <- hold.UnlockAfter(100 * time.Millisecond) }()
		s.untilFree()
		s.proxy.deafen(false)
		s.proxy.cut()
		// Where the machine is busy, its time may be over.
		if err := <-ended; err != nil && !errors.Is(err, redislock.ErrUnavailable) {
			s.Error(err)
		}
	})
}

// Waits beyond the limit ask from time to time, and open nothing.
func TestATakeOverThatIsCancelledLeavesNothing(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		giver, err := s.client.Lock(s.ctx, s.key, redislock.WithLease(10*time.Minute))
		s.must(err)
		token, err := giver.Detach(s.ctx)
		s.must(err)
		s.proxy.hang(true)
		ctx, cancel := context.WithTimeout(s.ctx, 100*time.Millisecond)
		defer cancel()
		if _, err := s.client.Adopt(ctx, token); !errors.Is(err, context.DeadlineExceeded) {
			s.Error(err)
		}
		s.proxy.hang(false)
		s.untilFree()
	})
}

func TestWaitsOpenNoMoreConnectionsThanTheyMay(t *testing.T) {
	onEach(t, func(s *stage) {
		client := s.open(quiet, redislock.WithMaxBlocking(4))
		s.do("LOCK.ACQUIRE", s.key, "another", "PX", 60_000)
		before := s.proxy.dialled.Load()
		ctx, cancel := context.WithCancel(s.ctx)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if _, err := client.Lock(ctx, s.key); !errors.Is(err, context.Canceled) {
					s.Error(err)
				}
			})
		}
		s.until("all to wait", func() bool { return s.waiters() == 50 })
		if more := s.proxy.dialled.Load() - before; more > 4+6 {
			s.Error("connections:", more)
		}
		cancel()
		all.Wait()
		s.until("no place", func() bool { return s.waiters() == 0 })
		s.do("LOCK.RELEASE", s.key, "another")
	})
}

// All renewals go out together: a far server does not cost locks.
func TestManyLocksAreRenewedTogether(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		var holds []*redislock.Hold
		for n := range 200 {
			hold, err := s.client.Lock(s.ctx, fmt.Sprintf("%s:%d", s.key, n), redislock.WithLease(safeLease))
			s.must(err)
			holds = append(holds, hold)
		}
		dialled := s.proxy.dialled.Load()
		time.Sleep(safeLease + 2*time.Second)
		for _, hold := range holds {
			s.must(hold.Err())
			s.must(hold.Unlock(s.ctx))
		}
		// Where the machine is busy, one may not answer in time: then there are up to four.
		if more := s.proxy.dialled.Load() - dialled; more > 4 {
			s.Error("connections:", more)
		}
	})
}

// Wrong port, no right: said at the first failed attempt.
func TestTroubleIsToldAtOnce(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		told := make(chan redislock.Trouble, 8)
		s.proxy.refuses.Store(true)
		client := s.open(quiet, redislock.WithTrouble(func(one redislock.Trouble) { told <- one }))
		_, err := client.Lock(s.ctx, s.key, redislock.WithWait(300*time.Millisecond))
		if !errors.Is(err, redislock.ErrUnavailable) {
			s.Error(err)
		}
		if one := <-told; one.Kind != "unreachable" || one.Key != s.key {
			s.Error(one)
		}
		if len(told) > 0 {
			s.Error("told again", <-told)
		}
		s.proxy.refuses.Store(false)
		s.must(s.lock().Unlock(s.ctx))
	})
}

// Nobody can give it back: its lease ends it.
func TestALockThatNothingRefersToIsNotRenewed(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		told := make(chan redislock.Trouble, 8)
		client := s.open(quiet, redislock.WithTrouble(func(one redislock.Trouble) { told <- one }))
		hold, err := client.Lock(s.ctx, s.key, redislock.WithLease(2*time.Second))
		s.must(err)
		done := hold.Done()
		hold = nil
		s.until("its end", func() bool {
			runtime.GC()
			select {
			case <-done:
				return true
			default:
				return false
			}
		})
		// Of a renewal that failed it may be told before.
		for one := (redislock.Trouble{}); one.Kind != "forgotten"; {
			select {
			case one = <-told:
			case <-time.After(30 * time.Second):
				s.Fatal("it is not told")
			}
		}
		s.untilFree()
	})
}

func TestClientsThatCannotHoldALockAreRefused(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": address(t)}})
	defer ring.Close()
	if _, err := lockgoredis.New(ring); !errors.Is(err, redislock.ErrInvalid) {
		t.Error(err)
	}
	if _, err := lockgoredis.New(nil); !errors.Is(err, redislock.ErrInvalid) {
		t.Error(err)
	}
	replica := rueidis.ClientOption{InitAddress: []string{address(t)}, ReplicaOnly: true}
	if _, err := lockrueidis.New(replica); !errors.Is(err, redislock.ErrInvalid) {
		t.Error(err)
	}
}

// The options of the application's client stay as they are.
func TestTheClientOfGoRedisIsLeftAlone(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: address(t), ReadTimeout: 300 * time.Millisecond})
	defer client.Close()
	before := *client.Options()
	transport, err := lockgoredis.New(client)
	if err != nil {
		t.Fatal(err)
	}
	locks := redislock.New(transport)
	hold, err := locks.Lock(context.Background(), "left alone")
	if err == nil {
		err = errors.Join(hold.Unlock(context.Background()), locks.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	after := *client.Options()
	if after.MaxRetries != before.MaxRetries || after.ReadTimeout != before.ReadTimeout {
		t.Error(after)
	}
	if stats := client.PoolStats(); stats.TotalConns != 0 {
		t.Error("a connection of the client was used", stats.TotalConns)
	}
}

// A string or a hash on the key is the lock of an old client: docs/guide/migrating.md.
func TestWithOldClientsSomethingElseOnTheKeyIsALockOfOthers(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		s.do("SET", s.key, "an old client's", "NX")
		var reply *redislock.ServerError
		if _, err := s.client.Lock(s.ctx, s.key); !errors.As(err, &reply) || reply.Code != "WRONGTYPE" {
			s.Error("not asked for:", err)
		}
		for _, client := range []*redislock.Client{
			s.open(quiet, redislock.WithOldClients()), s.open(quiet, redislock.WithOldClients(), none),
		} {
			s.do("DEL", s.key)
			s.do("HSET", s.key, "uuid:1", 1)
			for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
				if _, err := client.Lock(s.ctx, s.key, redislock.WithWait(wait)); !errors.Is(err, redislock.ErrHeld) {
					s.Error(wait, err)
				}
			}
			got := s.take(client)
			select {
			case err := <-got:
				s.Fatal("an old client has it:", err)
			case <-time.After(300 * time.Millisecond):
			}
			s.do("DEL", s.key)
			s.must(<-got)
		}
	})
}
