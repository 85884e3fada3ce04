// SPDX-License-Identifier: MIT

package redislock

import (
	"fmt"
	"sync"
	"time"
)

const figuresMost = 1024 // so many calls wait for a listener

// A Listener hears what the locks of a Client do, to count it: [WithListener]. A nil field hears nothing. The key is
// not told: as a label of a figure it would make one of each key.
type Listener struct {
	// Waited hears how long after its request a lock was granted.
	Waited func(time.Duration)
	// Refused hears for how long others had a lock that was not granted until the wait was over.
	Refused func(time.Duration)
	// Held hears how long a lock was held that was released, or let lapse.
	Held func(time.Duration)
	// Lost hears how long a lock was held that was lost.
	Lost func(time.Duration)
	// RenewalFailed hears of a renewal that failed, and will be tried again.
	RenewalFailed func()
	// Dropped hears how many calls were dropped since its last one: the listener took too long.
	Dropped func(calls int)
}

type figure int

const (
	figureWaited figure = iota
	figureRefused
	figureHeld
	figureLost
	figureRenewalFailed
)

// A told is a figure on its way.
type told struct {
	what figure
	took time.Duration
}

// figures pass on what happens, in its order, in a goroutine of their own: no lock waits for the listener.
type figures struct {
	engine   *engine
	listener Listener

	mu      sync.Mutex
	queue   []told
	dropped int
	runs    bool
}

// tell counts the time since a moment. Without a listener there are no figures: f is nil.
func (f *figures) tell(what figure, since time.Duration) {
	if f == nil {
		return
	}
	took := f.engine.now() - since
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) >= figuresMost {
		f.dropped++
		return
	}
	f.queue = append(f.queue, told{what, took})
	if !f.runs {
		f.runs = f.engine.run(f.pass)
	}
}

// pass ends when nothing is left. What is dropped finds the queue full, so it is told before the next one.
func (f *figures) pass() {
	for {
		f.mu.Lock()
		if len(f.queue) == 0 {
			f.runs = false
			f.mu.Unlock()
			return
		}
		one, dropped := f.queue[0], f.dropped
		f.queue, f.dropped = f.queue[1:], 0
		f.mu.Unlock()
		if dropped > 0 && f.listener.Dropped != nil {
			f.engine.survive("the listener", func() { f.listener.Dropped(dropped) })
		}
		f.engine.survive("the listener", func() { f.listener.hear(one) })
	}
}

func (l *Listener) hear(one told) {
	if one.what == figureRenewalFailed {
		if l.RenewalFailed != nil {
			l.RenewalFailed()
		}
		return
	}
	times := [...]func(time.Duration){
		figureWaited: l.Waited, figureRefused: l.Refused, figureHeld: l.Held, figureLost: l.Lost,
	}
	if tell := times[one.what]; tell != nil {
		tell(one.took)
	}
}

// survive calls a function of the application. Its panic ends no lock, and is logged.
func (e *engine) survive(whose string, call func()) {
	defer func() {
		if reason := recover(); reason != nil {
			e.logger.Warn("redislock: "+whose+" has failed", "error", fmt.Sprint(reason))
		}
	}()
	call()
}
