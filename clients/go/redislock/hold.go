// SPDX-License-Identifier: MIT

package redislock

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// held is a lock that is held, without its face. The renewer has it, and never the face, which may be forgotten.
type held struct {
	engine *engine
	terms  *terms
	owner  *owner
	fences []int64
	since  time.Duration // when it was granted

	mu         sync.Mutex
	validUntil time.Duration // by the clock of the engine
	lapses     time.Duration // it is not renewed beyond, or 0
	err        error         // why it is over
	reason     error         // why the last renewal failed
	done       chan struct{}
	watchers   map[*watcher]struct{}

	plan      time.Duration // when it is to be renewed
	renewing  bool
	isOver    bool      // the renewer has seen its end
	open      int       // requests that set an end and had no answer: the server may read them yet
	releasing bool      // Unlock was called
	fresh     bool      // the next renewal needs a new connection
	freed     sync.Once // its owner may ask for the keys again

	isForgotten atomic.Bool // nothing refers to its Hold: it ends when it is due

	// The renewer's.
	due time.Duration
	at  int // its place in the heap, or -1
}

type watcher struct{ cancel context.CancelCauseFunc }

func newHeld(e *engine, t *terms, o *owner, fences []int64, sent time.Duration) *held {
	h := &held{engine: e, terms: t, owner: o, fences: fences, since: e.now(), done: make(chan struct{}), at: -1}
	if t.max > 0 {
		h.lapses = sent + t.max
	}
	h.begin(sent)
	return h
}

// begin counts the lease from before its request, less what clocks may differ by.
func (h *held) begin(sent time.Duration) {
	h.validUntil = sent + h.terms.lease - margin(h.terms.lease)
	if h.lapses > 0 {
		h.validUntil = min(h.validUntil, h.lapses)
	}
	h.plan = min(sent+h.terms.lease/3, h.validUntil)
}

func (h *held) each(command string, more ...string) []Request {
	requests := make([]Request, len(h.fences))
	for at := range h.fences {
		words := append(make(Request, 0, 7), command, h.terms.keys[at], h.owner.name)
		words = append(words, more...)
		requests[at] = append(words, "FENCE", strconv.FormatInt(h.fences[at], 10))
	}
	return requests
}

// ask sends a request for each key. missing is true if a key is not held, or something else lies there.
func (h *held) ask(ctx context.Context, deadline time.Time, requests []Request) (missing, repeated bool, err error) {
	missing, err = h.all(len(requests), func(at int) Reply {
		reply, again, _ := h.engine.ask(ctx, deadline, h.terms.keys[at], requests[at])
		repeated = repeated || again
		return reply
	})
	return missing, repeated, err
}

// all asks so many times. If one has no answer, that is the error.
func (h *held) all(count int, ask func(at int) Reply) (missing bool, err error) {
	for at := range count {
		isMissing, failure := isMissing(ask(at))
		if failure != nil && isAnswer(err) {
			err = failure
		}
		missing = missing || isMissing
	}
	return missing, err
}

// isAnswer is true if the server has answered.
func isAnswer(err error) bool {
	var reply *ServerError
	return err == nil || errors.As(err, &reply)
}

// count changes the number of requests that the server may read yet.
func (h *held) count(more int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open += more
}

// isMissing is true if the reply says that the key is not held by this owner.
func isMissing(reply Reply) (bool, error) {
	var failure *ServerError
	if errors.As(reply.Err, &failure) && failure.Code == "WRONGTYPE" {
		return true, nil
	}
	return reply.Err == nil && reply.Value == nil, reply.Err
}

// extend begins the lease anew. False: it is not held.
func (h *held) extend(ctx context.Context, deadline time.Time, more ...string) (bool, error) {
	sent := h.engine.now()
	more = append([]string{"PX", millis(h.terms.lease)}, more...)
	h.count(1)
	missing, repeated, err := h.ask(ctx, deadline, h.each("LOCK.EXTEND", more...))
	if isAnswer(err) && !repeated {
		h.count(-1)
	}
	if err != nil || missing {
		return false, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil || h.isOver {
		return false, nil
	}
	h.begin(sent)
	return h.engine.now() < h.validUntil, nil
}

// renewed takes the replies of a renewal that was sent then.
func (h *held) renewed(sent time.Duration, replies []Reply, err error) {
	missing := false
	if err != nil {
		h.count(1)
	}
	for _, reply := range replies {
		isMissing, failure := isMissing(reply)
		missing = missing || isMissing
		if err == nil {
			err = failure
		}
	}
	var reply *ServerError
	isRedirected := isRedirect(err, &reply)
	if isRedirected {
		h.engine.moved(reply)
		if reply.Code == "ASK" {
			var isHeld bool
			isHeld, err = h.extend(context.Background(), time.Now().Add(h.terms.lease/6))
			missing = err == nil && !isHeld
		}
	}
	h.mu.Lock()
	if h.err != nil || h.isOver {
		h.mu.Unlock()
		return
	}
	now := h.engine.now()
	switch {
	case missing:
		h.mu.Unlock()
		h.missed()
		return
	case err == nil && !isRedirected:
		h.begin(sent)
		h.reason, h.fresh = nil, false
	case err != nil:
		h.reason, h.fresh = err, true
		h.plan = min(now+h.terms.lease/24, h.validUntil)
	}
	if isRedirected && reply.Code == "MOVED" {
		h.plan = min(now+h.terms.lease/100, h.validUntil)
	}
	h.renewing = false
	h.mu.Unlock()
	h.engine.renewer.move(h)
	if err == nil {
		h.engine.over("renewal")
	} else if !isRedirected {
		h.engine.figures.tell(figureRenewalFailed, 0)
		h.engine.tell("renewal", h.terms.key(), err)
	}
}

// check is nil while the lock is valid, by the clock.
func (h *held) check() error {
	h.mu.Lock()
	err, over := h.err, h.isOver || h.engine.now() >= h.validUntil
	reason := h.reason
	h.mu.Unlock()
	if err == nil && over {
		h.lose(because(errors.New("its time is over"), reason))
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.err
	}
	return err
}

func (h *held) lose(why error) {
	if h.end(because(ErrLost, why)) {
		h.engine.tell("lost", h.terms.key(), why)
	}
}

// missed is the error of a lock that the server does not know: it is lost, unless Unlock is under way.
func (h *held) missed() error {
	h.mu.Lock()
	isReleasing := h.releasing
	h.mu.Unlock()
	if !isReleasing {
		h.lose(errors.New("the server says so"))
	}
	if err := h.check(); err != nil {
		return err
	}
	return &Error{h.terms.key(), ErrReleased}
}

// forget ends what nothing refers to.
func (h *held) forget() {
	if h.end(because(ErrLost, errors.New("nothing refers to it"))) {
		h.engine.tell("forgotten", h.terms.key(), errors.New("a Hold was not unlocked, and ends with its lease"))
	}
}

// end stops the renewal, and tells all that watch. False: it was over before.
func (h *held) end(why error) bool {
	h.engine.renewer.remove(h)
	h.mu.Lock()
	if h.err != nil {
		h.mu.Unlock()
		return false
	}
	h.err = &Error{h.terms.key(), why}
	watchers := h.watchers
	h.watchers = nil
	close(h.done)
	h.mu.Unlock()
	for one := range watchers {
		one.cancel(h.err)
	}
	switch {
	case errors.Is(why, ErrLost):
		h.engine.figures.tell(figureLost, h.since)
	case errors.Is(why, ErrReleased):
		h.engine.figures.tell(figureHeld, h.since)
	}
	return true
}

// watch returns a context that ends with the lock.
func (h *held) watch(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	h.check()
	one := &watcher{cancel}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		cancel(h.err)
		return ctx, func() {}
	}
	if h.watchers == nil {
		h.watchers = map[*watcher]struct{}{}
	}
	h.watchers[one] = struct{}{}
	return ctx, func() {
		h.mu.Lock()
		delete(h.watchers, one)
		h.mu.Unlock()
		cancel(context.Canceled)
	}
}

func (h *held) free() { h.freed.Do(func() { h.owner.leave(h.terms.keys) }) }

// release gives the lock back. It sends also when the context is over, and waits for cancelTime at most then.
func (h *held) release(ctx context.Context) error {
	before := h.check()
	isLost := errors.Is(before, ErrLost)
	h.mu.Lock()
	isSecond := h.releasing
	h.releasing = true
	h.mu.Unlock()
	if before != nil && !isLost {
		return before
	} else if isSecond {
		return &Error{h.terms.key(), ErrReleased}
	}
	h.engine.renewer.remove(h)
	defer h.engine.renewer.owe()()
	deadline := time.Now().Add(answerTime)
	sends, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if ctx.Err() != nil {
		deadline = time.Now().Add(cancelTime)
	} else {
		defer context.AfterFunc(ctx, cancel)()
	}
	missing, repeated, err := h.ask(sends, deadline, h.each("LOCK.RELEASE", "ALL"))
	// Null to a release that was repeated is the success of the first.
	if missing && !repeated {
		h.lose(errors.New("the server says so"))
	}
	h.end(ErrReleased)
	h.freeAfter(err, h.giveBack)
	switch {
	case isLost:
		return before
	case err != nil:
		h.engine.tell("release", h.terms.key(), err)
		return &Error{h.terms.key(), errors.Join(context.Cause(ctx), explained(err))}
	case missing && !repeated:
		return &Error{h.terms.key(), ErrLost}
	}
	h.engine.over("release")
	if cause := context.Cause(ctx); cause != nil {
		return &Error{h.terms.key(), cause}
	}
	return nil
}

func (h *held) giveBack() error {
	_, _, err := h.ask(context.Background(), time.Now().Add(answerTime), h.each("LOCK.RELEASE", "ALL"))
	return err
}

// again is true if it is worth sending a request again after this error.
func again(err error) bool {
	var reply *ServerError
	return !errors.As(err, &reply) || reply.passes()
}

// freeAfter frees the keys. If what ended the hold was not answered, this is repeated before.
func (h *held) freeAfter(err error, send func() error) {
	if err == nil || !again(err) {
		h.free()
		return
	}
	h.engine.settle(func() {
		defer h.free()
		end := time.Now().Add(h.terms.lease)
		for pause := pauseMin; time.Now().Before(end) && h.engine.rest(pause); pause = min(2*pause, pauseMax) {
			if err := send(); err == nil || !again(err) {
				return
			}
		}
	})
}

// guard runs a command if the lock is held, and sends it once.
func (h *held) guard(ctx context.Context, command []string) (any, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	fail := func(err error) (any, error) { return nil, &Error{h.terms.key(), err} }
	if h.terms.isShared() {
		return fail(invalid("Guard needs an exclusive lock"))
	}
	words := Request{"LOCK.GUARD", h.terms.key(), h.owner.name, strconv.FormatInt(h.fences[0], 10)}
	words = append(words, command...)
	h.mu.Lock()
	deadline := time.Now().Add(min(h.validUntil-h.engine.now(), answerTime))
	h.mu.Unlock()
	at, requests := h.engine.node(h.terms.key()), []Request{words}
	for range redirectsMost {
		replies, err := at.exchange(ctx, deadline, requests, false)
		if err != nil {
			if ctx.Err() != nil {
				err = errors.Join(context.Cause(ctx), err)
			}
			return fail(because(ErrUnavailable, err))
		}
		reply := replies[len(replies)-1]
		var failure *ServerError
		if isRedirect(reply.Err, &failure) {
			requests = []Request{words}
			if at = h.engine.moved(failure); at != nil {
				requests = []Request{{"ASKING"}, words}
			} else {
				at = h.engine.node(h.terms.key())
			}
			continue
		}
		if reply.Err != nil {
			return fail(reply.Err)
		}
		if list, ok := reply.Value.([]any); ok && len(list) == 2 {
			return list[1], nil
		}
		return nil, h.missed()
	}
	return fail(ErrUnavailable)
}

// lapse stops the renewal, and leaves the lock to its lease. Without an answer it is repeated, or the lock that cannot
// be detached is given back.
func (h *held) lapse(ctx context.Context, after time.Duration, isDetached bool) error {
	if err := h.check(); err != nil {
		return err
	}
	ends := h.engine.now() + after
	h.engine.renewer.remove(h)
	if !h.end(ErrReleased) {
		return h.check()
	}
	defer h.engine.renewer.owe()()
	raised := make([]bool, len(h.fences))
	endAll := func(ctx context.Context) (missing bool, err error) {
		deadline := time.Now().Add(answerTime)
		return h.all(len(h.fences), func(at int) Reply {
			// Who adopts it raises the fence.
			return h.endOne(ctx, deadline, at, ends, !isDetached, &raised[at])
		})
	}
	missing, err := endAll(ctx)
	open, send := err, func() error {
		_, err := endAll(context.Background())
		return err
	}
	if isDetached && err != nil {
		// Nobody has the token.
		if send = h.giveBack; !again(err) {
			open = send()
		}
	}
	h.freeAfter(open, send)
	switch {
	case err != nil:
		h.engine.tell("release", h.terms.key(), err)
		return &Error{h.terms.key(), explained(err)}
	case missing && h.engine.now() < ends:
		// Null says nothing once its time is over.
		return &Error{h.terms.key(), ErrLost}
	}
	h.engine.over("release")
	return nil
}

// endOne lets the lease of one key end then. What the server reads later would undo that: all of it names the fence
// that was granted, and a higher one makes it void. raised is true if a request for that may have been read without an
// answer.
func (h *held) endOne(
	ctx context.Context, deadline time.Time, at int, ends time.Duration, mayRaise bool, raised *bool,
) Reply {
	for {
		h.mu.Lock()
		raises := mayRaise && (h.renewing || h.open > 0)
		h.mu.Unlock()
		left := max(ends-h.engine.now(), time.Millisecond)
		words := Request{"LOCK.EXTEND", h.terms.keys[at], h.owner.name, "PX", millis(left)}
		words = append(words, "FENCE", strconv.FormatInt(h.fences[at], 10))
		if raises {
			words = append(words, "MINFENCE", strconv.FormatInt(h.fences[at]+1, 10))
		}
		reply, repeated, unsent := h.engine.ask(ctx, deadline, h.terms.keys[at], words)
		if repeated || !isAnswer(reply.Err) && !unsent {
			h.count(1)
			*raised = *raised || raises
		}
		var failure *ServerError
		switch {
		case raises && errors.As(reply.Err, &failure) && failure.isAhead():
			mayRaise = false // the clock of the fences lags, as right after a start
		case mayRaise && !raises && repeated && reply.Err == nil && reply.Value != nil:
			// The server may read the first of them late.
		case *raised && reply.Err == nil && reply.Value == nil:
			// That one was read, and the end is as it says.
			return Reply{Value: h.fences[at]}
		default:
			return reply
		}
	}
}
