// SPDX-License-Identifier: MIT

// Package redislock holds locks of the module redis_lock, in Redis or Valkey.
//
//	locks := redislock.New(transport)
//	err := locks.Do(ctx, "report", func(ctx context.Context, hold *redislock.Hold) error {
//		return write(ctx, hold.Fence())
//	})
//
// The transport leads to the server through a client library: the modules lockgoredis, lockrueidis and lockredigo have
// one each, and redislocktest has one without a server.
//
// Each acquisition is a [Hold] of its own, and excludes all others, those of the same process too. While it lasts, its
// lease is renewed. If the lock is lost all the same, the contexts of [Hold.Context] end, and their cause is [ErrLost].
// A process that was stopped for longer than the lease may believe for a moment that it holds a lock that is another's
// by then. What must not happen even then belongs behind the fence: [Hold.Fence] and [Hold.Guard].
package redislock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strconv"
	"time"
)

// A Client takes locks through a Transport. Any number of goroutines may use it.
type Client struct {
	engine   *engine
	defaults terms
}

// A ClientOption sets up a Client. Each LockOption is one: it sets a default for all locks.
type ClientOption interface{ setUp(*Client) }

// A LockOption says how a lock is taken.
type LockOption interface {
	ClientOption
	ask(*terms)
}

type clientOption func(*Client)

func (o clientOption) setUp(c *Client) { o(c) }

type lockOption func(*terms)

func (o lockOption) setUp(c *Client) { o(&c.defaults) }
func (o lockOption) ask(t *terms)    { o(t) }

// WithLease sets how long a lock stays taken after its process died: 1 s at least, 30 s without this option.
func WithLease(lease time.Duration) LockOption { return lockOption(func(t *terms) { t.lease = lease }) }

// WithWait sets how long Lock waits: zero tries once. Without this option it waits until its context is over.
func WithWait(wait time.Duration) LockOption {
	return lockOption(func(t *terms) { t.wait = max(wait, 0) })
}

// WithNote sets a text for people, which the server shows beside the holder.
func WithNote(note string) LockOption {
	return lockOption(func(t *terms) { t.note, t.hasNote = note, true })
}

// WithMax sets how long a lock is held at most: it is renewed until then, and lost after it.
func WithMax(limit time.Duration) LockOption { return lockOption(func(t *terms) { t.max = limit }) }

// WithRead takes the lock for reading: readers hold it together.
func WithRead() LockOption { return lockOption(func(t *terms) { t.read = true }) }

// WithShares takes some of so many shares: a semaphore. All that ask for a key name the same limit.
func WithShares(limit, take uint32) LockOption {
	return lockOption(func(t *terms) {
		// A limit of zero makes no sense, and is found by the check of both.
		t.limit, t.take = limit, max(take, 1)
	})
}

// WithOuter takes the lock under the owner of another one, inside of which it is taken: the server sees cycles of
// waits, and answers ErrDeadlock.
func WithOuter(outer *Hold) LockOption { return lockOption(func(t *terms) { t.outer = outer }) }

// WithReentry lets Do of a key inside Do of the same key, by its context, run under the hold that is there.
func WithReentry() LockOption { return lockOption(func(t *terms) { t.reentry = true }) }

// WithOldClients lets clients with another kind of lock hold the same key, as a string or a hash. That counts as held
// by others: a wait asks again after pauses of up to a second and a half. Without this option it is an error.
func WithOldClients() LockOption { return lockOption(func(t *terms) { t.oldClients = true }) }

// WithMaxBlocking sets how many waits of this Client have a connection each: 32 without this option. Further ones, and
// all if it is zero, hear from the server when it is their turn, over one subscription. If it cannot be had they ask
// each second.
func WithMaxBlocking(waits int) ClientOption {
	return clientOption(func(c *Client) { c.engine.slots = make(chan struct{}, max(waits, 0)) })
}

// WithChannelPrefix sets what the names of the channels begin with on which waits hear from the server, behind
// "lock:notify:". The rights of its user may be for these alone. A prefix has no braces.
func WithChannelPrefix(prefix string) ClientOption {
	return clientOption(func(c *Client) { c.engine.prefix = prefix })
}

// WithLogger sets where trouble is logged, at WARN: slog.Default() without this option.
func WithLogger(logger *slog.Logger) ClientOption {
	return clientOption(func(c *Client) { c.engine.logger = logger })
}

// WithTrouble sets a function that is told of each kind of Trouble once. It runs in a goroutine of its own. A panic is
// logged.
func WithTrouble(tell func(Trouble)) ClientOption {
	return clientOption(func(c *Client) { c.engine.trouble = tell })
}

// WithListener sets what hears the figures of all locks. Its functions run in one goroutine, in the order of what
// happened. One that panics or takes long harms no lock: 1,024 calls wait for it at most. Close waits for these.
func WithListener(listener Listener) ClientOption {
	return clientOption(func(c *Client) { c.engine.figures = &figures{engine: c.engine, listener: listener} })
}

// WithClock sets the clock by which locks are valid, for tests. On Linux it is CLOCK_BOOTTIME without this option,
// which counts the time for which the machine sleeps.
func WithClock(clock func() time.Duration) ClientOption {
	return clientOption(func(c *Client) { c.engine.now = clock })
}

// New returns a Client, which owns the Transport.
func New(t Transport, opts ...ClientOption) *Client {
	e := &engine{
		transport: t,
		now:       now,
		logger:    slog.Default(),
		slots:     make(chan struct{}, blockingMost),
		nodes:     map[string]*node{},
		places:    map[uint16]*node{},
		conns:     map[Conn]struct{}{},
		told:      map[string]bool{},
		shutDown:  make(chan struct{}),
	}
	e.ending, e.end = context.WithCancel(context.Background())
	e.working, e.stop = context.WithCancel(context.Background())
	e.renewer.engine, e.renewer.wake, e.renewer.idle = e, make(chan struct{}, 1), make(chan struct{})
	c := &Client{engine: e, defaults: terms{lease: leaseDefault, wait: -1}}
	for _, opt := range opts {
		opt.setUp(c)
	}
	return c
}

// Close leaves all waits. What is held ends with ErrClosed, and stays taken until its lease ends: give it back before.
// What is being given back, since the server has not answered yet, has a second more. The functions of WithTrouble and
// WithListener must not call it: it waits for them. A second call waits for the first, and returns the same.
func (c *Client) Close() error { return c.engine.close() }

func (c *Client) terms(keys []string, opts []LockOption) (*terms, error) {
	t := c.defaults
	for _, opt := range opts {
		opt.ask(&t)
	}
	t.keys = keys
	if len(keys) == 0 {
		return &t, &Error{"", invalid("no key")}
	}
	if err := t.check(); err != nil {
		return &t, &Error{keys[0], err}
	}
	return &t, nil
}

// Lock waits for the lock until the context is over, whose cause is the error then, or until WithWait is: [ErrHeld], or
// [ErrUnavailable] if the server could not be asked. The context is for the wait alone: the work has [Hold.Context].
func (c *Client) Lock(ctx context.Context, key string, opts ...LockOption) (*Hold, error) {
	return c.LockAll(ctx, []string{key}, opts...)
}

// TryLock tries once: [ErrHeld] if others have the lock.
func (c *Client) TryLock(ctx context.Context, key string, opts ...LockOption) (*Hold, error) {
	return c.LockAll(ctx, []string{key}, append(opts[:len(opts):len(opts)], WithWait(0))...)
}

// LockAll takes several keys in one step: all or none. In a cluster they need a common hash tag.
func (c *Client) LockAll(ctx context.Context, keys []string, opts ...LockOption) (*Hold, error) {
	t, err := c.terms(append([]string(nil), keys...), opts)
	if err != nil {
		return nil, err
	}
	return c.lock(ctx, t)
}

func (c *Client) lock(ctx context.Context, t *terms) (*Hold, error) {
	for outer := insideOf(ctx); outer != nil; outer = outer.next {
		if outer.hold.held.engine != c.engine || outer.hold.Err() != nil {
			continue
		}
		theirs := outer.hold.held.terms
		for _, key := range t.keys {
			if hasKey(theirs.keys, key) && !(theirs.isShared() && t.isShared()) {
				return nil, &Error{key, invalid("it is held by this context: WithReentry lets Do run under that hold")}
			}
		}
	}
	o := newOwner()
	if t.outer != nil {
		o = t.outer.held.owner
		if err := t.outer.Err(); err != nil {
			return nil, err
		}
	}
	found, err := c.engine.acquire(ctx, t, o)
	if err != nil {
		return nil, &Error{t.key(), err}
	}
	return newHold(found), nil
}

func hasKey(keys []string, key string) bool {
	for _, one := range keys {
		if one == key {
			return true
		}
	}
	return false
}

// inside is a hold that a context is under, and those around it.
type inside struct {
	hold *Hold
	next *inside
}

type insideKey struct{}

func insideOf(ctx context.Context) *inside {
	found, _ := ctx.Value(insideKey{}).(*inside)
	return found
}

// Do runs work while the lock is held. Its context ends with the lock. The error is that of the work, joined with
// ErrLost if the lock was lost. A panic of the work gives the lock back, and goes on.
func (c *Client) Do(ctx context.Context, key string, work func(context.Context, *Hold) error, opts ...LockOption) (
	err error,
) {
	t, err := c.terms([]string{key}, opts)
	if err != nil {
		return err
	}
	if t.reentry {
		for outer := insideOf(ctx); outer != nil; outer = outer.next {
			if outer.hold.held.engine == c.engine && hasKey(outer.hold.held.terms.keys, key) && outer.hold.Err() == nil {
				return work(ctx, outer.hold)
			}
		}
	}
	hold, err := c.lock(ctx, t)
	if err != nil {
		return err
	}
	defer func() {
		after := hold.Unlock(context.WithoutCancel(ctx))
		if after == nil || errors.Is(after, ErrReleased) || errors.Is(err, ErrLost) && errors.Is(after, ErrLost) {
			return
		}
		err = errors.Join(err, after)
	}()
	under, cancel := hold.Context(context.WithValue(ctx, insideKey{}, &inside{hold, insideOf(ctx)}))
	defer cancel()
	return work(under, hold)
}

// Lead is leader again and again, until the context is over, whose cause it returns. A term is one hold, and its fence
// the number of the term. It ends when the lock is lost, or when term returns; an error of term that is no
// loss ends Lead.
func (c *Client) Lead(
	ctx context.Context, key string, term func(context.Context, *Hold) error, opts ...LockOption,
) error {
	for ctx.Err() == nil {
		var failure error // of the term
		err := c.Do(ctx, key, func(ctx context.Context, hold *Hold) error {
			failure = term(ctx, hold)
			return failure
		}, opts...)
		isOver := err == nil || errors.Is(err, ErrLost) ||
			failure == nil && (errors.Is(err, ErrHeld) || errors.Is(err, ErrUnavailable))
		if !isOver && ctx.Err() == nil {
			return err
		}
		pause := time.NewTimer(pauseMin + rand.N(pauseMin))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
	return context.Cause(ctx)
}

// A HoldToken is a lock on its way to another process.
type HoldToken struct {
	Key   string        `json:"key"`
	Owner string        `json:"owner"`
	Fence int64         `json:"fence"`
	Lease time.Duration `json:"lease"`
	Read  bool          `json:"read,omitempty"`
}

// Adopt takes over what another process has detached. The fence rises, so that the token is void after it. What the
// server gives after the end of ctx is released. If its answer is lost, the lock stays for its lease.
func (c *Client) Adopt(ctx context.Context, token HoldToken) (*Hold, error) {
	type outcome struct {
		hold *Hold
		err  error
	}
	got := make(chan outcome)
	isOpen := c.engine.run(func() {
		hold, err := c.adopt(ctx, token)
		select {
		case got <- outcome{hold, err}:
		case <-ctx.Done():
			if hold != nil {
				hold.Unlock(context.WithoutCancel(ctx))
			}
		}
	})
	if !isOpen {
		return nil, &Error{token.Key, ErrClosed}
	}
	select {
	case one := <-got:
		return one.hold, one.err
	case <-ctx.Done():
		return nil, &Error{token.Key, context.Cause(ctx)}
	}
}

func (c *Client) adopt(ctx context.Context, token HoldToken) (*Hold, error) {
	t, err := c.terms([]string{token.Key}, []LockOption{WithLease(token.Lease)})
	if err != nil {
		return nil, err
	}
	t.read, t.limit, t.take = token.Read, 0, 0
	o := &owner{name: token.Owner}
	if err := o.enter(t.keys); err != nil {
		return nil, &Error{token.Key, err}
	}
	fence, next := strconv.FormatInt(token.Fence, 10), strconv.FormatInt(token.Fence+1, 10)
	request := Request{"LOCK.EXTEND", token.Key, token.Owner, "PX", millis(t.lease), "FENCE", fence, "MINFENCE", next}
	// What is on its way is answered, also after the end of ctx.
	asked, began := context.WithoutCancel(ctx), c.engine.now()
	doubt := false // a request that had no answer may have raised the fence
	for pause := pauseMin; ; pause = min(2*pause, pauseMax) {
		sent := c.engine.now()
		reply, repeated, unsent := c.engine.ask(asked, time.Now().Add(answerTime), token.Key, request)
		if raised, ok := reply.Value.(int64); ok && reply.Err == nil {
			found := newHeld(c.engine, t, o, []int64{raised}, sent)
			c.engine.renewer.add(found)
			return newHold(found), nil
		}
		var failure *ServerError
		isAnswer := reply.Err == nil || errors.As(reply.Err, &failure)
		doubt = doubt || repeated || !isAnswer && !unsent
		switch {
		case reply.Err == nil && doubt:
			return nil, &Error{token.Key, because(ErrUnavailable, errUnanswered)}
		case reply.Err == nil:
			return nil, &Error{token.Key, ErrLost}
		case !(failure != nil && failure.isAhead()) && !again(reply.Err) || c.engine.now()-began > t.lease:
			return nil, &Error{token.Key, explained(reply.Err)}
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-c.engine.ending.Done():
		}
		timer.Stop()
		if cause := context.Cause(ctx); cause != nil {
			return nil, &Error{token.Key, errors.Join(cause, explained(reply.Err))}
		}
		if c.engine.ending.Err() != nil {
			return nil, &Error{token.Key, ErrClosed}
		}
	}
}

// A Hold is a lock that is held. It is renewed until Unlock, or until nothing refers to it any more.
type Hold struct {
	held    *held
	cleanup runtime.Cleanup
}

func newHold(found *held) *Hold {
	h := &Hold{held: found}
	h.cleanup = runtime.AddCleanup(h, func(found *held) { found.isForgotten.Store(true) }, found)
	return h
}

// Fence returns a number that is higher for each later holder of the key: of the first key, if there are several.
func (h *Hold) Fence() int64 { return h.held.fences[0] }

// Fences returns the fences of all keys.
func (h *Hold) Fences() []int64 { return append([]int64(nil), h.held.fences...) }

// Owner returns the name of the holder at the server.
func (h *Hold) Owner() string { return h.held.owner.name }

// Key returns the first key.
func (h *Hold) Key() string { return h.held.terms.key() }

// ValidFor returns for how long the lock is held for certain if it is renewed no more: zero if it is over.
func (h *Hold) ValidFor() time.Duration {
	if h.held.check() != nil {
		return 0
	}
	h.held.mu.Lock()
	defer h.held.mu.Unlock()
	return max(h.held.validUntil-h.held.engine.now(), 0)
}

// Done returns a channel that is closed when the lock is over.
func (h *Hold) Done() <-chan struct{} { return h.held.done }

// Err returns nil while the lock is held, as far as is known here, and then ErrLost, ErrReleased or ErrClosed. It looks
// at the clock.
func (h *Hold) Err() error { return h.held.check() }

// Context returns a context that ends with the lock, and with its parent. The cause is an [Error] with [ErrLost] if the
// lock was lost.
func (h *Hold) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := h.held.watch(parent)
	return ctx, func() {
		cancel()
		runtime.KeepAlive(h)
	}
}

// Check asks the server whether the lock is held now.
func (h *Hold) Check(ctx context.Context) (bool, error) {
	if h.held.check() != nil {
		return false, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return false, &Error{h.Key(), cause}
	}
	missing, _, err := h.held.ask(ctx, time.Now().Add(answerTime), h.held.each("LOCK.CHECK", h.held.terms.mode()))
	if missing {
		h.held.missed()
		return false, nil
	}
	if err != nil {
		return false, &Error{h.Key(), errors.Join(context.Cause(ctx), explained(err))}
	}
	return h.held.check() == nil, nil
}

// SetNote replaces the note, such as by how far the work is: of all keys, if there are several. The lease begins anew.
func (h *Hold) SetNote(ctx context.Context, note string) error {
	if err := h.held.check(); err != nil {
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		return &Error{h.Key(), cause}
	}
	isHeld, err := h.held.extend(ctx, time.Now().Add(answerTime), "NOTE", note)
	if err != nil {
		return &Error{h.Key(), errors.Join(context.Cause(ctx), explained(err))}
	}
	if !isHeld {
		return h.held.missed()
	}
	return h.held.check()
}

// Guard runs a command in Redis if the first key is held in that moment, and returns its reply: an int64, a string,
// nil, or a []any of these. It is sent once. Its arguments are strings, byte slices, numbers or bools.
func (h *Hold) Guard(ctx context.Context, cmd string, args ...any) (any, error) {
	if cause := context.Cause(ctx); cause != nil {
		return nil, &Error{h.Key(), cause}
	}
	words := append(make([]string, 0, len(args)+1), cmd)
	for _, arg := range args {
		switch value := arg.(type) {
		case string:
			words = append(words, value)
		case []byte:
			words = append(words, string(value))
		case float64:
			words = append(words, strconv.FormatFloat(value, 'g', -1, 64))
		case float32:
			words = append(words, strconv.FormatFloat(float64(value), 'g', -1, 32))
		case bool:
			words = append(words, map[bool]string{true: "1", false: "0"}[value])
		default:
			words = append(words, fmt.Sprint(value))
		}
	}
	return h.held.guard(ctx, words)
}

// Unlock gives the lock back. It sends also if the context is over, and returns the cause then. The error is ErrLost if
// the lock was lost before, and ErrReleased the second time.
func (h *Hold) Unlock(ctx context.Context) error {
	defer runtime.KeepAlive(h)
	h.cleanup.Stop()
	return h.held.release(ctx)
}

// UnlockAfter renews the lock no more, and lets its lease end after this time from now: for work that shall not begin
// again at once. The server counts it as a lease that has ended.
func (h *Hold) UnlockAfter(d time.Duration) error {
	defer runtime.KeepAlive(h)
	h.cleanup.Stop()
	return h.held.lapse(context.Background(), d, false)
}

// Detach renews the lock no more, and returns what another process adopts it by, within its lease. Several keys and
// shares cannot be handed over. If the server refuses or does not answer, the lock is given back.
func (h *Hold) Detach(ctx context.Context) (HoldToken, error) {
	defer runtime.KeepAlive(h)
	t := h.held.terms
	if len(t.keys) > 1 || t.limit > 0 {
		return HoldToken{}, &Error{h.Key(), invalid("several keys and shares cannot be handed over")}
	}
	h.cleanup.Stop()
	if err := h.held.lapse(ctx, t.lease, true); err != nil {
		return HoldToken{}, err
	}
	return HoldToken{Key: t.key(), Owner: h.Owner(), Fence: h.Fence(), Lease: t.lease, Read: t.read}, nil
}
