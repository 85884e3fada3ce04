package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"redis-lock.example/clients/go/redislock"
)

// What goes wrong is told at the first failed attempt, in a sentence that says what to do.
func TestAServerThatGivesNoLocksIsTold(t *testing.T) {
	t.Parallel()
	bare := plain(t, program())
	full := alone(t, program(), "--maxmemory", "1", "--maxmemory-policy", "noeviction")
	forbidden := alone(t, program())
	elsewhere{T: t, place: forbidden}.do("ACL", "SETUSER", "nobody", "on", ">secret", "~*", "+ping")
	forbidden.user, forbidden.password = "nobody", "secret"
	for _, one := range []struct {
		kind  string
		place *place
		want  error
		text  string
	}{
		{"no module", bare, redislock.ErrUnsupported, "the server has no module redis_lock"},
		{"no right", forbidden, nil, "NOPERM"},
		{"memory", full, redislock.ErrUnavailable, "OOM"},
	} {
		for _, library := range libraries {
			t.Run(one.kind+" "+library.name, func(t *testing.T) {
				t.Parallel()
				told := make(chan redislock.Trouble, 8)
				tell := redislock.WithTrouble(func(trouble redislock.Trouble) { told <- trouble })
				client := redislock.New(one.place.to(t, library.name), quiet, tell)
				defer client.Close()
				_, err := client.Lock(bg, "k", redislock.WithWait(300*time.Millisecond))
				if err == nil || one.want != nil && !errors.Is(err, one.want) || !strings.Contains(err.Error(), one.text) {
					t.Error(err)
				}
				if trouble := <-told; trouble.Kind != one.kind || trouble.Key != "k" {
					t.Error(trouble)
				}
			})
		}
	}
}

// A wait goes on in its place while the server has no memory.
func TestAWaitBearsAServerWithoutMemory(t *testing.T) {
	t.Parallel()
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			p := alone(t, program())
			e := elsewhere{t, p, "go-redis", way}
			told := make(chan redislock.Trouble, 8)
			tell := redislock.WithTrouble(func(trouble redislock.Trouble) { told <- trouble })
			client := redislock.New(p.to(t, e.library), append(way.options, quiet, tell)...)
			defer client.Close()
			e.do("CONFIG", "SET", "maxmemory", 1)
			got := make(chan error, 1)
			go func() { got <- lockAndUnlock(bg, client, "k") }()
			if trouble := <-told; trouble.Kind != "memory" {
				t.Error(trouble)
			}
			e.do("CONFIG", "SET", "maxmemory", 0)
			must(e, <-got)
		})
	}
}

// An option that the module does not know.
func TestAModuleThatIsTooOldIsNamed(t *testing.T) {
	server := &tapped{unknown: "RETRY"}
	told := make(chan redislock.Trouble, 1)
	tell := redislock.WithTrouble(func(trouble redislock.Trouble) { told <- trouble })
	inBubble(t, server, []redislock.ClientOption{tell}, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		_, err := client.Lock(bg, "k")
		if !errors.Is(err, redislock.ErrUnsupported) || !strings.Contains(err.Error(), "this needs 1.0 or newer") {
			t.Error(err)
		}
		synctest.Wait()
		if trouble := <-told; trouble.Kind != "old module" {
			t.Error(trouble)
		}
	})
}

// A release is repeated until it is answered, by a server that hangs for longer than its caller waits.
func TestAReleaseWithoutAnAnswerIsRepeated(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		hold := s.lock()
		s.proxy.deafen(true)
		soon, cancel := context.WithTimeout(s.ctx, 200*time.Millisecond)
		defer cancel()
		if err := hold.Unlock(soon); !errors.Is(err, context.DeadlineExceeded) {
			s.Error(err)
		}
		s.proxy.deafen(false)
		s.untilFree()
		// The key is not busy any more under its owner, and the next one has it at once.
		s.must(s.lock().Unlock(s.ctx))
	})
}

// A heard lists what a listener hears.
type heard struct {
	mu    sync.Mutex
	names []string
	times []time.Duration
}

func (h *heard) add(name string, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names, h.times = append(h.names, name), append(h.times, took)
}

func (h *heard) listener() redislock.Listener {
	times := func(name string) func(time.Duration) {
		return func(took time.Duration) { h.add(name, took) }
	}
	return redislock.Listener{
		Waited: times("waited"), Refused: times("refused"), Held: times("held"), Lost: times("lost"),
		RenewalFailed: func() { h.add("renewal failed", 0) },
		Dropped:       func(calls int) { h.add("dropped", time.Duration(calls)) },
	}
}

// expect compares what was heard since the last time: names, and times that are exact but for what a reply takes.
func (h *heard) expect(t *testing.T, want ...any) {
	t.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	isSame := 2*len(h.names) == len(want)
	for at := 0; isSame && at < len(h.names); at++ {
		isSame = h.names[at] == want[2*at] && (h.times[at]-want[2*at+1].(time.Duration)).Abs() < 20*time.Millisecond
	}
	if !isSame {
		t.Error(h.names, h.times, "and not", want)
	}
	h.names, h.times = nil, nil
}

func TestAListenerHearsWhatLocksDo(t *testing.T) {
	const none = time.Duration(0)
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			server, h := &tapped{}, &heard{}
			options := append([]redislock.ClientOption{redislock.WithListener(h.listener())}, way.options...)
			inBubble(t, server, options, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
				take := func(opts ...redislock.LockOption) *redislock.Hold {
					t.Helper()
					hold, err := client.Lock(bg, "k", opts...)
					if err != nil {
						t.Fatal(err)
					}
					return hold
				}
				hold := take()
				time.Sleep(5 * time.Second)
				hold.Unlock(bg)
				hold.Unlock(bg)
				h.expect(t, "waited", none, "held", 5*time.Second)
				server.Take("k")
				client.TryLock(bg, "k")
				client.Lock(bg, "k", redislock.WithWait(2*time.Second))
				soon, cancel := context.WithTimeout(bg, 4*time.Second)
				client.Lock(soon, "k")
				cancel()
				h.expect(t, "refused", none, "refused", 2*time.Second, "refused", 4*time.Second)
				leave, cancel := context.WithCancel(bg)
				time.AfterFunc(time.Second, cancel)
				client.Lock(leave, "k")
				h.expect(t)
				time.AfterFunc(7*time.Second, func() { server.Lose("k") })
				take().Unlock(bg)
				hold = take()
				server.Lose("k")
				<-hold.Done()
				hold.Unlock(bg)
				h.expect(t, "waited", 7*time.Second, "held", none, "waited", none, "lost", 10*time.Second)
				hold = take()
				time.Sleep(9 * time.Second)
				server.SetDown(true)
				time.Sleep(1500 * time.Millisecond)
				server.SetDown(false)
				hold.UnlockAfter(time.Second)
				h.expect(t, "waited", none, "renewal failed", none, "held", 10500*time.Millisecond)
				time.Sleep(2 * time.Second)
				server.SetDown(true)
				client.Lock(bg, "k", redislock.WithWait(time.Second))
				h.expect(t)
			})
		})
	}
}

// So many calls wait for it, and no lock does.
func TestWhatASlowListenerMissesIsCounted(t *testing.T) {
	const locks, most = 600, 1024
	var goesOn chan struct{}
	h := &heard{}
	slow := h.listener()
	slow.Waited = func(took time.Duration) {
		<-goesOn
		h.add("waited", took)
	}
	options := []redislock.ClientOption{redislock.WithListener(slow)}
	inBubble(t, &tapped{}, options, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		goesOn = make(chan struct{})
		begin := time.Now()
		for range locks {
			if err := lockAndUnlock(bg, client, "k"); err != nil {
				t.Fatal(err)
			}
			// The first one is under way before others queue.
			synctest.Wait()
		}
		if took := time.Since(begin); took > 0 {
			t.Error("locks wait for it:", took)
		}
		close(goesOn)
	})
	if len(h.names) != 1+1+most || h.names[1] != "dropped" || h.times[1] != 2*locks-1-most {
		t.Error(len(h.names), h.names[:2], int64(h.times[1]))
	}
}

func TestAFunctionOfTheApplicationThatPanicsHarmsNothing(t *testing.T) {
	h := &heard{}
	listener := h.listener()
	listener.Waited = func(time.Duration) { panic("own") }
	tell := redislock.WithTrouble(func(redislock.Trouble) { panic("own") })
	options := []redislock.ClientOption{redislock.WithListener(listener), tell}
	server := &tapped{}
	inBubble(t, server, options, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		var holds []*redislock.Hold
		for n := range 2 {
			hold, err := client.Lock(bg, fmt.Sprint("k", n))
			if err != nil {
				t.Fatal(err)
			}
			holds = append(holds, hold)
		}
		server.Lose("k0")
		time.Sleep(time.Minute)
		if err := errors.Join(holds[1].Err(), holds[1].Unlock(bg)); err != nil {
			t.Error(err)
		}
		h.expect(t, "lost", 10*time.Second, "held", time.Minute)
	})
}
