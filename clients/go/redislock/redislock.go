// SPDX-License-Identifier: MIT

// Package redislock holds locks of the module redis_lock, in Redis or Valkey, through redigo.
//
//	mutex := redislock.New(pool, "report")
//	err := mutex.Do(ctx, func(ctx context.Context, hold *redislock.Hold) error {
//		return write(ctx, hold.Fence())
//	})
//
// A [Mutex] says which lock, and how it is taken. Each acquisition is a [Hold] of its own, and excludes all others,
// those of the same process too: it is not re-entrant. While a Hold lasts, a goroutine renews its lease. If the lock is
// lost all the same, the contexts that [Hold.Context] made are cancelled, and [context.Cause] of them is [ErrLost].
//
// A lease bounds how long the lock of a process that died stays taken. So a process that was stopped for longer may
// believe for a moment that it holds a lock that is another's by then. What must not happen even then belongs behind
// the fence: see [Hold.Fence] and [Hold.Guard].
package redislock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Errors are to be asked about with [errors.Is], since their texts name the lock: redislock: "report" not acquired.
var (
	// ErrNotAcquired says that others had the lock, or stood before this request, until the wait was over.
	ErrNotAcquired = errors.New("redislock: not acquired")
	// ErrLost says that the lock ended before it was given back: its lease was over, somebody broke it, or its key is
	// gone. If renewals failed until the lease was over, the error wraps ErrLost and why they failed.
	ErrLost = errors.New("redislock: lost")
	// ErrUnlocked says that the Hold was given back before.
	ErrUnlocked = errors.New("redislock: unlocked already")
	// ErrDeadlock says that waiting would deadlock: it would close a cycle of owners. The message shows the cycle. The
	// only way out is to give back what one holds, and to begin again.
	ErrDeadlock = errors.New("redislock: deadlock")
	// ErrInvalid says that a Mutex has a field that makes no sense, or that an owner asked for a key twice.
	ErrInvalid = errors.New("redislock: invalid")
)

// NoLimit as the Wait of a Mutex lets Lock wait as long as it takes.
const NoLimit time.Duration = -1

const (
	leaseDefault = 30 * time.Second
	leaseMin     = time.Second
	requestLimit = 5 * time.Second  // for a request, and the connection that it needs
	slice        = 3 * time.Second  // a wait is made of requests that wait for so long
	sliceGrace   = 2 * time.Second  // for the reply to one of them
	queue        = 10 * time.Second // how long the server keeps the place between two of them
	leaveGrace   = time.Second      // for the reply to a request that RELEASE has ended
	leaveLimit   = 3 * time.Second  // how long a caller that gives up waits until the server knows of it
	unlockGrace  = time.Second      // how long Unlock outlives its context
	backoffMin   = 100 * time.Millisecond
	backoffMax   = time.Second
	hopsMax      = 5             // how often in a row MOVED is followed
	prefix       = "redislock: " // of the package's own errors
	tick         = time.Second   // timers stand still in suspend, so a renewer looks at the clock once in a while
)

// errTimeout is a connection error: the server may have done what it was asked, or may do it still.
var errTimeout = fmt.Errorf("redislock: no reply in time: %w", os.ErrDeadlineExceeded)

// A Mutex says which lock is taken, and how. It holds nothing itself: any number of goroutines may use it at the same
// time, and none may change its fields meanwhile. Zero is a good value of every field but Pool and Keys.
type Mutex struct {
	// Pool leads to the server of the lock. A request that waits has a connection of its own, which the Pool dials
	// and does not count. So has any request while all of MaxActive are in use.
	Pool *redis.Pool
	// Keys name the lock. Several are taken in one step, all or none; in a cluster they need a common hash tag.
	Keys []string
	// Lease is how long the lock stays taken after the process has died, at least 1 s. Zero means 30 s. It is no
	// limit for the work: the lease is renewed after each third of it.
	Lease time.Duration
	// Wait limits how long Lock waits. Zero tries once, as TryLock does. New and NewSemaphore set NoLimit: then the
	// context of Lock alone limits it, and a server that is down looks like a long wait.
	Wait time.Duration
	// Shared takes the lock together with others that do the same, as a reader.
	Shared bool
	// Take is how many shares of a semaphore to take. Zero means one.
	Take uint32
	// Note is a text for people, which LOCK.INFO and LOCK.LOG show.
	Note string
	// Within is the Hold inside of which this lock is taken, by the same goroutine. Both have one owner then, so that
	// the server sees cycles of owners. Where it is possible, take several Keys at once instead.
	Within *Hold
	// Node returns the pool of the cluster's node with this address (host:port), so that MOVED is followed. Without
	// it, or if it returns nil, MOVED is an error that is asked again as long as the wait lasts.
	Node func(address string) *redis.Pool

	semaphore bool
	limit     uint32
}

// New returns a Mutex for a key, or for several that are taken in one step. Set its fields before its first use.
func New(pool *redis.Pool, keys ...string) *Mutex {
	return &Mutex{Pool: pool, Keys: keys, Wait: NoLimit}
}

// NewSemaphore returns a Mutex that several may hold: all together at most limit shares of it.
func NewSemaphore(pool *redis.Pool, key string, limit uint32) *Mutex {
	return &Mutex{Pool: pool, Keys: []string{key}, Wait: NoLimit, semaphore: true, limit: limit}
}

// Do waits for the lock, calls f, and gives the lock back, also when f panics. The context that f gets is cancelled
// when the lock is lost. Do returns the error of f, joined with what came of giving back: [ErrLost] if the lock was
// lost.
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context, hold *Hold) error) (err error) {
	hold, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if after := hold.Unlock(ctx); err == nil || err == hold.loss() && errors.Is(after, ErrLost) {
			err = after
		} else if after != nil && !errors.Is(err, errors.Unwrap(after)) {
			err = errors.Join(err, after)
		}
	}()
	return f(hold.Context(ctx), hold)
}

// Lock waits for the lock in the server's queue: first come, first served. It fails with [ErrNotAcquired] when Wait
// is over, with the error of ctx when that is over, with [ErrDeadlock] or [ErrInvalid], or with what the server said.
// Errors that pass, such as lost connections, restarts and failovers, are asked again as long as the wait lasts; the
// last one is returned when it is over.
//
// ctx is for the wait alone. A Hold outlives it, until [Hold.Unlock].
func (m *Mutex) Lock(ctx context.Context) (*Hold, error) { return m.acquire(ctx, m.Wait != 0) }

// TryLock asks once, and fails with [ErrNotAcquired] if the lock is taken or others wait for it.
func (m *Mutex) TryLock(ctx context.Context) (*Hold, error) { return m.acquire(ctx, false) }

func (m *Mutex) acquire(ctx context.Context, wait bool) (*Hold, error) {
	if err := m.invalid(); err != nil {
		return nil, m.about(err)
	}
	if err := ctx.Err(); err != nil {
		return nil, m.about(err)
	}
	owner := newOwner()
	if m.Within != nil {
		owner = m.Within.owner
	}
	if !owner.enter(m.Pool, m.Keys) {
		return nil, m.about(fmt.Errorf("%w: the owner has a key already, or has asked for it", ErrInvalid))
	}
	h := &Hold{mutex: *m, owner: owner, server: &server{pool: m.Pool, home: m.Pool, node: m.Node}}
	h.mutex.Keys = append([]string(nil), m.Keys...)
	if m.Lease == 0 {
		h.mutex.Lease = leaseDefault
	}
	h.ctx, h.end = context.WithCancelCause(context.Background())
	a := &acquisition{Hold: h}
	defer a.hangUp()
	if err := a.run(ctx, wait); err != nil {
		h.end(err)
		return nil, m.about(err)
	}
	go h.renew()
	return h, nil
}

func (m *Mutex) invalid() error {
	keys := make(map[string]bool, len(m.Keys))
	for _, key := range m.Keys {
		keys[key] = true
	}
	for _, is := range []struct {
		so   bool
		what string
	}{
		{m.Pool == nil || m.Pool.DialContext == nil && m.Pool.Dial == nil, "Pool can dial nothing"},
		{len(keys) == 0, "Keys are missing"},
		{len(keys) < len(m.Keys), "one of the Keys is given twice"},
		{m.Lease != 0 && m.Lease < leaseMin, "Lease is shorter than 1 s"},
		{m.Wait < 0 && m.Wait != NoLimit, "Wait is negative"},
		{m.semaphore && (m.Shared || len(keys) > 1), "a semaphore has one key, and is not Shared"},
		{m.semaphore && m.limit == 0, "the limit of a semaphore is at least 1"},
		{m.Take > m.limit, "Take is more than there is"},
		{m.Within != nil && context.Cause(m.Within.ctx) != nil, "Within is not held any more"},
	} {
		if is.so {
			return fmt.Errorf("%w: %s", ErrInvalid, is.what)
		}
	}
	return nil
}

// about returns an error whose text names the lock, and which is err for errors.Is and errors.As.
func (m *Mutex) about(err error) error {
	if err == nil || len(m.Keys) == 0 {
		return err
	}
	text, own := strings.CutPrefix(err.Error(), prefix)
	if !own {
		text = ": " + text
	} else {
		text = " " + text
	}
	return &lockError{err, prefix + strings.Trim(fmt.Sprintf("%q", m.Keys), "[]") + text}
}

type lockError struct {
	is   error
	text string
}

func (e *lockError) Error() string { return e.text }
func (e *lockError) Unwrap() error { return e.is }

func (m *Mutex) mode() string {
	if m.Shared || m.semaphore {
		return "READ"
	}
	return "WRITE"
}

// --- an acquisition ---

type acquisition struct {
	*Hold
	line    *line         // for requests that wait; nil before the first one, and after an error
	again   bool          // it is the second request of TryLock
	pending <-chan answer // of the request that has no answer yet; nil if there is none
}

// run returns nil when the lock was acquired. Else the owner has neither the lock nor a place in the queue.
func (a *acquisition) run(ctx context.Context, wait bool) error {
	var end time.Duration // of the wait, if it has one
	if a.mutex.Wait > 0 {
		end = now() + a.mutex.Wait
	}
	// Most locks are free, so the first request takes a place in the queue, but does not wait.
	err := a.ask(ctx, 0, wait)
	for delay := backoff(0); wait && err != nil && ctx.Err() == nil; {
		if errors.Is(err, ErrNotAcquired) {
			delay = 0
		} else if passes(err) {
			sleep(ctx, delay.next(), end)
		} else {
			break
		}
		if end > 0 && now() >= end {
			break
		}
		err = a.wait(ctx, end)
	}
	if !wait && breaks(err) && ctx.Err() == nil {
		// The connections of the pool may be dead, though the server is not.
		a.again = true
		err = a.ask(ctx, 0, wait)
	}
	if err == nil {
		return nil
	}
	if wait || a.again || a.pending != nil || !errors.Is(err, ErrNotAcquired) && !isReply(err) {
		a.leave()
	} else {
		a.owner.exit(a.mutex.Pool, a.mutex.Keys) // the one request left no trace
	}
	if over := ctx.Err(); over != nil && !errors.Is(err, over) {
		if errors.Is(err, ErrNotAcquired) {
			return over
		}
		return fmt.Errorf("%w: %w", over, err)
	}
	return err
}

// wait sends one request that waits.
func (a *acquisition) wait(ctx context.Context, end time.Duration) error {
	if a.line == nil {
		a.line = newLine(a.server)
		if got := a.server.call(ctx, requestLimit, a.line.connect); got.err != nil {
			a.hangUp()
			return got.err
		}
	}
	block := slice
	if end > 0 {
		block = max(min(slice, end-now()), time.Millisecond)
	}
	return a.ask(ctx, block, true)
}

// ask sends one request, and returns nil if it acquired the lock.
func (a *acquisition) ask(ctx context.Context, block time.Duration, wait bool) error {
	connect, limit := a.server.pooled, requestLimit
	if a.again {
		connect = a.server.dialled
	}
	if wait {
		limit = block + sliceGrace
	}
	if block > 0 {
		connect = a.line.connect
	}
	a.pending = a.server.send(ctx, limit, connect, a.request(block, wait))
	got := await(ctx, limit, a.pending)
	if ctx.Err() != nil && got.open {
		return got.err
	}
	a.pending = nil
	var fences []int64
	if got.err == nil {
		fences, got.err = fencesOf(got.replies[0])
	}
	moved := a.server.redirect(got.err)
	switch {
	case got.err != nil:
		a.hangUp() // a new connection may lead to another server, after a failover
		if moved && block == 0 {
			return a.ask(ctx, 0, wait)
		}
		if strings.HasPrefix(got.err.Error(), "DEADLOCK ") {
			return fmt.Errorf("%w: %w", ErrDeadlock, got.err)
		}
		return got.err
	case fences == nil:
		// Behind a proxy that lets no request wait, asking again at once would be a tight loop.
		sleep(ctx, got.sent+block-now(), 0)
		return ErrNotAcquired
	}
	a.fences = fences
	a.validate(got.sent)
	if block > 0 {
		// The moment of the grant is not known, so the lease begins anew.
		if held, err := a.extend(ctx, requestLimit, connect); err != nil {
			a.hangUp()
			return err
		} else if !held {
			return ErrNotAcquired
		}
	}
	if now() >= time.Duration(a.until.Load()) {
		return errTimeout
	}
	return nil
}

// request returns the request to acquire. RETRY lets it arrive twice.
func (a *acquisition) request(block time.Duration, wait bool) request {
	var r request
	take, owner := max(a.mutex.Take, 1), a.owner.name
	switch {
	case len(a.mutex.Keys) > 1:
		r = request{"LOCK.MACQUIRE", redis.Args{len(a.mutex.Keys)}.AddFlat(a.mutex.Keys).Add(owner, a.mutex.mode())}
	case a.mutex.semaphore:
		r = request{"LOCK.SHARE", redis.Args{a.mutex.Keys[0], owner, a.mutex.limit, "TAKE", take}}
	case a.mutex.Shared:
		r = request{"LOCK.RW", redis.Args{a.mutex.Keys[0], owner, "READ"}}
	default:
		r = request{"LOCK.ACQUIRE", redis.Args{a.mutex.Keys[0], owner}}
	}
	r.args = r.args.Add("PX", a.mutex.Lease.Milliseconds(), "RETRY", take)
	if block > 0 {
		r.args = r.args.Add("BLOCK", block.Milliseconds())
	}
	if wait {
		r.args = r.args.Add("QUEUE", queue.Milliseconds())
	}
	if a.mutex.Note != "" {
		r.args = r.args.Add("NOTE", a.mutex.Note)
	}
	return r
}

// leave gives up the place in the queue, and the lock if it was granted in this moment. It goes on in the background
// if the server is slow.
func (a *acquisition) leave() {
	done := make(chan struct{})
	line, pending := a.line, a.pending
	a.line = nil
	go func() {
		defer close(done)
		if line != nil {
			defer line.hangUp()
		}
		if a.withdraw(line, pending) == nil {
			a.owner.exit(a.mutex.Pool, a.mutex.Keys)
		}
	}()
	select {
	case <-done:
	case <-time.After(leaveLimit):
	}
}

func (a *acquisition) withdraw(line *line, pending <-chan answer) error {
	release := request{"LOCK.RELEASE", redis.Args{a.mutex.Keys[0], a.owner.name, "ALL"}}
	if len(a.mutex.Keys) > 1 {
		release = request{"LOCK.MRELEASE", redis.Args{len(a.mutex.Keys)}.AddFlat(a.mutex.Keys).Add(a.owner.name, "ALL")}
	}
	got := a.server.callTwice(release)
	if pending == nil {
		return got.err
	}
	// A request that waits is answered null when its owner releases.
	last := await(context.Background(), leaveGrace, pending)
	if line != nil && last.err == nil && last.replies[0] == nil {
		return got.err
	}
	// The server may have read the request after the release.
	if line != nil {
		line.hangUp()
	} else if last.open {
		<-pending
	}
	return a.server.callTwice(release).err
}

// hangUp ends the line, if there is one.
func (a *acquisition) hangUp() {
	if a.line != nil {
		a.line.hangUp()
		a.line = nil
	}
}

// A line is a connection for requests that wait. It may be hung up at any time.
type line struct {
	server *server
	over   context.Context
	hangUp context.CancelFunc
	conn   redis.ConnWithTimeout // dialled by the first request
}

func newLine(s *server) *line {
	l := &line{server: s}
	l.over, l.hangUp = context.WithCancel(context.Background())
	return l
}

func (l *line) connect(ctx context.Context) (redis.Conn, error) {
	if l.conn == nil {
		conn, err := l.server.dialled(ctx)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(l.over, func() { conn.Close() })
		var ok bool
		if l.conn, ok = conn.(redis.ConnWithTimeout); !ok {
			return nil, fmt.Errorf("%w: connections of Pool are no redis.ConnWithTimeout", ErrInvalid)
		}
	}
	return kept{l.conn}, nil
}

// kept is a connection that is not closed after a request.
type kept struct{ redis.ConnWithTimeout }

func (kept) Close() error { return nil }

// --- a hold ---

// A Hold is a lock that was acquired. Its methods may be called by several goroutines.
type Hold struct {
	mutex  Mutex // a copy of what was asked for
	owner  *owner
	server *server
	fences []int64
	until  atomic.Int64 // what is known of the lease ends at this time of the clock
	ctx    context.Context
	end    context.CancelCauseFunc
	undone atomic.Bool // Unlock was called
	lost   atomic.Bool // Unlock said so
	// why renewals fail, if they do
	trouble atomic.Pointer[error]
}

// Context returns a context for the work under the lock. It is cancelled with parent, when the lock is lost (then
// [context.Cause] is [ErrLost]), and when it is given back ([ErrUnlocked]).
func (h *Hold) Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	stop := context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}

// Lost says whether the lock was lost before it was given back. It asks no server: [Hold.Check] does.
func (h *Hold) Lost() bool {
	if now() >= time.Duration(h.until.Load()) {
		err := ErrLost
		if trouble := h.trouble.Load(); trouble != nil {
			err = fmt.Errorf("%w: it could not be renewed: %w", ErrLost, *trouble)
		}
		h.end(err) // of several causes the first one counts
	}
	return errors.Is(context.Cause(h.ctx), ErrLost) || h.lost.Load()
}

// loss is the error of a lock that is lost.
func (h *Hold) loss() error {
	if cause := context.Cause(h.ctx); errors.Is(cause, ErrLost) {
		return cause
	}
	return ErrLost
}

// Fence is a number that is higher for each later holder of the lock. Send it along with what you do under the lock,
// and let the resource refuse a number that is lower than one it has seen. Of several keys it is the fence of the
// first.
func (h *Hold) Fence() int64 { return h.fences[0] }

// Fences returns the fence of each of the Keys.
func (h *Hold) Fences() []int64 { return append([]int64(nil), h.fences...) }

// Owner is the name by which the server knows the holder: in LOCK.INFO, LOCK.LOG, and in scripts that call
// LOCK.CHECK.
func (h *Hold) Owner() string { return h.owner.name }

// Check asks the server whether the lock is still held: all Keys of it, under their fences. What it says is true at
// the moment of the reply's making. To write under the lock use [Hold.Guard].
func (h *Hold) Check(ctx context.Context) (bool, error) {
	if h.Lost() || h.undone.Load() {
		return false, nil
	}
	got := h.server.call(ctx, requestLimit, h.server.pooled, h.requests("LOCK.CHECK", h.mutex.mode())...)
	if got.null() {
		h.end(ErrLost)
		return false, nil
	}
	return got.err == nil, h.mutex.about(got.err)
}

// Guard runs a command in Redis if the lock is held for writing at that moment, under its fence, and returns the
// reply. If not, nothing is run and the error is [ErrLost]. The key of the command needs the hash tag of the lock in
// a cluster. Of several Keys it is the first that must be held. An error of the connection, or of ctx, leaves open
// whether the command was run.
func (h *Hold) Guard(ctx context.Context, command string, args ...any) (any, error) {
	switch {
	case h.mutex.mode() != "WRITE":
		err := fmt.Errorf("%w: Guard needs a lock that is not shared: use LOCK.CHECK in a script", ErrInvalid)
		return nil, h.mutex.about(err)
	case h.undone.Load():
		return nil, h.mutex.about(ErrUnlocked)
	case h.Lost():
		return nil, h.mutex.about(h.loss())
	}
	guarded := append(redis.Args{h.mutex.Keys[0], h.owner.name, h.fences[0], command}, args...)
	got := h.server.call(ctx, h.mutex.Lease, h.server.pooled, request{"LOCK.GUARD", guarded})
	if got.null() {
		h.end(ErrLost)
		return nil, h.mutex.about(ErrLost)
	} else if got.err != nil {
		return nil, got.err
	}
	both, err := redis.Values(got.replies[0], nil) // the fence, and the reply of the command
	if err == nil && len(both) != 2 {
		err = fmt.Errorf("redislock: LOCK.GUARD replied %v", both)
	}
	if err != nil {
		return nil, err
	}
	return both[1], nil
}

// Unlock gives the lock back, and ends the contexts of the Hold before. The error is [ErrLost] if the lock was lost.
// If the server cannot be reached, the lock stays taken until its lease ends.
//
// ctx does not keep Unlock from it: if ctx is over, Unlock waits a second more for the reply, and the work goes on in
// the background.
func (h *Hold) Unlock(ctx context.Context) error {
	if h.undone.Swap(true) {
		return h.mutex.about(ErrUnlocked)
	}
	h.Lost() // looks at the clock
	h.end(ErrUnlocked)
	done := make(chan error, 1)
	go func() { done <- h.release() }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		case <-time.After(unlockGrace):
			err = ctx.Err()
		}
	}
	if errors.Is(err, ErrLost) {
		h.lost.Store(true)
	}
	if h.Lost() {
		err = h.loss()
	}
	return h.mutex.about(err)
}

func (h *Hold) release() error {
	got := h.server.callTwice(h.requests("LOCK.RELEASE", "ALL")...)
	if got.err != nil {
		return fmt.Errorf("redislock: not given back: %w", got.err)
	}
	h.owner.exit(h.mutex.Pool, h.mutex.Keys)
	// If it had to be sent twice, the first one may have given it back.
	if got.null() && !got.repeated {
		return ErrLost
	}
	return nil
}

// renew extends the lease after each third of it, until the Hold ends.
func (h *Hold) renew() {
	var delay backoff
	next := time.Duration(h.until.Load()) - h.mutex.Lease*2/3
	for !h.Lost() && h.ctx.Err() == nil {
		until := time.Duration(h.until.Load())
		if left := min(next, until) - now(); left > 0 {
			sleep(h.ctx, min(left, tick), 0)
			continue
		}
		connect, sent := h.server.pooled, now()
		if delay > 0 {
			connect = h.server.dialled // those of the pool may all be dead
		}
		held, err := h.extend(h.ctx, min(h.mutex.Lease/6, until-sent), connect)
		switch {
		case err != nil:
			next = now() + delay.next()
			// The last one may have had no time, which says less.
			if h.trouble.Load() == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
				h.trouble.Store(&err)
			}
		case held:
			delay, next = 0, sent+h.mutex.Lease/3
			h.trouble.Store(nil)
		default:
			h.end(ErrLost)
		}
	}
}

// extend returns false if the lock is lost.
func (h *Hold) extend(ctx context.Context, limit time.Duration, connect connector) (bool, error) {
	got := h.server.call(ctx, limit, connect, h.requests("LOCK.EXTEND", "PX", h.mutex.Lease.Milliseconds())...)
	if got.null() {
		return false, nil
	}
	if got.err == nil {
		h.validate(got.sent)
	}
	return true, got.err
}

// validate notes how long the lock is surely held: the lease began after the request was sent. What is taken off is
// for clocks that do not run alike.
func (h *Hold) validate(sent time.Duration) {
	h.until.Store(int64(sent + h.mutex.Lease - max(h.mutex.Lease/100, 100*time.Millisecond)))
}

// requests returns a command for each key, under its fence.
func (h *Hold) requests(command string, args ...any) []request {
	all := make([]request, len(h.mutex.Keys))
	for i, key := range h.mutex.Keys {
		all[i] = request{command, append(redis.Args{key, h.owner.name}, args...).Add("FENCE", h.fences[i])}
	}
	return all
}
