// Package redislock holds locks of the module redis_lock, in Redis or Valkey, through redigo.
//
//	mutex := redislock.New(pool, "report")
//	err := mutex.Do(ctx, func(ctx context.Context, hold *redislock.Hold) error {
//		return write(ctx, hold.Fence())
//	})
//
// A [Mutex] says which lock, and how it is taken. Each acquisition is a [Hold] of its own, and excludes all others, those
// of the same process too. While a Hold lasts, a goroutine renews its lease. If the lock is lost all the same, the
// contexts that [Hold.Context] made are cancelled, and [context.Cause] of them is [ErrLost].
//
// A lease bounds how long the lock of a process that died stays taken. So a process that was stopped for longer may
// believe for a moment that it holds a lock that is another's by then. What must not happen even then belongs behind the
// fence: see [Hold.Fence] and [Hold.Guard].
package redislock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"
)

var (
	// ErrNotAcquired says that others had the lock, or stood before this request, until the wait was over.
	ErrNotAcquired = errors.New("redislock: not acquired")
	// ErrLost says that the lock ended before it was given back: its lease was over, somebody broke it, or its key is
	// gone.
	ErrLost = errors.New("redislock: lost")
	// ErrUnlocked says that the Hold was given back before.
	ErrUnlocked = errors.New("redislock: unlocked already")
	// ErrDeadlock says that waiting would close a circle of owners that wait for each other. The message shows the
	// circle. The only way out is to give back what one holds, and to begin again.
	ErrDeadlock = errors.New("redislock: deadlock")
	// ErrInvalid says that a Mutex has a field that makes no sense, or that an owner asked for a key twice.
	ErrInvalid = errors.New("redislock: invalid")
)

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
	hopsMax      = 5
	tick         = time.Second // timers stand still in suspend, so a renewer looks at the clock once in a while
)

// errTimeout is a connection error: the server may have done what it was asked, or may do it still.
var errTimeout = fmt.Errorf("redislock: no reply in time: %w", os.ErrDeadlineExceeded)

// A Mutex says which lock is taken, and how. It holds nothing itself: any number of goroutines may use it at the same
// time, and none may change its fields meanwhile. Zero is a good value of every field but Pool and Keys.
type Mutex struct {
	// Pool leads to the server of the lock. A request that waits has a connection of its own, which the Pool dials and
	// does not count. So has a renewal for which the Pool had none.
	Pool *redis.Pool
	// Keys name the lock. Several are taken in one step, all or none; in a cluster they need a common hash tag.
	Keys []string
	// Lease is how long the lock stays taken after the process has died, at least 1 s. Zero means 30 s. It is no limit
	// for the work: the lease is renewed after each third of it.
	Lease time.Duration
	// Wait limits how long Lock waits. Zero means as long as it takes. The context of Lock limits it, too.
	Wait time.Duration
	// Shared takes the lock together with others that do the same, as a reader.
	Shared bool
	// Take is how many shares of a semaphore to take. Zero means one.
	Take uint32
	// Note is a text for people, which LOCK.INFO and LOCK.LOG show.
	Note string
	// Within is the Hold inside of which this lock is taken, by the same goroutine. Both have one owner then, so that
	// the server sees circles of waiting owners. Where it is possible, take several Keys at once instead.
	Within *Hold
	// Node returns the pool of the cluster's node with this address (host:port), so that MOVED is followed. Without it
	// MOVED is an error that is asked again as long as the wait lasts.
	Node func(address string) *redis.Pool

	semaphore bool
	limit     uint32
}

// New returns a Mutex for a key, or for several that are taken in one step. Set its fields before its first use.
func New(pool *redis.Pool, keys ...string) *Mutex {
	return &Mutex{Pool: pool, Keys: keys}
}

// NewSemaphore returns a Mutex that several may hold: all together at most limit shares of it.
func NewSemaphore(pool *redis.Pool, key string, limit uint32) *Mutex {
	return &Mutex{Pool: pool, Keys: []string{key}, semaphore: true, limit: limit}
}

// Do waits for the lock, calls f, and gives the lock back, also when f panics. The context that f gets is cancelled when
// the lock is lost. Do returns the error of f, joined with what came of giving back: [ErrLost] if the lock was lost.
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context, hold *Hold) error) (err error) {
	hold, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if after := hold.Unlock(ctx); !errors.Is(err, after) {
			err = errors.Join(err, after)
		}
	}()
	return f(hold.Context(ctx), hold)
}

// Lock waits for the lock in the server's queue: first come, first served. It fails with [ErrNotAcquired] when Wait is
// over, with the error of ctx when that is over, with [ErrDeadlock] or [ErrInvalid], or with what the server said. Errors
// that pass, such as lost connections, restarts and failovers, are asked again as long as the wait lasts; the last one is
// returned when it is over.
//
// ctx is for the wait alone. A Hold outlives it, until [Hold.Unlock].
func (m *Mutex) Lock(ctx context.Context) (*Hold, error) { return m.acquire(ctx, true) }

// TryLock asks once, and fails with [ErrNotAcquired] if the lock is taken or others wait for it.
func (m *Mutex) TryLock(ctx context.Context) (*Hold, error) { return m.acquire(ctx, false) }

func (m *Mutex) acquire(ctx context.Context, wait bool) (*Hold, error) {
	if err := m.invalid(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	owner := newOwner()
	if m.Within != nil {
		owner = m.Within.owner
	}
	if !owner.enter(m.Pool, m.Keys) {
		return nil, fmt.Errorf("%w: the owner has one of the keys %q already, or has asked for it", ErrInvalid, m.Keys)
	}
	hold := &Hold{
		server: &server{pool: m.Pool, node: m.Node},
		pool:   m.Pool,
		keys:   append([]string(nil), m.Keys...),
		owner:  owner,
		mode:   "WRITE",
		lease:  m.Lease,
	}
	if m.Shared || m.semaphore {
		hold.mode = "READ"
	}
	if hold.lease == 0 {
		hold.lease = leaseDefault
	}
	hold.ctx, hold.end = context.WithCancelCause(context.Background())
	if err := (&acquisition{Mutex: m, hold: hold}).run(ctx, wait); err != nil {
		hold.end(err)
		return nil, err
	}
	go hold.renew()
	return hold, nil
}

func (m *Mutex) invalid() error {
	seen := make(map[string]bool, len(m.Keys))
	for _, key := range m.Keys {
		seen[key] = true
	}
	var what string
	switch {
	case m.Pool == nil:
		what = "Pool is missing"
	case len(m.Keys) == 0:
		what = "Keys are missing"
	case len(seen) < len(m.Keys):
		what = "one of the Keys is given twice"
	case m.Lease != 0 && m.Lease < leaseMin:
		what = "Lease is shorter than 1 s"
	case m.Wait < 0:
		what = "Wait is negative"
	case m.semaphore && (m.Shared || len(m.Keys) > 1):
		what = "a semaphore has one key and is not Shared"
	case m.semaphore && m.limit == 0:
		what = "the limit of a semaphore is at least 1"
	case m.Take > m.limit:
		what = "Take is more than there is"
	case m.Within != nil && context.Cause(m.Within.ctx) != nil:
		what = "Within is not held any more"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInvalid, what)
}

// --- an acquisition ---

type acquisition struct {
	*Mutex
	hold    *Hold
	conn    redis.Conn    // for the requests that wait; nil until one does, and after an error
	pending <-chan answer // of the request that was not answered yet; nil if there is none
	hops    int           // how often MOVED was followed in a row
}

// run returns nil when the lock was acquired. Else the owner has neither the lock nor a place in the queue.
func (a *acquisition) run(ctx context.Context, wait bool) error {
	var end time.Duration // of the wait, if it has one
	if a.Wait > 0 {
		end = now() + a.Wait
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
		block := slice
		if end > 0 {
			block = min(block, end-now())
		}
		if block <= 0 {
			break
		}
		if ctx.Err() == nil {
			err = a.ask(ctx, block, true)
		}
	}
	switch {
	case err == nil:
		if a.conn != nil {
			a.conn.Close()
		}
		return nil
	case wait, a.pending != nil, !errors.Is(err, ErrNotAcquired) && !isReply(err):
		a.leave()
	default: // the only request left no trace
		a.hold.owner.exit(a.Pool, a.Keys)
	}
	if over := ctx.Err(); over != nil {
		if errors.Is(err, ErrNotAcquired) || errors.Is(err, over) {
			return over
		}
		return fmt.Errorf("%w: %w", over, err)
	}
	return err
}

// ask sends one request, and returns nil if it acquired the lock. A request that waits has a connection of its own.
func (a *acquisition) ask(ctx context.Context, block time.Duration, wait bool) error {
	h, limit := a.hold, requestLimit
	if block > 0 {
		limit = block + sliceGrace
		if a.conn == nil {
			conn, err := h.server.dial(ctx, requestLimit)
			if err != nil {
				return err
			}
			a.conn = conn
		}
		pending := make(chan answer, 1)
		go func(conn redis.Conn) { pending <- exchange(ctx, conn, now()+limit, a.request(block, wait)) }(a.conn)
		a.pending = pending
	} else {
		a.pending = h.server.send(ctx, limit, false, a.request(block, wait))
	}
	got, err := await(ctx, limit, a.pending)
	if err != nil && ctx.Err() != nil {
		return err
	}
	a.pending = nil
	var fences []int64
	if err == nil {
		err = got.err
	}
	if err == nil {
		fences, err = fencesOf(got.replies[0])
	}
	if err != nil {
		if a.conn != nil {
			// A new connection may lead to another server, after a failover.
			a.conn.Close()
			a.conn = nil
		}
		if h.server.redirect(err) && a.hops < hopsMax {
			a.hops++
			return a.ask(ctx, block, wait)
		}
		if strings.HasPrefix(err.Error(), "DEADLOCK ") {
			err = fmt.Errorf("%w: %w", ErrDeadlock, err)
		}
		return err
	}
	a.hops = 0
	if fences == nil {
		// In front of a proxy that does not let requests wait, asking again at once would be a tight loop.
		sleep(ctx, got.sent+block-now(), 0)
		return ErrNotAcquired
	}
	h.fences = fences
	h.validate(got.sent)
	if block > 0 {
		// The moment of the grant is not known, so the lease begins anew.
		if held, err := h.extend(ctx, requestLimit, false); err != nil {
			return err
		} else if !held {
			return ErrNotAcquired
		}
	}
	if now() >= time.Duration(h.until.Load()) {
		return errTimeout
	}
	return nil
}

// request returns the request to acquire. RETRY makes it one that may arrive twice.
func (a *acquisition) request(block time.Duration, wait bool) request {
	var r request
	take := max(a.Take, 1)
	owner := a.hold.owner.name
	switch {
	case len(a.Keys) > 1:
		r = request{"LOCK.MACQUIRE", redis.Args{len(a.Keys)}.AddFlat(a.Keys).Add(owner, a.hold.mode)}
	case a.semaphore:
		r = request{"LOCK.SHARE", redis.Args{a.Keys[0], owner, a.limit, "TAKE", take}}
	case a.Shared:
		r = request{"LOCK.RW", redis.Args{a.Keys[0], owner, "READ"}}
	default:
		r = request{"LOCK.ACQUIRE", redis.Args{a.Keys[0], owner}}
	}
	r.args = r.args.Add("PX", a.hold.lease.Milliseconds(), "RETRY", take)
	if block > 0 {
		r.args = r.args.Add("BLOCK", max(block.Milliseconds(), 1))
	}
	if wait {
		r.args = r.args.Add("QUEUE", queue.Milliseconds())
	}
	if a.Note != "" {
		r.args = r.args.Add("NOTE", a.Note)
	}
	return r
}

// leave gives up the place in the queue, and the lock if it was granted in this moment. It goes on in the background if
// the server is slow.
func (a *acquisition) leave() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.withdraw()
	}()
	select {
	case <-done:
	case <-time.After(leaveLimit):
	}
}

func (a *acquisition) withdraw() {
	keys := redis.Args{}.AddFlat(a.Keys)
	release := request{"LOCK.RELEASE", keys.Add(a.hold.owner.name, "ALL")}
	if len(a.Keys) > 1 {
		release = request{"LOCK.MRELEASE", append(redis.Args{len(a.Keys)}, release.args...)}
	}
	// The server answers null to a request that waits when its owner releases.
	_, released := a.hold.server.callTwice(release)
	if a.pending != nil {
		var got answer
		var answered bool
		select {
		case got = <-a.pending:
			answered = true
		case <-time.After(leaveGrace):
		}
		if a.conn == nil || !answered || got.err != nil || got.replies[0] != nil {
			// The server may have read the request after the release.
			if a.conn != nil {
				a.conn.Close()
			} else if !answered {
				<-a.pending
			}
			_, released = a.hold.server.callTwice(release)
		}
	}
	if a.conn != nil {
		a.conn.Close()
	}
	if released == nil {
		a.hold.owner.exit(a.Pool, a.Keys)
	}
}

// --- a hold ---

// A Hold is a lock that was acquired. Its methods may be called by several goroutines.
type Hold struct {
	server *server
	pool   *redis.Pool // as the user gave it
	keys   []string
	owner  *owner
	mode   string
	lease  time.Duration
	fences []int64
	until  atomic.Int64 // what is known of the lease ends at this time of the clock
	ctx    context.Context
	end    context.CancelCauseFunc
	undone atomic.Bool // Unlock was called
	lost   atomic.Bool // Unlock said so
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
		h.end(ErrLost) // of several causes the first one counts
	}
	return context.Cause(h.ctx) == ErrLost || h.lost.Load()
}

// Fence is a number that is higher for each later holder of the lock. Send it along with what you do under the lock, and
// let the resource refuse a number that is lower than one it has seen. Of several keys it is the fence of the first.
func (h *Hold) Fence() int64 { return h.fences[0] }

// Fences returns the fence of each of the Keys.
func (h *Hold) Fences() []int64 { return append([]int64(nil), h.fences...) }

// Owner is the name by which the server knows the holder: in LOCK.INFO, LOCK.LOG, and in scripts that call LOCK.CHECK.
func (h *Hold) Owner() string { return h.owner.name }

// Check asks the server whether the lock is still held: all Keys of it, under their fences. What it says is true at the
// moment of the reply's making. To write under the lock use [Hold.Guard].
func (h *Hold) Check(ctx context.Context) (bool, error) {
	if h.Lost() || h.undone.Load() {
		return false, nil
	}
	got := h.server.call(ctx, requestLimit, false, h.requests("LOCK.CHECK", h.mode)...)
	if got.null() {
		h.end(ErrLost)
		return false, nil
	}
	return got.err == nil, got.err
}

// Guard runs a command in Redis if the lock is held for writing at that moment, under its fence, and returns the reply.
// If not, nothing is run and the error is [ErrLost]. The key of the command needs the hash tag of the lock in a cluster.
// Of several Keys it is the first that must be held. An error of the connection, or of ctx, leaves open whether the
// command was run.
func (h *Hold) Guard(ctx context.Context, command string, args ...any) (any, error) {
	switch {
	case h.mode != "WRITE":
		return nil, fmt.Errorf("%w: Guard needs a lock that is not shared: use LOCK.CHECK in a script", ErrInvalid)
	case h.undone.Load():
		return nil, ErrUnlocked
	case h.Lost():
		return nil, ErrLost
	}
	guarded := append(redis.Args{h.keys[0], h.owner.name, h.fences[0], command}, args...)
	got := h.server.call(ctx, h.lease, false, request{"LOCK.GUARD", guarded})
	if got.null() {
		h.end(ErrLost)
		return nil, ErrLost
	}
	reply, err := redis.Values(got.first())
	if err != nil {
		return nil, err
	}
	if len(reply) != 2 {
		return nil, fmt.Errorf("redislock: unexpected reply to LOCK.GUARD: %v", reply)
	}
	return reply[1], nil
}

// Unlock gives the lock back, and ends the contexts of the Hold before. The error is [ErrLost] if the lock was lost. If
// the server cannot be reached, the lock stays taken until its lease ends.
//
// ctx does not keep Unlock from it: if ctx is over, Unlock waits a second more for the reply, and the work goes on in
// the background.
func (h *Hold) Unlock(ctx context.Context) error {
	if h.undone.Swap(true) {
		return ErrUnlocked
	}
	lost := h.Lost()
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
	if lost || errors.Is(err, ErrLost) {
		h.lost.Store(true)
		return ErrLost
	}
	return err
}

func (h *Hold) release() error {
	got, err := h.server.callTwice(h.requests("LOCK.RELEASE", "ALL")...)
	if err != nil {
		return fmt.Errorf("redislock: not given back: %w", err)
	}
	h.owner.exit(h.pool, h.keys)
	// If it had to be sent twice, the first one may have given it back.
	if got.null() && !got.repeated {
		return ErrLost
	}
	return nil
}

// renew extends the lease after each third of it, until the Hold ends.
func (h *Hold) renew() {
	var delay backoff
	next := now() + h.lease/3
	for !h.Lost() && h.ctx.Err() == nil {
		until := time.Duration(h.until.Load())
		if left := min(next, until) - now(); left > 0 {
			sleep(h.ctx, min(left, tick), 0)
			continue
		}
		sent := now()
		// After an error it needs another connection: idle ones may all be dead.
		held, err := h.extend(h.ctx, min(h.lease/6, until-sent), delay > 0)
		switch {
		case err != nil:
			next = now() + delay.next()
		case held:
			delay, next = 0, sent+h.lease/3
		default:
			h.end(ErrLost)
		}
	}
}

// extend returns false if the lock is lost.
func (h *Hold) extend(ctx context.Context, limit time.Duration, fresh bool) (bool, error) {
	got := h.server.call(ctx, limit, fresh, h.requests("LOCK.EXTEND", "PX", h.lease.Milliseconds())...)
	if got.null() {
		return false, nil
	}
	if got.err == nil {
		h.validate(got.sent)
	}
	return true, got.err
}

// validate notes how long the lock is surely held: the lease began after the request was sent. What is taken off is for
// clocks that do not run alike.
func (h *Hold) validate(sent time.Duration) {
	h.until.Store(int64(sent + h.lease - max(h.lease/100, 100*time.Millisecond)))
}

// requests returns a command for each key, under its fence.
func (h *Hold) requests(command string, args ...any) []request {
	all := make([]request, len(h.keys))
	for i, key := range h.keys {
		all[i] = request{command, append(redis.Args{key, h.owner.name}, args...).Add("FENCE", h.fences[i])}
	}
	return all
}

// --- owners ---

// An owner is what the server takes for one thread of control: an outermost acquisition, and those within.
type owner struct {
	name string
	mu   sync.Mutex
	keys map[ownedKey]bool // that it has, or asked for
}

type ownedKey struct {
	pool *redis.Pool
	key  string
}

func newOwner() *owner {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		panic("redislock: no random numbers: " + err.Error())
	}
	name := fmt.Sprintf("%.64s:%d:%x", host, os.Getpid(), random)
	return &owner{name: name, keys: map[ownedKey]bool{}}
}

// enter returns false if the owner has one of the keys already. A key that was asked for counts until the server has
// answered that it was given back.
func (o *owner) enter(pool *redis.Pool, keys []string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, key := range keys {
		if o.keys[ownedKey{pool, key}] {
			return false
		}
	}
	for _, key := range keys {
		o.keys[ownedKey{pool, key}] = true
	}
	return true
}

func (o *owner) exit(pool *redis.Pool, keys []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, key := range keys {
		delete(o.keys, ownedKey{pool, key})
	}
}

// --- requests ---

type request struct {
	command string
	args    redis.Args
}

// An answer has a reply for each request, or an error. With a redis.Error it has both.
type answer struct {
	replies  []any
	sent     time.Duration // when the requests were sent
	repeated bool
	err      error
}

// null says whether one of the replies is null.
func (a answer) null() bool {
	for _, reply := range a.replies {
		if reply == nil {
			return true
		}
	}
	return false
}

func (a answer) first() (any, error) {
	if a.err != nil {
		return nil, a.err
	}
	return a.replies[0], nil
}

// A server is where a lock is.
type server struct {
	mu   sync.Mutex
	pool *redis.Pool
	node func(address string) *redis.Pool
}

func (s *server) current() *redis.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pool
}

// redirect makes the node that MOVED names the server. It returns false if the error is another one.
func (s *server) redirect(err error) bool {
	var reply redis.Error
	if s.node == nil || !errors.As(err, &reply) {
		return false
	}
	words := strings.Fields(string(reply))
	if len(words) != 3 || words[0] != "MOVED" {
		return false
	}
	pool := s.node(words[2])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool = pool
	return true
}

// callTwice sends requests whatever becomes of contexts, and once more on a new connection after an error.
func (s *server) callTwice(requests ...request) (answer, error) {
	got := s.call(context.Background(), requestLimit, false, requests...)
	if got.err != nil {
		got = s.call(context.Background(), requestLimit, true, requests...)
		got.repeated = true
	}
	return got, got.err
}

// call sends requests and waits for the answer, until the limit or ctx is over.
func (s *server) call(ctx context.Context, limit time.Duration, fresh bool, requests ...request) answer {
	got, err := await(ctx, limit, s.send(ctx, limit, fresh, requests...))
	if err != nil {
		return answer{err: err}
	}
	if s.redirect(got.err) {
		got, err = await(ctx, limit, s.send(ctx, limit, fresh, requests...))
		if err != nil {
			return answer{err: err}
		}
	}
	return got
}

// send sends requests over a connection of the pool, or a new one. It returns at once, and sends nothing after the limit
// or the end of ctx.
func (s *server) send(ctx context.Context, limit time.Duration, fresh bool, requests ...request) <-chan answer {
	done := make(chan answer, 1)
	end := now() + limit
	go func() {
		conn, err := s.connect(ctx, limit, fresh)
		if err != nil {
			done <- answer{err: err}
			return
		}
		got := exchange(ctx, conn, end, requests...)
		conn.Close()
		done <- got
	}()
	return done
}

func (s *server) connect(ctx context.Context, limit time.Duration, fresh bool) (redis.Conn, error) {
	if fresh {
		return s.dial(ctx, limit)
	}
	bounded, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
	defer cancel()
	conn, err := s.current().GetContext(bounded)
	if err != nil && bounded.Err() != nil {
		err = context.Cause(bounded)
	}
	return conn, err
}

// dial returns a connection outside of the pool. A pool's Dial need not know of contexts, so it may go on in vain.
func (s *server) dial(ctx context.Context, limit time.Duration) (redis.Conn, error) {
	type dialled struct {
		conn redis.Conn
		err  error
	}
	bounded, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
	defer cancel()
	pool, done := s.current(), make(chan dialled)
	go func() {
		var d dialled
		switch {
		case pool.DialContext != nil:
			d.conn, d.err = pool.DialContext(bounded)
		case pool.Dial != nil:
			d.conn, d.err = pool.Dial()
		default:
			d.err = fmt.Errorf("%w: Pool has neither DialContext nor Dial", ErrInvalid)
		}
		select {
		case done <- d:
		case <-bounded.Done():
			if d.err == nil {
				d.conn.Close()
			}
		}
	}()
	select {
	case d := <-done:
		if d.err != nil {
			return nil, d.err
		}
		if _, ok := d.conn.(redis.ConnWithTimeout); !ok {
			d.conn.Close()
			return nil, fmt.Errorf("%w: connections of Pool are no redis.ConnWithTimeout", ErrInvalid)
		}
		return d.conn, nil
	case <-bounded.Done():
		return nil, context.Cause(bounded)
	}
}

// exchange sends requests, unless it is too late for that, and receives the replies.
func exchange(ctx context.Context, conn redis.Conn, end time.Duration, requests ...request) answer {
	if err := ctx.Err(); err != nil {
		return answer{err: err}
	}
	got := answer{sent: now()}
	if got.sent >= end {
		return answer{err: errTimeout}
	}
	for _, r := range requests {
		if err := conn.Send(r.command, r.args...); err != nil {
			return answer{err: err}
		}
	}
	if err := conn.Flush(); err != nil {
		return answer{err: err}
	}
	for range requests {
		reply, err := redis.ReceiveWithTimeout(conn, max(end-now(), time.Millisecond))
		if isReply(err) {
			reply = err
			got.err = errors.Join(got.err, err)
		} else if err != nil {
			return answer{err: err}
		}
		got.replies = append(got.replies, reply)
	}
	return got
}

// await waits for an answer, until the limit or ctx is over.
func await(ctx context.Context, limit time.Duration, pending <-chan answer) (answer, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case got := <-pending:
		return got, nil
	case <-ctx.Done():
		return answer{}, ctx.Err()
	case <-timer.C:
		return answer{}, errTimeout
	}
}

// fencesOf reads the reply to a request that acquires: null, the fence, or one for each of several keys.
func fencesOf(reply any) ([]int64, error) {
	switch reply := reply.(type) {
	case nil:
		return nil, nil
	case int64:
		return []int64{reply}, nil
	default:
		return redis.Int64s(reply, nil)
	}
}

func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// passes says whether the same request may succeed later.
func passes(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return !errors.Is(err, ErrInvalid)
	}
	switch code, text, _ := strings.Cut(string(reply), " "); code {
	case "UNBLOCKED", "MOVED", "ASK", "GRACE", "READONLY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS",
		"MISCONF":
		return true
	case "LIMIT":
		return strings.Contains(text, "waiters") || strings.Contains(text, "places") || strings.Contains(text, "lock.max-place")
	default:
		return false
	}
}

// A backoff is the time to wait before asking again after an error.
type backoff time.Duration

func (b *backoff) next() time.Duration {
	*b = min(max(*b*2, backoff(backoffMin)), backoff(backoffMax))
	d := time.Duration(*b)
	return d + time.Duration(mathrand.Int63n(int64(d/4)))
}

// sleep ends early at the end of ctx, or at a time of the clock if that is not 0.
func sleep(ctx context.Context, d, end time.Duration) {
	if end > 0 {
		d = min(d, end-now())
	}
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
