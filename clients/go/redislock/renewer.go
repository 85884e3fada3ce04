// SPDX-License-Identifier: MIT

package redislock

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

const (
	togetherTime = 50 * time.Millisecond // what is due within goes out together
	lookTime     = time.Second           // the clock is looked at, since timers stand still while the machine sleeps
	lingerTime   = 30 * time.Second      // the goroutine outlives the last lock
)

// A renewer keeps the holds of an engine: a heap by the time when each is due, and one goroutine.
type renewer struct {
	engine *engine
	mu     sync.Mutex
	heap   dues
	runs   bool
	wakes  time.Duration // when the goroutine looks next
	wake   chan struct{}
	closed bool
	count  int           // acquisitions under way, what is being given back, and the goroutine
	idle   chan struct{} // closed when the renewer is closed and these are over
}

type dues []*held

func (d dues) Len() int           { return len(d) }
func (d dues) Less(i, j int) bool { return d[i].due < d[j].due }
func (d dues) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].at, d[j].at = i, j
}

func (d *dues) Push(one any) {
	h := one.(*held)
	h.at = len(*d)
	*d = append(*d, h)
}

func (d *dues) Pop() any {
	last := len(*d) - 1
	h := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	h.at = -1
	return h
}

// join counts an acquisition, unless the client is closed.
func (r *renewer) join() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.count++
	}
	return !r.closed
}

// owe counts what is being given back, until the function that it returns is called.
func (r *renewer) owe() (paid func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed && r.count == 0 {
		return func() {}
	}
	r.count++
	return r.part
}

func (r *renewer) part() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count--
	r.mayBeIdle()
}

func (r *renewer) mayBeIdle() {
	if r.closed && r.count == 0 {
		close(r.idle)
	}
}

func (r *renewer) add(h *held) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		h.end(ErrClosed)
		return
	}
	h.due = h.plan
	heap.Push(&r.heap, h)
	r.rouse(h)
	r.mu.Unlock()
}

// rouse wakes the goroutine for a lock that is due before it looks. The renewer is locked.
func (r *renewer) rouse(h *held) {
	if !r.runs {
		r.runs = true
		r.count++
		go r.run()
		return
	}
	if h.due < r.wakes {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// move notes that a lock is due at another time.
func (r *renewer) move(h *held) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.at >= 0 && !r.closed {
		h.mu.Lock()
		h.due = h.plan
		h.mu.Unlock()
		heap.Fix(&r.heap, h.at)
		r.rouse(h)
	}
}

func (r *renewer) remove(h *held) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.at >= 0 {
		heap.Remove(&r.heap, h.at)
	}
}

func (r *renewer) close() {
	r.mu.Lock()
	r.closed = true
	r.mayBeIdle()
	all := append(dues(nil), r.heap...)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	for _, h := range all {
		h.end(ErrClosed)
	}
}

func (r *renewer) run() {
	defer r.part()
	timer := time.NewTimer(lookTime)
	defer timer.Stop()
	for last := r.engine.now(); ; {
		now := r.engine.now()
		due := r.due(now)
		for node, list := range due {
			for len(list) > 0 {
				size := min(len(list), batchMost)
				batch := list[:size]
				r.engine.run(func() { renew(node, batch) })
				list = list[size:]
			}
		}
		r.mu.Lock()
		next := now + lookTime
		if len(r.heap) > 0 {
			last = now
			next = min(next, r.heap[0].due)
		}
		if r.closed || now-last >= lingerTime {
			r.runs = false
			r.mu.Unlock()
			return
		}
		r.wakes = next
		r.mu.Unlock()
		timer.Reset(max(next-now, time.Millisecond))
		select {
		case <-timer.C:
		case <-r.wake:
		}
	}
}

// due takes what is to be renewed now, by node, and ends what is over. Each is due again at its end.
func (r *renewer) due(now time.Duration) map[*node][]*held {
	var over, renew []*held
	r.mu.Lock()
	for len(r.heap) > 0 && r.heap[0].due <= now+togetherTime {
		h := r.heap[0]
		h.mu.Lock()
		until, isRenewing := h.validUntil, h.renewing
		switch {
		case now >= until || h.isForgotten.Load():
			heap.Pop(&r.heap)
			h.isOver = true
			over = append(over, h)
			h.mu.Unlock()
			continue
		case isRenewing || h.due >= until:
			// Its end is never too early.
			if h.due == until {
				h.mu.Unlock()
				r.mu.Unlock()
				return r.ended(over, renew)
			}
			h.due = until
		default:
			h.renewing, h.due = true, until
			renew = append(renew, h)
		}
		h.mu.Unlock()
		heap.Fix(&r.heap, 0)
	}
	r.mu.Unlock()
	return r.ended(over, renew)
}

func (r *renewer) ended(over, renew []*held) map[*node][]*held {
	for _, h := range over {
		if h.isForgotten.Load() {
			h.forget()
		} else {
			h.check()
		}
	}
	if len(renew) == 0 {
		return nil
	}
	byNode := map[*node][]*held{}
	for _, h := range renew {
		at := r.engine.node(h.terms.key())
		byNode[at] = append(byNode[at], h)
	}
	return byNode
}

// renew extends holds of one node in one write. The second attempt is over a new connection.
func renew(at *node, batch []*held) {
	var requests []Request
	limit, fresh := time.Hour, false
	for _, h := range batch {
		requests = append(requests, h.each("LOCK.EXTEND", "PX", millis(h.terms.lease))...)
		limit = min(limit, h.terms.lease/6)
		fresh = fresh || h.fresh
	}
	if fresh {
		limit *= 2 // the half is for the connection
	}
	sent := at.engine.now()
	replies, err := at.exchange(context.Background(), time.Now().Add(limit), requests, fresh)
	for _, h := range batch {
		if err != nil {
			h.renewed(sent, nil, err)
			continue
		}
		size := len(h.fences)
		h.renewed(sent, replies[:size], nil)
		replies = replies[size:]
	}
}
