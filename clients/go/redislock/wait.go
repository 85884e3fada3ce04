// SPDX-License-Identifier: MIT

package redislock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A wait is one acquisition: from the first request until the lock is held, or everything about it is given up.
type wait struct {
	engine *engine
	terms  *terms
	owner  *owner
	end    time.Time // none if the wait has no limit
	limits bool

	slot   bool // it may have a connection of its own
	conn   Conn // on which it waits
	at     *node
	polls  bool // the next request goes with those of others
	failed bool // its connection could not be opened

	channel  *channel  // on which it hears from the server
	wake     chan bool // it is worthwhile to ask; true: a message named the owner
	notifies bool      // the request goes over the channel
	deaf     bool      // it cannot: the wait asks from time to time
	nulls    int       // replies to requests that a message brought about

	asked bool // the server has answered null
	known bool // the server may have a place or a hold of the owner
	doubt bool // a request was not answered, and may be read later
	mute  bool // the last request was not answered
	pause time.Duration

	isLeft atomic.Bool // it asks no more, and has no lock
}

// acquire waits for the lock. Its error is what the application is told, without the key.
func (e *engine) acquire(ctx context.Context, t *terms, o *owner) (*held, error) {
	// A client that is closed leaves all waits.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.ending, func() { cancel(ErrClosed) })()
	if !e.renewer.join() {
		return nil, ErrClosed
	}
	defer e.renewer.part()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := o.enter(t.keys); err != nil {
		return nil, err
	}
	w := &wait{engine: e, terms: t, owner: o, pause: pauseMin}
	if t.wait >= 0 {
		w.limits, w.end = true, time.Now().Add(t.wait)
	}
	began := e.now()
	hold, err := w.stand(ctx)
	if hold != nil {
		e.figures.tell(figureWaited, began)
		w.part()
		e.over("unreachable", "no module", "old module", "no right", "memory", "refused")
		return hold, nil
	}
	isOver := errors.Is(ctx.Err(), context.DeadlineExceeded) && w.asked && !errors.Is(err, ErrUnavailable)
	if isOver || errors.Is(err, ErrHeld) {
		e.figures.tell(figureRefused, began)
	}
	w.leave(ctx)
	return nil, err
}

func (w *wait) left() time.Duration {
	if !w.limits {
		return time.Hour
	}
	return time.Until(w.end)
}

func (w *wait) once() bool { return w.terms.wait == 0 }

// stand asks until the lock is held, the wait is over, or an error comes that will not pass.
func (w *wait) stand(ctx context.Context) (*held, error) {
	var last error // of the server or the way to it, if it did not answer null
	for {
		hold, rest, err := w.ask(ctx)
		if w.engine.ending.Err() != nil {
			// It ends the wait in a moment.
			<-ctx.Done()
		}
		if hold != nil && ctx.Err() == nil {
			return hold, nil
		}
		if hold != nil {
			// Nobody has held it.
			hold.end(ErrClosed)
		}
		var reply *ServerError
		if w.terms.oldClients && errors.As(err, &reply) && reply.Code == "WRONGTYPE" {
			err = nil
		}
		last = err
		if ctx.Err() != nil {
			return nil, w.cancelled(ctx, last)
		}
		if err != nil {
			w.engine.tell(troubleOf(err), w.terms.key(), err)
			if errors.As(err, &reply) && !reply.passes() {
				return nil, explained(err)
			}
		}
		if w.limits && w.left() <= 0 {
			if last == nil {
				return nil, ErrHeld
			}
			return nil, explained(last)
		}
		if rest > 0 {
			w.sleep(ctx, rest)
			if ctx.Err() != nil {
				return nil, w.cancelled(ctx, last)
			}
		}
	}
}

func (w *wait) cancelled(ctx context.Context, last error) error {
	if last == nil || errors.Is(last, errUnanswered) || errors.Is(last, errCut) || errors.Is(last, context.Canceled) {
		return context.Cause(ctx)
	}
	return errors.Join(context.Cause(ctx), explained(last))
}

func (w *wait) sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(min(pause, max(w.left(), 0)))
	defer timer.Stop()
	wake := w.wake
	if w.nulls > nullsBearing {
		wake = nil
	}
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
	}
}

// ask sends one request. It returns the hold, or how long to pause before the next one.
func (w *wait) ask(ctx context.Context) (*held, time.Duration, error) {
	w.choose(ctx)
	block := time.Duration(0)
	if w.conn != nil {
		block = min(blockTime, max(w.left(), time.Millisecond))
	}
	limit := answerTime
	if w.limits && !w.once() {
		limit = min(limit, max(w.left()-block, 0)+overTime)
	}
	before := w.known
	w.known = true
	begin, sent := time.Now(), w.engine.now()
	reply, unsent := w.send(ctx, begin.Add(block+limit), block)
	if reply.Err != nil && w.isLearned(reply.Err, before) {
		return nil, 0, nil
	}
	if reply.Err != nil {
		return nil, w.after(reply.Err, before, unsent), reply.Err
	}
	w.mute, w.pause = false, pauseMin
	if reply.Value == nil {
		// Without QUEUE nothing stays.
		w.known = !w.once() || w.doubt
		w.asked = true
		if block > 0 {
			// Null before the time is up: something between here and the queue does not let requests wait.
			return nil, block - time.Since(begin), nil
		}
		return nil, w.turn(ctx), nil
	}
	fences, err := w.terms.fencesOf(reply.Value)
	if err != nil {
		return nil, 0, err
	}
	hold := newHeld(w.engine, w.terms, w.owner, fences, sent)
	if w.engine.now()-sent > w.terms.lease/3 {
		// It may have been granted long ago: the lease begins anew.
		isHeld, err := hold.extend(ctx, time.Now().Add(answerTime))
		if err != nil || !isHeld {
			return nil, w.backOff(), err
		}
	}
	w.engine.renewer.add(hold)
	return hold, 0, nil
}

// isLearned is true if an error says how to ask better, at once: for a shorter time, or without NOTIFY.
func (w *wait) isLearned(err error, before bool) bool {
	var reply *ServerError
	if !errors.As(err, &reply) {
		return false
	}
	isRefused := w.notifies && refuses(reply)
	if isRefused {
		w.channel.refuse(w.terms.key(), because(errRefused, err))
		w.leaveChannel()
	}
	if !isRefused && !w.engine.learns(reply) {
		return false
	}
	w.known = before || w.doubt
	return true
}

// after notes what an error means, and returns how long to pause.
func (w *wait) after(err error, before, unsent bool) time.Duration {
	var reply *ServerError
	if errors.As(err, &reply) {
		w.mute = false
		// CLIENT UNBLOCK leaves the place.
		w.known = before || w.doubt || reply.Code == "UNBLOCKED"
		if reply.Code == "MOVED" || reply.Code == "ASK" {
			w.giveBack(false)
			// What ASK says is followed with the requests of others.
			w.polls = w.engine.moved(reply) != nil
			return w.backOff() / 20
		}
		// A place without a channel may have room.
		w.polls = w.notifies && reply.Code == "LIMIT"
		return w.backOff()
	}
	w.mute = true
	if unsent {
		w.known = before
		return w.backOff()
	}
	w.doubt = true
	if w.pause == pauseMin {
		w.pause *= 2
		return cutPause
	}
	return w.backOff()
}

// backOff is a pause, longer each time.
func (w *wait) backOff() time.Duration {
	pause := w.pause + rand.N(w.pause/2)
	w.pause = min(2*w.pause, pauseMax)
	return pause
}

// choose makes w.conn the connection for the next request. Without one it goes over the channel, if w.notifies, or else
// with those of others.
func (w *wait) choose(ctx context.Context) {
	node := w.engine.node(w.terms.key())
	if w.at != node {
		w.giveBack(true)
		w.leaveChannel()
	}
	w.notifies = false
	if w.conn != nil || w.once() || w.polls {
		w.deaf, w.polls = w.polls, false
		return
	}
	if w.channel != nil && !w.channel.ready() {
		w.leaveChannel()
	}
	if !w.slot && w.channel == nil {
		select {
		case w.engine.slots <- struct{}{}:
			w.slot = true
		default:
		}
	}
	if !w.slot {
		w.notifies = w.subscribe(ctx, node)
		return
	}
	w.at = node
	if w.conn = node.takeIdle(forWait, false); w.conn != nil {
		return
	}
	if !w.asked {
		// Perhaps it is free, and needs no connection of its own.
		w.freeSlot()
		return
	}
	limit, cancel := context.WithTimeout(ctx, min(answerTime, max(w.left(), 0)+overTime))
	defer cancel()
	var err error
	if w.conn, _, err = node.take(limit, forWait, true); err != nil {
		w.conn, w.failed = nil, true
		w.freeSlot()
	}
}

// subscribe is true if the wait hears from the server, or would if its next request says so.
func (w *wait) subscribe(ctx context.Context, node *node) bool {
	if w.channel != nil {
		return true
	}
	one := node.channelOf()
	if !w.asked && !one.ready() {
		// Perhaps it is free, and needs no subscription.
		return false
	}
	if w.wake == nil {
		w.wake = make(chan bool, 1)
	}
	if !one.join(ctx, w) {
		w.deaf = true
		return false
	}
	w.channel, w.at = one, node
	return true
}

func (w *wait) leaveChannel() {
	if w.channel != nil {
		w.channel.part(w)
		w.channel = nil
	}
}

// turn waits, after null, until it is worthwhile to ask again. It returns how long to pause then.
func (w *wait) turn(ctx context.Context) time.Duration {
	switch {
	case w.once():
		return 0
	case w.notifies:
		return w.listen(ctx)
	case !w.deaf && !w.failed && !w.slot:
		// A connection may be there by now, or the channel.
		return 0
	}
	w.deaf = false
	poll := min(pollTime, w.engine.queueFor(queueTime)/3)
	poll = poll*3/4 + rand.N(poll/4)
	if w.failed || w.slot {
		w.failed = false
		return poll
	}
	timer := time.NewTimer(max(min(poll, w.left()), 0))
	defer timer.Stop()
	select {
	case w.engine.slots <- struct{}{}:
		w.slot = true
	case <-timer.C:
	case <-w.wake:
	case <-ctx.Done():
	}
	return 0
}

// listen waits for a message, or until the place needs another request. Messages in vain bring about fewer and fewer.
func (w *wait) listen(ctx context.Context) time.Duration {
	rest := w.engine.queueFor(notifyQueue) / 3
	rest = rest*3/4 + rand.N(rest/4)
	timer := time.NewTimer(max(min(rest, w.left()), 0))
	defer timer.Stop()
	select {
	case isMessage := <-w.wake:
		if isMessage {
			w.nulls++
		}
	case <-timer.C:
		w.nulls = 0
	case <-ctx.Done():
	}
	if more := w.nulls - nullsBearing; more > 0 {
		return min(pauseMin<<min(more-1, 8), pauseMax)
	}
	return 0
}

func (w *wait) freeSlot() {
	if w.slot {
		w.slot = false
		<-w.engine.slots
	}
}

func (w *wait) giveBack(works bool) {
	if w.conn != nil {
		if works {
			w.at.put(w.conn, forWait)
		} else {
			w.engine.shut(w.conn)
		}
		w.conn = nil
	}
}

func (w *wait) part() {
	w.giveBack(true)
	w.leaveChannel()
	w.freeSlot()
}

// send asks over the connection that waits, over the channel, or with the requests of others.
func (w *wait) send(ctx context.Context, deadline time.Time, block time.Duration) (reply Reply, unsent bool) {
	if w.notifies {
		return w.channel.do(ctx, deadline, w)
	}
	request := w.terms.acquire(w.owner.name, block, w.engine.queueFor(queueTime), "")
	if w.conn == nil {
		reply, repeated, unsent := w.engine.ask(ctx, deadline, w.terms.key(), request)
		w.doubt = w.doubt || repeated
		return reply, unsent
	}
	conn := w.conn
	// RELEASE answers the parked request null, and the connection stays usable.
	replies, isCut := doUntil(ctx, conn, deadline, []Request{request}, func() {
		w.release(time.Now().Add(cancelTime))
	})
	reply = replies[0]
	var failure *ServerError
	switch {
	case reply.Err != nil && !errors.As(reply.Err, &failure):
		w.conn = nil
		w.at.failed(conn)
	case isCut:
		w.giveBack(false)
	case failure != nil && (failure.Code == "READONLY" || failure.Code == "MASTERDOWN"):
		w.conn = nil
		w.at.failed(conn)
	}
	return reply, false
}

// release gives up the place, and what was granted. It returns true if the server has answered.
func (w *wait) release(deadline time.Time) bool {
	reply, _, _ := w.engine.ask(context.Background(), deadline, w.terms.key(), w.terms.leave(w.owner.name))
	var failure *ServerError
	return reply.Err == nil || errors.As(reply.Err, &failure) && !failure.passes()
}

// leave ends the wait at the server. What is not answered soon goes on in the background.
func (w *wait) leave(ctx context.Context) {
	w.isLeft.Store(true)
	if !w.known || !w.mute && w.release(time.Now().Add(cancelTime)) && !w.doubt {
		w.part()
		w.owner.leave(w.terms.keys)
		return
	}
	w.part()
	w.engine.settle(w.settle)
}

// settle releases until that is answered, and once more if a request may have been read after the first release.
func (w *wait) settle() {
	defer w.owner.leave(w.terms.keys)
	end := time.Now().Add(w.terms.lease + queueTime)
	for pause := pauseMin; time.Now().Before(end); pause = min(2*pause, pauseMax) {
		if w.release(time.Now().Add(answerTime)) {
			if !w.doubt {
				return
			}
			w.doubt, pause = false, readOnTime
		}
		if !w.engine.rest(pause) {
			return
		}
	}
	w.engine.tell("release", w.terms.key(), errUnanswered)
}
