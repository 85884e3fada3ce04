package tests

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"redis-lock.example/clients/go/redislock"
	"redis-lock.example/clients/go/redislocktest"
)

// A world is a server, real or in memory.
type world interface {
	testing.TB
	open(opts ...redislock.ClientOption) *redislock.Client
	waiting(key string) int
	holding(key string) int
	note(key string) string
	lose(key string)
	take(key string) // for somebody else, until lose
	within(what string, met func() bool)
}

type fake struct {
	*testing.T
	server *redislocktest.Server
	way    way
}

func (f fake) open(opts ...redislock.ClientOption) *redislock.Client {
	c := f.server.Client(append(f.way.options, opts...)...)
	f.Cleanup(func() { c.Close() })
	return c
}
func (f fake) waiting(key string) int { return f.server.Waiting(key) }
func (f fake) holding(key string) int { return len(f.server.Holders(key)) }
func (f fake) note(key string) string {
	reply, err := f.server.Command(bg, "LOCK.INFO", key)
	if err != nil {
		f.Fatal(err)
	}
	return noteOf(reply)
}
func (f fake) lose(key string) { f.server.Lose(key) }
func (f fake) take(key string) { f.server.Take(key) }
func (f fake) within(what string, met func() bool) {
	f.Helper()
	for end := time.Now().Add(30 * time.Second); !met(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			f.Fatal("waited for", what)
		}
	}
}

// A way is how waits wait.
type way struct {
	name    string
	options []redislock.ClientOption
}

var ways = []way{
	{"block", nil},
	{"notify", []redislock.ClientOption{redislock.WithMaxBlocking(0)}},
}

type real struct {
	*stage
	way way
}

func (r real) open(opts ...redislock.ClientOption) *redislock.Client {
	return r.stage.open(append(r.way.options, opts...)...)
}

func (r real) count(key, field string) int {
	s := *r.stage
	s.key = key
	list, _ := s.info(field).([]any)
	return len(list)
}
func (r real) waiting(key string) int              { return r.count(key, "waiters") }
func (r real) holding(key string) int              { return r.count(key, "holders") }
func (r real) note(key string) string              { return noteOf(r.do("LOCK.INFO", key)) }
func (r real) lose(key string)                     { r.do("LOCK.BREAK", key) }
func (r real) take(key string)                     { r.do("LOCK.ACQUIRE", key, "another", "PX", 600_000) }
func (r real) within(what string, met func() bool) { r.Helper(); r.until(what, met) }

// safeLease is not lost where the machine is busy for a few seconds.
const safeLease = 12 * time.Second

var quiet = redislock.WithLogger(slog.New(slog.DiscardHandler))

// The scenarios that need no wire: on the server in memory, where time flies, and through each library.
func TestScenarios(t *testing.T) {
	for name, play := range map[string]func(w world, c *redislock.Client, key string){
		"taken":              taken,
		"waited":             waited,
		"tried":              tried,
		"over":               over,
		"cancelled":          cancelled,
		"cancelled at once":  cancelledAtOnce,
		"cancelled together": cancelledTogether,
		"noted":              noted,
		"lost":               lost,
		"lapsed":             lapsed,
		"renewed":            renewed,
		"several":            several,
		"readers":            readers,
		"shares":             shares,
		"reentry":            reentry,
		"nested":             nested,
		"panics":             panics,
		"handed over":        handedOver,
		"released later":     releasedLater,
		"leader":             leader,
		"closed":             closed,
		"forbidden":          forbidden,
		"turns":              turns,
		"guarded":            guarded,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, way := range ways {
				t.Run("memory "+way.name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := fake{t, redislocktest.NewServer(), way}
						play(f, f.open(quiet), "k")
					})
				})
				for _, one := range libraries {
					t.Run(one.name+" "+way.name, func(t *testing.T) {
						t.Parallel()
						s := &stage{T: t, library: one, ctx: context.Background()}
						s.stand()
						r := real{s, way}
						play(r, r.open(quiet), s.key)
					})
				}
			}
		})
	}
}

func must(w world, err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func is(w world, err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Errorf("%v, not %v", err, want)
	}
}

// isOver is what a wait ends with. A real server may be too busy to say that others hold the lock.
func isOver(w world, err error) {
	w.Helper()
	if _, isFake := w.(fake); isFake || !errors.Is(err, redislock.ErrUnavailable) {
		is(w, err, redislock.ErrHeld)
	}
}

func lock(w world, c *redislock.Client, key string, opts ...redislock.LockOption) *redislock.Hold {
	w.Helper()
	hold, err := c.Lock(context.Background(), key, opts...)
	must(w, err)
	return hold
}

var bg = context.Background()

func taken(w world, c *redislock.Client, key string) {
	hold := lock(w, c, key, redislock.WithNote("note"))
	if hold.Fence() <= 0 || hold.Key() != key || hold.ValidFor() <= 10*time.Second || hold.Err() != nil {
		w.Error(hold.Fence(), hold.Key(), hold.ValidFor(), hold.Err())
	}
	if held, err := hold.Check(bg); !held || err != nil {
		w.Error(held, err)
	}
	must(w, hold.Unlock(bg))
	is(w, hold.Unlock(bg), redislock.ErrReleased)
	is(w, hold.Err(), redislock.ErrReleased)
	<-hold.Done()
	if hold.ValidFor() != 0 || w.holding(key) != 0 {
		w.Error("held")
	}
	next := lock(w, c, key)
	if next.Fence() <= hold.Fence() || next.Owner() == hold.Owner() {
		w.Error(next.Fence(), hold.Fence(), next.Owner())
	}
	over, cancel := context.WithCancel(bg)
	cancel()
	is(w, next.Unlock(over), context.Canceled)
	if w.holding(key) != 0 {
		w.Error("a finished context keeps it")
	}
}

func noted(w world, c *redislock.Client, key string) {
	hold := lock(w, c, key, redislock.WithNote("begun"))
	before := w.note(key)
	must(w, hold.SetNote(bg, "half"))
	half := w.note(key)
	must(w, hold.SetNote(bg, ""))
	if after := w.note(key); before != "begun" || half != "half" || after != "" {
		w.Error(before, half, after)
	}
	w.lose(key)
	is(w, hold.SetNote(bg, "late"), redislock.ErrLost)
	is(w, hold.Err(), redislock.ErrLost)
	both, err := c.LockAll(bg, []string{"{" + key + "}1", "{" + key + "}2"})
	must(w, err)
	must(w, both.SetNote(bg, "both"))
	if one, two := w.note(both.Key()), w.note("{"+key+"}2"); one != "both" || two != "both" {
		w.Error(one, two)
	}
	must(w, both.Unlock(bg))
	is(w, both.SetNote(bg, "late"), redislock.ErrReleased)
}

func waited(w world, c *redislock.Client, key string) {
	hold := lock(w, c, key)
	order := make(chan int, 3)
	var all sync.WaitGroup
	for n := range 3 {
		all.Go(func() {
			next, err := c.Lock(bg, key)
			if err != nil {
				w.Error(err)
				return
			}
			order <- n
			if err := next.Unlock(bg); err != nil {
				w.Error(err)
			}
		})
		w.within("a waiter", func() bool { return w.waiting(key) == n+1 })
	}
	must(w, hold.Unlock(bg))
	all.Wait()
	for n := range 3 {
		if got := <-order; got != n {
			w.Error(got, n)
		}
	}
}

func tried(w world, c *redislock.Client, key string) {
	w.take(key)
	_, err := c.TryLock(bg, key)
	is(w, err, redislock.ErrHeld)
	_, err = c.Lock(bg, key, redislock.WithWait(0))
	is(w, err, redislock.ErrHeld)
	if w.waiting(key) != 0 {
		w.Error("it stands in the queue")
	}
}

func over(w world, c *redislock.Client, key string) {
	w.take(key)
	begin := time.Now()
	_, err := c.Lock(bg, key, redislock.WithWait(300*time.Millisecond))
	isOver(w, err)
	if took := time.Since(begin); took < 300*time.Millisecond {
		w.Error(took)
	}
	w.within("its place to end", func() bool { return w.waiting(key) == 0 })
	ctx, cancel := context.WithTimeout(bg, 300*time.Millisecond)
	defer cancel()
	_, err = c.Lock(ctx, key)
	is(w, err, context.DeadlineExceeded)
	_, isFake := w.(fake)
	if errors.Is(err, redislock.ErrHeld) || isFake && errors.Is(err, redislock.ErrUnavailable) {
		w.Error(err)
	}
}

// Around the hand-off, many times: whoever is cancelled has nothing, and locks nobody out.
func cancelled(w world, c *redislock.Client, key string) {
	own := errors.New("own")
	var others sync.WaitGroup
	defer others.Wait()
	for round := range 100 {
		hold := lock(w, c, key)
		ctx, cancel := context.WithCancelCause(bg)
		got := make(chan error)
		go func() {
			next, err := c.Lock(ctx, key)
			if err == nil {
				err = next.Unlock(bg)
			} else if !errors.Is(err, own) {
				w.Error(err)
			} else {
				err = nil
			}
			got <- err
		}()
		w.within("a waiter", func() bool { return w.waiting(key) == 1 })
		others.Go(func() { time.Sleep(time.Duration(round%20) * 50 * time.Microsecond); cancel(own) })
		must(w, hold.Unlock(bg))
		must(w, <-got)
	}
	w.within("nothing to be left", func() bool { return w.holding(key)+w.waiting(key) == 0 })
}

func cancelledAtOnce(w world, c *redislock.Client, key string) {
	ctx, cancel := context.WithCancel(bg)
	cancel()
	_, err := c.Lock(ctx, key)
	is(w, err, context.Canceled)
	var others sync.WaitGroup
	defer others.Wait()
	for round := range 50 {
		ctx, cancel := context.WithCancel(bg)
		others.Go(func() { time.Sleep(time.Duration(round) * 10 * time.Microsecond); cancel() })
		if hold, err := c.Lock(ctx, key); err == nil {
			must(w, hold.Unlock(bg))
		} else {
			is(w, err, context.Canceled)
		}
	}
	w.within("nothing to be left", func() bool { return w.holding(key)+w.waiting(key) == 0 })
}

func lost(w world, c *redislock.Client, key string) {
	hold := lock(w, c, key, redislock.WithLease(3*time.Second))
	ctx, cancel := hold.Context(bg)
	defer cancel()
	w.lose(key)
	w.take(key)
	<-ctx.Done()
	is(w, context.Cause(ctx), redislock.ErrLost)
	is(w, hold.Err(), redislock.ErrLost)
	var named *redislock.Error
	if !errors.As(context.Cause(ctx), &named) || named.Key != key {
		w.Error(context.Cause(ctx))
	}
	is(w, hold.Unlock(bg), redislock.ErrLost)
	if w.holding(key) != 1 {
		w.Error("the release of a late holder took the lock of another")
	}
	// A loss that only the release finds.
	w.lose(key)
	hold = lock(w, c, key)
	w.lose(key)
	is(w, hold.Unlock(bg), redislock.ErrLost)
	is(w, hold.Err(), redislock.ErrLost)
}

func lapsed(w world, c *redislock.Client, key string) {
	begin := time.Now()
	hold := lock(w, c, key, redislock.WithLease(safeLease), redislock.WithMax(safeLease+2*time.Second))
	<-hold.Done()
	if took := time.Since(begin); took < safeLease+1700*time.Millisecond {
		w.Error(took)
	}
	is(w, hold.Err(), redislock.ErrLost)
	w.within("its lease to end", func() bool { return w.holding(key) == 0 })
}

func renewed(w world, c *redislock.Client, key string) {
	one := lock(w, c, key, redislock.WithLease(safeLease))
	time.Sleep(safeLease + 2*time.Second)
	must(w, one.Err())
	if w.holding(key) != 1 {
		w.Error("it was not renewed")
	}
	must(w, one.Unlock(bg))
}

func several(w world, c *redislock.Client, key string) {
	keys := []string{"{" + key + "}1", "{" + key + "}2"}
	w.take(keys[1])
	_, err := c.LockAll(bg, keys, redislock.WithWait(50*time.Millisecond))
	isOver(w, err)
	if w.holding(keys[0]) != 0 {
		w.Error("not all or none")
	}
	w.lose(keys[1])
	hold, err := c.LockAll(bg, keys, redislock.WithLease(safeLease))
	must(w, err)
	time.Sleep(safeLease + 2*time.Second)
	must(w, hold.Err())
	if w.holding(keys[0]) != 1 || w.holding(keys[1]) != 1 || len(hold.Fences()) != 2 {
		w.Error("one of them is not held")
	}
	w.lose(keys[1])
	if held, err := hold.Check(bg); held || err != nil {
		w.Error(held, err)
	}
	is(w, hold.Unlock(bg), redislock.ErrLost)
	if w.holding(keys[0]) != 0 {
		w.Error("the other key stays held")
	}
}

func readers(w world, c *redislock.Client, key string) {
	one, two := lock(w, c, key, redislock.WithRead()), lock(w, c, key, redislock.WithRead())
	_, err := c.TryLock(bg, key)
	is(w, err, redislock.ErrHeld)
	_, err = one.Guard(bg, "GET", key)
	is(w, err, redislock.ErrInvalid)
	must(w, one.Unlock(bg))
	must(w, two.Unlock(bg))
}

func shares(w world, c *redislock.Client, key string) {
	three := redislock.WithShares(3, 1)
	var all sync.WaitGroup
	var within, most atomic.Int32
	for range 10 {
		all.Go(func() {
			err := c.Do(bg, key, func(context.Context, *redislock.Hold) error {
				now := within.Add(1)
				for {
					before := most.Load()
					if now <= before || most.CompareAndSwap(before, now) {
						break
					}
				}
				time.Sleep(10 * time.Millisecond)
				within.Add(-1)
				return nil
			}, three)
			if err != nil {
				w.Error(err)
			}
		})
	}
	all.Wait()
	if most.Load() > 3 {
		w.Error(most.Load())
	}
}

func reentry(w world, c *redislock.Client, key string) {
	err := c.Do(bg, key, func(ctx context.Context, outer *redislock.Hold) error {
		err := c.Do(ctx, key, func(_ context.Context, inner *redislock.Hold) error {
			if inner != outer {
				w.Error("another hold")
			}
			return nil
		}, redislock.WithReentry())
		must(w, err)
		_, err = c.Lock(ctx, key)
		is(w, err, redislock.ErrInvalid)
		return outer.Err()
	})
	must(w, err)
	if w.holding(key) != 0 {
		w.Error("held")
	}
}

func nested(w world, c *redislock.Client, key string) {
	outer := lock(w, c, key)
	inner := lock(w, c, key+":inner", redislock.WithOuter(outer))
	if inner.Owner() != outer.Owner() {
		w.Error(inner.Owner())
	}
	_, err := c.Lock(bg, key, redislock.WithOuter(outer))
	is(w, err, redislock.ErrInvalid)
	must(w, inner.Unlock(bg))
	must(w, lock(w, c, key+":inner", redislock.WithOuter(outer)).Unlock(bg))
	must(w, outer.Unlock(bg))
	_, err = c.Lock(bg, key+":inner", redislock.WithOuter(outer))
	is(w, err, redislock.ErrReleased)
}

func panics(w world, c *redislock.Client, key string) {
	own := errors.New("own")
	is(w, c.Do(bg, key, func(context.Context, *redislock.Hold) error { return own }), own)
	func() {
		defer func() {
			if recover() != "panic" {
				w.Error("the panic is gone")
			}
		}()
		c.Do(bg, key, func(context.Context, *redislock.Hold) error { panic("panic") })
	}()
	if w.holding(key) != 0 {
		w.Error("held")
	}
	err := c.Do(bg, key, func(ctx context.Context, hold *redislock.Hold) error {
		w.lose(key)
		return own
	})
	is(w, err, own)
	is(w, err, redislock.ErrLost)
}

func handedOver(w world, c *redislock.Client, key string) {
	giver := lock(w, c, key)
	token, err := giver.Detach(bg)
	must(w, err)
	is(w, giver.Err(), redislock.ErrReleased)
	text, err := json.Marshal(token)
	must(w, err)
	must(w, json.Unmarshal(text, &token))
	other := w.open(quiet)
	taker, err := other.Adopt(bg, token)
	must(w, err)
	if taker.Fence() <= token.Fence || taker.Owner() != giver.Owner() || w.holding(key) != 1 {
		w.Error(taker.Fence(), token.Fence, taker.Owner())
	}
	_, err = c.Adopt(bg, token)
	is(w, err, redislock.ErrLost)
	must(w, taker.Unlock(bg))
}

func releasedLater(w world, c *redislock.Client, key string) {
	hold := lock(w, c, key)
	must(w, hold.UnlockAfter(3*time.Second))
	is(w, hold.Err(), redislock.ErrReleased)
	if w.holding(key) != 1 {
		w.Error("released at once")
	}
	w.within("its end", func() bool { return w.holding(key) == 0 })
}

func leader(w world, c *redislock.Client, key string) {
	ctx, cancel := context.WithCancelCause(bg)
	own := errors.New("own")
	var terms []int64
	err := c.Lead(ctx, key, func(term context.Context, hold *redislock.Hold) error {
		terms = append(terms, hold.Fence())
		switch len(terms) {
		case 1:
			w.lose(key)
			<-term.Done()
			return context.Cause(term)
		case 3:
			cancel(own)
		}
		return nil
	}, redislock.WithLease(time.Second))
	is(w, err, own)
	if len(terms) != 3 || terms[0] >= terms[1] || terms[1] >= terms[2] {
		w.Error(terms)
	}
}

func closed(w world, _ *redislock.Client, key string) {
	c := w.open(quiet)
	hold := lock(w, c, key)
	ended := make(chan error)
	go func() {
		_, err := c.Lock(bg, key)
		ended <- err
	}()
	w.within("a waiter", func() bool { return w.waiting(key) == 1 })
	must(w, c.Close())
	is(w, <-ended, redislock.ErrClosed)
	is(w, hold.Err(), redislock.ErrClosed)
	w.within("its place to end", func() bool { return w.waiting(key) == 0 })
	_, err := c.Lock(bg, key)
	is(w, err, redislock.ErrClosed)
	w.lose(key)
}

func forbidden(w world, c *redislock.Client, key string) {
	for name, opts := range map[string][]redislock.LockOption{
		"a short lease":    {redislock.WithLease(time.Millisecond)},
		"no share":         {redislock.WithShares(0, 1)},
		"too many shares":  {redislock.WithShares(2, 3)},
		"shares of a read": {redislock.WithShares(2, 1), redislock.WithRead()},
	} {
		if _, err := c.Lock(bg, key, opts...); !errors.Is(err, redislock.ErrInvalid) {
			w.Error(name, err)
		}
	}
	for _, keys := range [][]string{nil, {key, key}} {
		_, err := c.LockAll(bg, keys)
		is(w, err, redislock.ErrInvalid)
	}
}

// Many waits take turns, again and again: nobody waits in vain.
func turns(w world, c *redislock.Client, key string) {
	var all sync.WaitGroup
	var within atomic.Int32
	for range 8 {
		all.Go(func() {
			for range 20 {
				hold, err := c.Lock(bg, key)
				if err != nil {
					w.Error(err)
					return
				}
				if within.Add(1) != 1 {
					w.Error("not alone")
				}
				within.Add(-1)
				if err := hold.Unlock(bg); err != nil {
					w.Error(err)
				}
			}
		})
	}
	begin := time.Now()
	all.Wait()
	// Half of them by asking each second would take over a minute.
	if took := time.Since(begin); took > 40*time.Second {
		w.Error(took)
	}
	w.within("nothing to be left", func() bool { return w.holding(key)+w.waiting(key) == 0 })
}

func guarded(w world, c *redislock.Client, key string) {
	hold := lock(w, c, key)
	reply, err := hold.Guard(bg, "SET", key+":data", 41)
	if err != nil || reply != "OK" {
		w.Error(reply, err)
	}
	w.lose(key)
	_, err = hold.Guard(bg, "SET", key+":data", 42)
	is(w, err, redislock.ErrLost)
}
