package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"redis-lock.example/clients/go/redislock"
	"redis-lock.example/clients/go/redislocktest"
)

// A wait gave up a request, and asks again. The late grant is its lock then, and not to be released.
func TestALateGrantOfAWaitThatGoesOnStays(t *testing.T) {
	var isSlow atomic.Bool
	server := &tapped{delay: func(command string) time.Duration {
		if isSlow.Load() && command == "LOCK.ACQUIRE" {
			return 2500 * time.Millisecond
		}
		return 0
	}}
	inBubble(t, server, []redislock.ClientOption{none}, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		ctx, cancel := context.WithCancel(bg)
		defer cancel()
		got := make(chan *redislock.Hold, 2)
		for _, key := range []string{"other", "k"} {
			server.Take(key)
			go func() {
				hold, _ := client.Lock(ctx, key)
				got <- hold
			}()
		}
		synctest.Wait()
		tell := func(key string) { server.Publish(server.channel.Load().(string), server.WaitingOwners(key)[0]) }
		isSlow.Store(true)
		tell("other")
		time.Sleep(100 * time.Millisecond)
		// This request is sent after the other's reply, and answered when its time is over.
		tell("k")
		time.Sleep(time.Second)
		server.Lose("k")
		time.Sleep(3 * time.Second)
		isSlow.Store(false)
		hold := <-got
		time.Sleep(time.Second)
		if owners := server.Holders("k"); len(owners) != 1 || server.asked("LOCK.RELEASE") > 0 {
			t.Error(owners, server.asked("LOCK.RELEASE"))
		}
		if err := errors.Join(hold.Err(), hold.Unlock(bg)); err != nil {
			t.Error(err)
		}
		cancel()
		<-got
	})
}

// isFirst is true for the first command of this name.
func isFirst(name string) func(command string) bool {
	var seen atomic.Bool
	return func(command string) bool { return command == name && !seen.Swap(true) }
}

// The server reads the renewal after the release, and answers null.
func TestARenewalThatAReleaseOvertakesIsNoLoss(t *testing.T) {
	h, told := &heard{}, make(chan redislock.Trouble, 8)
	server := &tapped{
		late: func(command string) time.Duration {
			if command == "LOCK.EXTEND" || command == "LOCK.CHECK" {
				return 500 * time.Millisecond
			}
			return 0
		},
		delay: func(command string) time.Duration {
			if command == "LOCK.RELEASE" {
				return time.Second
			}
			return 0
		},
	}
	tell := redislock.WithTrouble(func(trouble redislock.Trouble) { told <- trouble })
	options := []redislock.ClientOption{tell, redislock.WithListener(h.listener())}
	inBubble(t, server, options, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		for _, play := range []func(hold *redislock.Hold){
			func(*redislock.Hold) { time.Sleep(10*time.Second + 100*time.Millisecond) },
			func(hold *redislock.Hold) { go hold.Check(bg); synctest.Wait() },
			func(hold *redislock.Hold) {
				go func() {
					if err := hold.SetNote(bg, "note"); !errors.Is(err, redislock.ErrReleased) {
						t.Error(err)
					}
				}()
				synctest.Wait()
			},
		} {
			hold, err := client.Lock(bg, "k")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := hold.Context(bg)
			play(hold)
			err = hold.Unlock(bg)
			if cause := context.Cause(ctx); err != nil || !errors.Is(cause, redislock.ErrReleased) {
				t.Error(err, cause)
			}
			cancel()
		}
		synctest.Wait()
		if len(told) > 0 {
			t.Error("told", <-told)
		}
		if names := strings.Join(h.names, " "); names != "waited held waited held waited held" {
			t.Error(names)
		}
	})
}

// The server reads the renewal after what shortens the lease.
func TestARenewalThatIsOvertakenProlongsNoLeaseThatEndsLater(t *testing.T) {
	isRenewal := isFirst("LOCK.EXTEND")
	server := &tapped{late: func(command string) time.Duration {
		if isRenewal(command) {
			return 500 * time.Millisecond
		}
		return 0
	}}
	inBubble(t, server, nil, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		hold, err := client.Lock(bg, "k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Second + 100*time.Millisecond)
		if err := hold.UnlockAfter(2 * time.Second); err != nil {
			t.Error(err)
		}
		for _, one := range []struct {
			at      time.Duration
			holders int
		}{{1900 * time.Millisecond, 1}, {200 * time.Millisecond, 0}} {
			time.Sleep(one.at)
			if owners := server.Holders("k"); len(owners) != one.holders {
				t.Error(one.at, owners)
			}
		}
	})
}

type slowLog struct{ slog.Handler }

func (slowLog) Enabled(context.Context, slog.Level) bool { return true }

func (slowLog) Handle(_ context.Context, record slog.Record) error {
	if record.Message == "redislock: lost" {
		time.Sleep(time.Second)
	}
	return nil
}

// While the loss of one is told, the other is renewed, too late.
func TestALockThatIsOverIsRenewedNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &tapped{Server: redislocktest.NewServer(), calls: map[string]int{}}
		begin := time.Now()
		clock := redislock.WithClock(func() time.Duration { return time.Since(begin) })
		client := redislock.New(server, clock, redislock.WithLogger(slog.New(slowLog{slog.DiscardHandler})))
		defer client.Close()
		var holds []*redislock.Hold
		for n := range 4 {
			hold, err := client.Lock(bg, fmt.Sprint("k", n))
			if err != nil {
				t.Fatal(err)
			}
			holds = append(holds, hold)
		}
		time.Sleep(9 * time.Second)
		server.hang(true)
		time.Sleep(20*time.Second + 800*time.Millisecond)
		server.hang(false)
		time.Sleep(2 * time.Minute)
		for n, hold := range holds {
			select {
			case <-hold.Done():
			default:
				t.Error("not told:", n, server.Holders(hold.Key()))
			}
		}
	})
}

// A place outlives CLIENT UNBLOCK, and the wait is left before it asks again.
func TestAWaitThatIsLeftAfterUnblockLeavesNoPlace(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		told := make(chan redislock.Trouble, 8)
		client := s.open(quiet, redislock.WithTrouble(func(trouble redislock.Trouble) { told <- trouble }))
		s.do("LOCK.ACQUIRE", s.key, "another", "PX", 600_000)
		// Its connection waits for the next one.
		first := s.wait(client)
		s.do("LOCK.RELEASE", s.key, "another")
		s.must(<-first)
		s.do("LOCK.ACQUIRE", s.key, "another", "PX", 600_000)
		ctx, cancel := context.WithCancel(s.ctx)
		defer cancel()
		got := make(chan error, 1)
		go func() {
			_, err := client.Lock(ctx, s.key)
			got <- err
		}()
		s.until("a waiter", func() bool { return s.waiters() == 1 })
		blocked := fieldOf(s.info("waiters").([]any)[0], "client")
		if s.do("CLIENT", "UNBLOCK", blocked, "ERROR") != int64(1) {
			s.Fatal("not blocked:", blocked)
		}
		<-told
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			s.Error(err)
		}
		if waiters := s.waiters(); waiters > 0 {
			s.Error("places:", waiters)
		}
		s.do("LOCK.RELEASE", s.key, "another")
	})
}

// It would be repeated until the lease is over.
func TestCloseEndsATakeOver(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		s.proxy.refuses.Store(true)
		got, closed := make(chan error, 1), make(chan error, 1)
		go func() {
			token := redislock.HoldToken{Key: s.key, Owner: "another", Fence: 1, Lease: time.Hour}
			_, err := s.client.Adopt(s.ctx, token)
			got <- err
		}()
		s.until("an attempt", func() bool { return s.proxy.dialled.Load() > 0 })
		go func() { closed <- s.client.Close() }()
		select {
		case err := <-closed:
			s.must(err)
		case <-time.After(time.Minute):
			s.Fatal("it goes on")
		}
		if err := <-got; !errors.Is(err, redislock.ErrClosed) {
			s.Error(err)
		}
	})
}

// A far server is one in memory that can be out of reach.
type far struct {
	*tapped
	isAway atomic.Bool
}

func (f *far) Dial(ctx context.Context, address string) (redislock.Conn, error) {
	if f.isAway.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return f.tapped.Dial(ctx, address)
}

// What is repeated in the background dials when the client is closed.
func TestCloseWaitsForNoDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &far{tapped: &tapped{Server: redislocktest.NewServer(), calls: map[string]int{}}}
		client := redislock.New(server, quiet)
		hold, err := client.Lock(bg, "k")
		if err != nil {
			t.Fatal(err)
		}
		server.isAway.Store(true)
		server.SetDown(true)
		soon, cancel := context.WithTimeout(bg, 100*time.Millisecond)
		defer cancel()
		if err := hold.Unlock(soon); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(time.Second)
		begin := time.Now()
		if err := client.Close(); err != nil || time.Since(begin) > time.Second {
			t.Error(err, time.Since(begin))
		}
	})
}

// A slow server opens a connection when it is told to, whatever becomes of the context, and counts calls of Close.
type slow struct {
	*tapped
	opens  chan struct{}
	closes atomic.Int64
}

func (s *slow) Dial(ctx context.Context, address string) (redislock.Conn, error) {
	<-s.opens
	return s.tapped.Dial(context.WithoutCancel(ctx), address)
}

func (s *slow) Close() error {
	s.closes.Add(1)
	return s.tapped.Close()
}

// It is open when the client is closed already. A second call of Close returns no sooner than the first.
func TestCloseWaitsForAnOpeningAndClosesWhatItBrings(t *testing.T) {
	for name, wait := range map[string][]redislock.ClientOption{"block": nil, "notify": {none}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := &tapped{Server: redislocktest.NewServer(), calls: map[string]int{}}
				server := &slow{tapped: memory, opens: make(chan struct{})}
				client := redislock.New(server, append(wait, quiet)...)
				got, closed := make(chan error, 1), make(chan error, 2)
				go func() { got <- lockAndUnlock(bg, client, "k") }()
				synctest.Wait()
				for range 2 {
					go func() { closed <- client.Close() }()
				}
				time.Sleep(10 * time.Second)
				if len(closed) > 0 {
					t.Error("closed", <-closed)
				}
				close(server.opens)
				synctest.Wait()
				for range 2 {
					if err := <-closed; err != nil {
						t.Error(err)
					}
				}
				if err := <-got; !errors.Is(err, redislock.ErrClosed) {
					t.Error(err)
				}
				if open, closes := server.open.Load(), server.closes.Load(); open != 0 || closes != 1 {
					t.Error(open, "connections are open, and Close was called", closes, "times")
				}
			})
		})
	}
}

// Far away the greeting of a connection takes longer than a renewal has.
func TestAConnectionThatIsOpenTooLateServesTheNextRenewal(t *testing.T) {
	greets := func(int64) error { time.Sleep(250 * time.Millisecond); return nil }
	server := &tapped{greets: greets, delay: func(string) time.Duration { return farAway }}
	inBubble(t, server, nil, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		var holds []*redislock.Hold
		for key := range 5 {
			hold, err := client.Lock(bg, strconv.Itoa(key), redislock.WithLease(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			holds = append(holds, hold)
		}
		for range 3 {
			server.SetDown(true)
			server.SetDown(false)
			time.Sleep(2 * time.Second)
		}
		for _, hold := range holds {
			if err := hold.Unlock(bg); err != nil {
				t.Error(err)
			}
		}
		if open := server.open.Load(); open > 4 {
			t.Error(open, "connections")
		}
	})
}

// The one whose connection another caller took opens one more.
func TestAConnectionThatAnotherCallerTookIsOpenedAgain(t *testing.T) {
	for failing := range int64(2) {
		server := &tapped{}
		inBubble(t, server, nil, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
			hold, err := client.Lock(bg, "k")
			if err != nil {
				t.Fatal(err)
			}
			server.SetDown(true)
			server.SetDown(false)
			first := server.dialled.Load() + 1
			server.greets = func(number int64) error {
				if number == first+failing {
					time.Sleep(2 * time.Second)
					return os.ErrDeadlineExceeded
				}
				time.Sleep(400 * time.Millisecond)
				return nil
			}
			opened := make(chan error, 1)
			for caller := range int64(2) {
				go func() {
					_, err := hold.Check(bg)
					if caller != failing {
						opened <- err
					}
				}()
				time.Sleep(200 * time.Millisecond)
			}
			if err := <-opened; err != nil {
				t.Error(err)
			}
			time.Sleep(3 * time.Second) // the other one is told of its own failure, or was served
		})
	}
}

func TestAGuardOfAServerThatHangsEnds(t *testing.T) {
	server := &tapped{}
	inBubble(t, server, nil, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		hold, err := client.Lock(bg, "k", redislock.WithLease(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		server.hang(true)
		begin := time.Now()
		_, err = hold.Guard(bg, "GET", "{k}")
		if !errors.Is(err, redislock.ErrUnavailable) || time.Since(begin) > 5*time.Second {
			t.Error(err, time.Since(begin))
		}
		server.hang(false)
	})
}

// The server answers again, and the next attempt is due later.
func TestCloseGivesBackWhatHadNoAnswer(t *testing.T) {
	server := &tapped{}
	inBubble(t, server, nil, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		ends := map[string]func(*redislock.Hold) error{
			"unlock":       func(h *redislock.Hold) error { return h.Unlock(bg) },
			"unlock after": func(h *redislock.Hold) error { return h.UnlockAfter(time.Second) },
			"detach":       func(h *redislock.Hold) error { _, err := h.Detach(bg); return err },
		}
		holds := map[string]*redislock.Hold{}
		for key := range ends {
			hold, err := client.Lock(bg, key)
			if err != nil {
				t.Fatal(err)
			}
			holds[key] = hold
		}
		server.SetDown(true)
		for key, end := range ends {
			if err := end(holds[key]); !errors.Is(err, redislock.ErrUnavailable) {
				t.Error(key, err)
			}
		}
		time.Sleep(3 * time.Second)
		server.SetDown(false)
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Millisecond)
		for key := range ends {
			if owners := server.Holders(key); len(owners) > 0 {
				t.Error(key, owners)
			}
		}
	})
}

func TestCloseWaitsForAnUnlockAWhile(t *testing.T) {
	for name, away := range map[string]time.Duration{"answered": 500 * time.Millisecond, "dead": time.Minute} {
		t.Run(name, func(t *testing.T) {
			server := &tapped{}
			inBubble(t, server, nil, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
				hold, err := client.Lock(bg, "k")
				if err != nil {
					t.Fatal(err)
				}
				server.hang(true)
				time.AfterFunc(away, func() { server.hang(false) })
				unlocked := make(chan error, 1)
				go func() { unlocked <- hold.Unlock(bg) }()
				synctest.Wait()
				begin := time.Now()
				if err := client.Close(); err != nil || time.Since(begin) > time.Second {
					t.Error(err, time.Since(begin))
				}
				if err := <-unlocked; (err == nil) != (name == "answered") {
					t.Error(err)
				}
				time.Sleep(away)
			})
		})
	}
}

// The server may have read what had no answer, and raised the fence.
func TestATakeOverThatHadNoAnswerIsNoLoss(t *testing.T) {
	server := &tapped{}
	inBubble(t, server, nil, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		giver, err := client.Lock(bg, "k")
		if err != nil {
			t.Fatal(err)
		}
		token, err := giver.Detach(bg)
		if err != nil {
			t.Fatal(err)
		}
		server.hang(true)
		time.AfterFunc(3*time.Second+50*time.Millisecond, func() { server.hang(false) })
		_, err = client.Adopt(bg, token)
		if !errors.Is(err, redislock.ErrUnavailable) || errors.Is(err, redislock.ErrLost) {
			t.Error(err)
		}
	})
}

// An error of the term is one, whatever lock it speaks of.
func TestATermThatFailsEndsLead(t *testing.T) {
	inBubble(t, &tapped{}, nil, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		for _, kind := range []error{redislock.ErrHeld, redislock.ErrUnavailable, errors.New("own")} {
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			err := client.Lead(ctx, "k", func(context.Context, *redislock.Hold) error {
				return fmt.Errorf("the term: %w", kind)
			})
			if !errors.Is(err, kind) {
				t.Error(kind, err)
			}
			cancel()
		}
	})
}
