package redislock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redis-lock.example/redislock"

	"github.com/gomodule/redigo/redis"
)

// newPool returns a pool for the server with the module at REDIS_LOCK_PORT.
func newPool() *redis.Pool {
	port := os.Getenv("REDIS_LOCK_PORT")
	if port == "" {
		port = "6379"
	}
	dial := func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", "127.0.0.1:"+port)
	}
	return &redis.Pool{MaxIdle: 4, DialContext: dial}
}

// A stage has a client of the test's own beside the pool that the helper uses.
type stage struct {
	*testing.T
	pool *redis.Pool
	conn redis.Conn
	key  string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{T: t, pool: newPool(), key: "{go}" + t.Name()}
	own := newPool()
	s.conn = own.Get()
	t.Cleanup(func() { s.conn.Close(); own.Close(); s.pool.Close() })
	s.do("DEL", s.key)
	return s
}

func (s *stage) do(command string, args ...any) any {
	s.Helper()
	reply, err := s.conn.Do(command, args...)
	if err != nil {
		s.Fatalf("%s %v: %v", command, args, err)
	}
	return reply
}

// info returns a field of LOCK.INFO: null if there is no lock.
func (s *stage) info(name string) any {
	s.Helper()
	return field(s.do("LOCK.INFO", s.key), name)
}

// field returns what a map of a reply has under a name.
func field(reply any, name string) any {
	pairs, _ := reply.([]any)
	for i := 0; i+1 < len(pairs); i += 2 {
		if string(pairs[i].([]byte)) == name {
			return pairs[i+1]
		}
	}
	return nil
}

func (s *stage) waitFor(what string, is func() bool) {
	s.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("%s: not within a minute", what)
		}
	}
}

func (s *stage) waitForWaiter() {
	s.Helper()
	s.waitFor("a waiter", func() bool { return s.info("waiting") == int64(1) })
}

func (s *stage) isFree() {
	s.Helper()
	if reply := s.do("LOCK.INFO", s.key); reply != nil {
		s.Fatalf("not free: %q", reply)
	}
}

func (s *stage) lock(m *redislock.Mutex) *redislock.Hold {
	s.Helper()
	hold, err := m.Lock(context.Background())
	if err != nil {
		s.Fatal(err)
	}
	return hold
}

func (s *stage) is(err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Fatalf("%v, not %v", err, want)
	}
}

func TestDoGivesTheLockBack(t *testing.T) {
	s := newStage(t)
	mutex := redislock.New(s.pool, s.key)
	failed := errors.New("failed")
	err := mutex.Do(context.Background(), func(_ context.Context, hold *redislock.Hold) error {
		if s.info("fence") != hold.Fence() {
			t.Error("not held")
		}
		return failed
	})
	if err != failed {
		t.Error(err)
	}
	s.isFree()

	func() {
		defer func() { recover() }()
		mutex.Do(context.Background(), func(context.Context, *redislock.Hold) error { panic("at work") })
	}()
	s.isFree()
}

// The work hears of it, and Do says so even if the work did not.
func TestALossCancelsTheWork(t *testing.T) {
	s := newStage(t)
	mutex := redislock.New(s.pool, s.key)
	mutex.Lease = time.Second
	for _, listens := range []bool{true, false} {
		err := mutex.Do(context.Background(), func(ctx context.Context, hold *redislock.Hold) error {
			s.do("LOCK.BREAK", s.key)
			<-ctx.Done()
			s.is(context.Cause(ctx), redislock.ErrLost)
			if !hold.Lost() {
				t.Error("not lost")
			}
			if listens {
				return context.Cause(ctx)
			}
			return nil
		})
		if want := fmt.Sprintf("redislock: %q lost", s.key); !errors.Is(err, redislock.ErrLost) || err.Error() != want {
			t.Errorf("%v", err)
		}
	}
}

// A context that bounds the wait, as is usual in Go, must not end the work.
func TestTheContextOfLockIsForTheWait(t *testing.T) {
	s := newStage(t)
	bounded, cancel := context.WithCancel(context.Background())
	mutex := redislock.New(s.pool, s.key)
	mutex.Lease = time.Second
	hold, err := mutex.Lock(bounded)
	s.is(err, nil)
	ctx := hold.Context(context.Background())
	cancel()
	fence := s.info("fence")
	end := time.Now().Add(1500 * time.Millisecond)
	s.waitFor("more than a lease", func() bool { return time.Now().After(end) })
	if ctx.Err() != nil || hold.Lost() || s.info("fence") != fence {
		t.Error("lost")
	}
	s.is(hold.Unlock(context.Background()), nil)
}

func TestAContextOfAHoldEndsWithItsParentAndWithTheHold(t *testing.T) {
	s := newStage(t)
	hold := s.lock(redislock.New(s.pool, s.key))
	cause := errors.New("cause")
	parent, cancel := context.WithCancelCause(context.WithValue(context.Background(), s, "value"))
	first, second := hold.Context(parent), hold.Context(context.Background())
	cancel(cause)
	<-first.Done()
	s.is(context.Cause(first), cause)
	if first.Value(s) != "value" {
		t.Error("the values of the parent are gone")
	}
	if second.Err() != nil {
		t.Error("ended with another")
	}
	s.is(hold.Unlock(context.Background()), nil)
	<-second.Done()
	s.is(context.Cause(second), redislock.ErrUnlocked)
	if hold.Lost() {
		t.Error("given back is not lost")
	}
	s.is(hold.Unlock(context.Background()), redislock.ErrUnlocked)
}

// defer hold.Unlock(ctx) runs when ctx is over, as often as not.
func TestUnlockIsDoneAlsoWhenItsContextIsOver(t *testing.T) {
	s := newStage(t)
	over, cancel := context.WithCancel(context.Background())
	hold := s.lock(redislock.New(s.pool, s.key))
	cancel()
	s.is(hold.Unlock(over), nil)
	s.isFree()
}

func TestTryLockFailsIfTheLockIsTaken(t *testing.T) {
	s := newStage(t)
	mutex := redislock.New(s.pool, s.key)
	mutex.Wait = time.Hour // is for Lock
	hold := s.lock(mutex)
	_, err := mutex.TryLock(context.Background())
	s.is(err, redislock.ErrNotAcquired)
	s.is(hold.Unlock(context.Background()), nil)
}

// Whoever computes a wait may come to zero, and does not mean for ever.
func TestAWaitOfZeroTriesOnce(t *testing.T) {
	s := newStage(t)
	mutex := redislock.New(s.pool, s.key)
	mutex.Wait = 0
	hold := s.lock(mutex)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := mutex.Lock(ctx)
	s.is(err, redislock.ErrNotAcquired)
	s.is(hold.Unlock(context.Background()), nil)
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	s := newStage(t)
	mutex := redislock.New(s.pool, s.key)
	hold := s.lock(mutex)
	soon, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := mutex.Lock(soon)
	s.is(err, context.DeadlineExceeded)
	if s.info("waiting") != int64(0) {
		t.Error("left a place in the queue")
	}

	ctx, stop := context.WithCancel(context.Background())
	failed := make(chan error)
	go func() {
		_, err := mutex.Lock(ctx)
		failed <- err
	}()
	s.waitForWaiter()
	stop()
	s.is(<-failed, context.Canceled)
	if s.info("waiting") != int64(0) {
		t.Error("left a place in the queue")
	}
	s.is(hold.Unlock(context.Background()), nil)

	_, err = mutex.Lock(ctx)
	s.is(err, context.Canceled)
	s.isFree()
}

func TestADeadlockIsAnErrorOfItsOwn(t *testing.T) {
	s := newStage(t)
	a, b := s.lock(redislock.New(s.pool, s.key)), s.lock(redislock.New(s.pool, s.key+":2"))
	inner, other := redislock.New(s.pool, s.key+":2"), redislock.New(s.pool, s.key)
	inner.Within, other.Within = a, b
	got := make(chan *redislock.Hold)
	go func() {
		hold, err := inner.Lock(context.Background())
		if err != nil {
			t.Error(err)
		}
		got <- hold
	}()
	s.waitFor("a waiter", func() bool {
		return strings.Contains(fmt.Sprintf("%q", s.do("LOCK.INFO", s.key+":2")), a.Owner())
	})
	_, err := other.Lock(context.Background())
	s.is(err, redislock.ErrDeadlock)
	var reply redis.Error
	if !errors.As(err, &reply) || !strings.HasPrefix(string(reply), "DEADLOCK ") {
		t.Errorf("%q", reply)
	}
	s.is(b.Unlock(context.Background()), nil)
	s.is((<-got).Unlock(context.Background()), nil)
	s.is(a.Unlock(context.Background()), nil)
}

func TestWhatMakesNoSenseIsRefused(t *testing.T) {
	s := newStage(t)
	with := func(m *redislock.Mutex, change func(*redislock.Mutex)) *redislock.Mutex {
		change(m)
		return m
	}
	hold := s.lock(redislock.New(s.pool, s.key))
	for name, mutex := range map[string]*redislock.Mutex{
		"no pool":         redislock.New(nil, "k"),
		"no dial":         redislock.New(&redis.Pool{}, "k"),
		"no key":          redislock.New(s.pool),
		"a key twice":     redislock.New(s.pool, "k", "k"),
		"a short lease":   with(redislock.New(s.pool, "k"), func(m *redislock.Mutex) { m.Lease = time.Millisecond }),
		"a negative wait": with(redislock.New(s.pool, "k"), func(m *redislock.Mutex) { m.Wait = -time.Second }),
		"no limit":        redislock.NewSemaphore(s.pool, "k", 0),
		"too many shares": with(redislock.NewSemaphore(s.pool, "k", 2), func(m *redislock.Mutex) { m.Take = 3 }),
		"shares of none":  with(redislock.New(s.pool, "k"), func(m *redislock.Mutex) { m.Take = 1 }),
		"both":            with(redislock.NewSemaphore(s.pool, "k", 2), func(m *redislock.Mutex) { m.Shared = true }),
		"within itself":   with(redislock.New(s.pool, s.key), func(m *redislock.Mutex) { m.Within = hold }),
		"part of it is within itself": with(redislock.New(s.pool, s.key+":2", s.key),
			func(m *redislock.Mutex) { m.Within = hold }),
	} {
		if _, err := mutex.Lock(context.Background()); !errors.Is(err, redislock.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A refusal takes nothing.
	other := with(redislock.New(s.pool, s.key+":2"), func(m *redislock.Mutex) { m.Within = hold })
	s.is(s.lock(other).Unlock(context.Background()), nil)
	s.is(hold.Unlock(context.Background()), nil)
	_, err := other.Lock(context.Background())
	s.is(err, redislock.ErrInvalid)
}

// One Mutex serves all goroutines, and each of them excludes the others.
func TestGoroutinesExcludeEachOther(t *testing.T) {
	s := newStage(t)
	mutex := redislock.New(s.pool, s.key)
	var within, most, turns atomic.Int32
	var all sync.WaitGroup
	for range make([]struct{}, 8) {
		all.Add(1)
		go func() {
			defer all.Done()
			for range make([]struct{}, 10) {
				err := mutex.Do(context.Background(), func(context.Context, *redislock.Hold) error {
					most.Store(max(most.Load(), within.Add(1)))
					runtime.Gosched()
					within.Add(-1)
					turns.Add(1)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	if most.Load() != 1 || turns.Load() != 80 {
		t.Errorf("%d at once, %d turns", most.Load(), turns.Load())
	}
	s.isFree()
}

func TestGuardRepliesAsTheCommandDoes(t *testing.T) {
	s := newStage(t)
	ctx := context.Background()
	hold := s.lock(redislock.New(s.pool, s.key))
	data := s.key + ":data"
	s.do("DEL", data)
	if reply, err := hold.Guard(ctx, "SET", data, 41); err != nil || reply != "OK" {
		t.Error(reply, err)
	}
	if n, err := redis.Int(hold.Guard(ctx, "INCR", data)); err != nil || n != 42 {
		t.Error(n, err)
	}
	if reply, err := hold.Guard(ctx, "GET", data+":none"); err != nil || reply != nil {
		t.Error(reply, err)
	}
	var reply redis.Error
	if _, err := hold.Guard(ctx, "LPUSH", data, "x"); !errors.As(err, &reply) {
		t.Error(err)
	}

	s.do("LOCK.BREAK", s.key)
	_, err := hold.Guard(ctx, "SET", data, 0)
	s.is(err, redislock.ErrLost)
	if !hold.Lost() {
		t.Error("a guard that was refused is a loss")
	}
	if n, err := redis.Int(s.do("GET", data), nil); err != nil || n != 42 {
		t.Error(n, err)
	}
	s.is(hold.Unlock(ctx), redislock.ErrLost)

	shared := redislock.New(s.pool, s.key)
	shared.Shared = true
	hold = s.lock(shared)
	_, err = hold.Guard(ctx, "GET", data)
	s.is(err, redislock.ErrInvalid)
	s.is(hold.Unlock(ctx), nil)
	_, err = hold.Guard(ctx, "GET", data)
	s.is(err, redislock.ErrInvalid)
}

func TestCheckAsksTheServer(t *testing.T) {
	s := newStage(t)
	ctx := context.Background()
	hold := s.lock(redislock.New(s.pool, s.key, s.key+":2"))
	if held, err := hold.Check(ctx); !held || err != nil {
		t.Error(held, err)
	}
	// Of several keys all are needed.
	s.do("LOCK.BREAK", s.key+":2")
	if held, err := hold.Check(ctx); held || err != nil {
		t.Error(held, err)
	}
	if !hold.Lost() {
		t.Error("not lost")
	}
	s.is(hold.Unlock(ctx), redislock.ErrLost)
	s.isFree()
}

// The fence goes along with all that is asked: another hold is another one, also of the same owner.
func TestALaterHoldOfTheSameOwnerIsLeftAlone(t *testing.T) {
	s := newStage(t)
	mutex := redislock.New(s.pool, s.key)
	mutex.Lease = time.Second
	for name, use := range map[string]func(*redislock.Hold){
		"renewal": func(hold *redislock.Hold) { <-hold.Context(context.Background()).Done() },
		"check": func(hold *redislock.Hold) {
			if held, err := hold.Check(context.Background()); held || err != nil {
				t.Error(held, err)
			}
		},
		"guard": func(hold *redislock.Hold) {
			_, err := hold.Guard(context.Background(), "DEL", s.key)
			s.is(err, redislock.ErrLost)
		},
		"unlock": func(hold *redislock.Hold) {},
	} {
		hold := s.lock(mutex)
		s.do("LOCK.BREAK", s.key)
		later := s.do("LOCK.ACQUIRE", s.key, hold.Owner(), "PX", 60_000)
		use(hold)
		s.is(hold.Unlock(context.Background()), redislock.ErrLost)
		if !hold.Lost() {
			t.Error(name, "not lost")
		}
		if fence := s.info("fence"); fence != later {
			t.Error(name, fence, later)
		}
		s.do("LOCK.BREAK", s.key)
	}
}

// A pool whose connections are all in use, or all dead, must not cost the lock.
func TestAPoolThatHasNoConnectionCostsNoLock(t *testing.T) {
	s := newStage(t)
	ctx := context.Background()
	for _, wait := range []bool{false, true} {
		s.pool.MaxActive, s.pool.Wait = 1, wait
		mutex := redislock.New(s.pool, s.key)
		mutex.Lease = time.Second
		used := s.pool.Get()
		hold := s.lock(mutex)
		end := time.Now().Add(2 * time.Second)
		s.waitFor("two leases", func() bool { return time.Now().After(end) })
		if hold.Lost() || s.info("fence") != hold.Fence() {
			t.Error("lost")
		}
		s.is(hold.Unlock(ctx), nil)
		s.isFree()
		used.Close()
		s.pool = newPool()
	}

	s.pool.MaxIdle = 8
	mutex := redislock.New(s.pool, s.key)
	mutex.Lease = time.Second
	var conns []redis.Conn
	for range make([]struct{}, 8) {
		conn := s.pool.Get()
		if _, err := conn.Do("PING"); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		conn.Close()
	}
	hold := s.lock(mutex)
	fence := hold.Fence()
	s.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	end := time.Now().Add(2 * time.Second)
	s.waitFor("two leases", func() bool { return time.Now().After(end) })
	if hold.Lost() || s.info("fence") != fence {
		t.Error("lost")
	}
	s.is(hold.Unlock(ctx), nil)
	s.isFree()
}

// Otherwise those that wait would keep the holder from its work.
func TestAWaitUsesUpNoConnectionOfThePool(t *testing.T) {
	s := newStage(t)
	s.pool.MaxActive = 1
	mutex := redislock.New(s.pool, s.key)
	hold := s.lock(mutex)
	got := make(chan *redislock.Hold)
	go func() {
		next, err := mutex.Lock(context.Background())
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	// Its first request does not wait yet.
	s.waitFor("a request that waits", func() bool {
		waiters, _ := s.info("waiters").([]any)
		return len(waiters) == 1 && field(waiters[0], "client") != nil
	})
	conn := s.pool.Get()
	if _, err := conn.Do("PING"); err != nil {
		t.Error(err)
	}
	conn.Close()
	s.is(hold.Unlock(context.Background()), nil)
	s.is((<-got).Unlock(context.Background()), nil)
}

// A program that holds many says of which lock it speaks.
func TestErrorsNameTheLock(t *testing.T) {
	s := newStage(t)
	ctx := context.Background()
	other := s.key + ":2"
	one, both := redislock.New(s.pool, s.key), redislock.New(s.pool, s.key, other)
	hold := s.lock(one)
	over, cancel := context.WithCancel(ctx)
	cancel()
	says := func(err error, is error, text string, args ...any) {
		t.Helper()
		if want := fmt.Sprintf(text, args...); !errors.Is(err, is) || err.Error() != want {
			t.Errorf("%v, not %s", err, want)
		}
	}
	_, err := one.TryLock(ctx)
	says(err, redislock.ErrNotAcquired, "redislock: %q not acquired", s.key)
	_, err = both.TryLock(ctx)
	says(err, redislock.ErrNotAcquired, "redislock: %q %q not acquired", s.key, other)
	_, err = one.Lock(over)
	says(err, context.Canceled, "redislock: %q: context canceled", s.key)
	_, err = hold.Check(over)
	says(err, context.Canceled, "redislock: %q: context canceled", s.key)
	short := redislock.New(s.pool, s.key)
	short.Lease = time.Millisecond
	_, err = short.Lock(ctx)
	says(err, redislock.ErrInvalid, "redislock: %q invalid: Lease is shorter than 1 s", s.key)
	s.do("LOCK.BREAK", s.key)
	_, err = hold.Guard(ctx, "GET", s.key)
	says(err, redislock.ErrLost, "redislock: %q lost", s.key)
	says(hold.Unlock(ctx), redislock.ErrLost, "redislock: %q lost", s.key)
	says(hold.Unlock(ctx), redislock.ErrUnlocked, "redislock: %q unlocked already", s.key)
}

// A dial that never ends, which no context can end, holds up nobody.
func TestADialThatHangsEndsNoLaterThanItsLimit(t *testing.T) {
	s := newStage(t)
	hangs := make(chan struct{})
	defer close(hangs)
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { <-hangs; return nil, errors.New("hung") }}
	mutex := redislock.New(pool, s.key)
	mutex.Wait = time.Second
	began := time.Now()
	_, err := mutex.Lock(context.Background())
	s.is(err, os.ErrDeadlineExceeded)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err = mutex.TryLock(ctx)
	s.is(err, context.DeadlineExceeded)
	if took := time.Since(began); took > 30*time.Second {
		t.Error(took)
	}
}

// As behind a proxy that turns BLOCK into nothing.
func TestAServerThatLetsNoRequestWaitIsNotAskedAllTheTime(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var asked atomic.Int32
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				// A request ends with its last argument, which is a count of milliseconds or ALL.
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					switch lines.Text() {
					case "LOCK.ACQUIRE":
						asked.Add(1)
					case "10000", "ALL":
						io.WriteString(conn, "$-1\r\n")
					}
				}
			}()
		}
	}()
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", listener.Addr().String()) }}
	mutex := redislock.New(pool, "k")
	mutex.Wait = 700 * time.Millisecond
	began := time.Now()
	if _, err = mutex.Lock(context.Background()); !errors.Is(err, redislock.ErrNotAcquired) {
		t.Error(err)
	}
	if took := time.Since(began); took < mutex.Wait {
		t.Error(took)
	}
	if asked.Load() > 3 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// Connections that the helper cannot give a time limit are of no use for waiting.
func TestConnectionsWithoutTimeoutsAreRefused(t *testing.T) {
	s := newStage(t)
	hold := s.lock(redislock.New(s.pool, s.key))
	dial := s.pool.DialContext
	pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		conn, err := dial(ctx)
		return struct{ redis.Conn }{conn}, err
	}}
	_, err := redislock.New(pool, s.key).Lock(context.Background())
	s.is(err, redislock.ErrInvalid)
	s.is(hold.Unlock(context.Background()), nil)
}

func TestNothingIsLeft(t *testing.T) {
	s := newStage(t)
	mutex := redislock.New(s.pool, s.key)
	once := func() {
		hold := s.lock(mutex)
		ctx := hold.Context(context.Background())
		waits := make(chan *redislock.Hold)
		go func() {
			hold, err := mutex.Lock(context.Background())
			if err != nil {
				t.Error(err)
			}
			waits <- hold
		}()
		s.waitForWaiter()
		s.is(hold.Unlock(context.Background()), nil)
		<-ctx.Done()
		s.is((<-waits).Unlock(context.Background()), nil)
	}
	once()
	before := runtime.NumGoroutine()
	for range make([]struct{}, 50) {
		once()
	}
	s.waitFor("the goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
	s.isFree()
}

// As a SET of the application's does, or a restore. It is no lock any more.
func TestAKeyThatSomethingElseLiesAtIsALoss(t *testing.T) {
	s := newStage(t)
	ctx := context.Background()
	s.do("DEL", s.key+":2")
	mutex := redislock.New(s.pool, s.key+":2", s.key)
	for name, use := range map[string]func(*redislock.Hold){
		"renewal": func(hold *redislock.Hold) {
			work := hold.Context(ctx)
			<-work.Done()
			if cause := context.Cause(work); cause != redislock.ErrLost {
				t.Error("the time was over, and not the server said so:", cause)
			}
		},
		"check": func(hold *redislock.Hold) {
			if held, err := hold.Check(ctx); held || err != nil {
				t.Error(held, err)
			}
		},
		"unlock": func(*redislock.Hold) {},
	} {
		mutex.Lease = time.Minute
		if name == "renewal" {
			mutex.Lease = 3 * time.Second
		}
		hold := s.lock(mutex)
		s.do("DEL", s.key+":2")
		s.do("SET", s.key+":2", "x")
		use(hold)
		s.is(hold.Unlock(ctx), redislock.ErrLost)
		if !hold.Lost() {
			t.Error(name, "not lost")
		}
		s.isFree() // the other key
		s.do("DEL", s.key+":2")
	}
}

// Otherwise nobody learns that the helper's user lacks a right.
func TestALossSaysWhyTheRenewalFailed(t *testing.T) {
	s := newStage(t)
	s.do("ACL", "SETUSER", "norenewal", "reset", "on", ">p", "~*", "+@all", "-lock.extend")
	defer s.do("ACL", "DELUSER", "norenewal")
	dial := s.pool.DialContext
	s.pool.DialContext = func(ctx context.Context) (redis.Conn, error) {
		conn, err := dial(ctx)
		if err == nil {
			_, err = conn.Do("AUTH", "norenewal", "p")
		}
		return conn, err
	}
	mutex := redislock.New(s.pool, s.key)
	mutex.Lease = time.Second
	for _, listens := range []bool{true, false} {
		err := mutex.Do(context.Background(), func(ctx context.Context, hold *redislock.Hold) error {
			<-ctx.Done()
			if !hold.Lost() {
				t.Error("not lost")
			}
			_, err := hold.Guard(ctx, "PING")
			for _, err := range []error{context.Cause(ctx), err} {
				s.is(err, redislock.ErrLost)
				if !strings.Contains(err.Error(), "NOPERM") {
					t.Error(err)
				}
			}
			if listens {
				return context.Cause(ctx)
			}
			return nil
		})
		s.is(err, redislock.ErrLost)
		if strings.Count(err.Error(), "NOPERM") != 1 || !strings.Contains(err.Error(), s.key) {
			t.Error(err)
		}
	}
}

// The server is there, so a single try is not to fail.
func TestTryLockOutlivesTheIdleConnectionsOfThePool(t *testing.T) {
	s := newStage(t)
	ctx := context.Background()
	mutex := redislock.New(s.pool, s.key)
	for range make([]struct{}, 3) {
		s.is(s.lock(mutex).Unlock(ctx), nil)
		s.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		hold, err := mutex.TryLock(ctx)
		s.is(err, nil)
		s.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		_, err = mutex.TryLock(ctx)
		s.is(err, redislock.ErrNotAcquired)
		s.is(hold.Unlock(ctx), nil)
	}
}
