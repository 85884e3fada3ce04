// SPDX-License-Identifier: MIT

package redislock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	batchMost    = 500                    // requests in one write
	busesMost    = 3                      // writes on their way to one server
	busPatient   = 100 * time.Millisecond // a write that is not answered for so long does not hold up the next one
	idleMost     = 4                      // idle connections of each kind: for all requests, and for waits
	idleTime     = 30 * time.Second
	openingsMost = 3 // shared connections of a node that are opened at once
)

var (
	errUnanswered = errors.New("no answer in time")
	errCut        = errors.New("the connection was closed while others waited on it")
)

// slotOf is the slot of a key in a cluster.
func slotOf(key string) uint16 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if size := strings.IndexByte(key[open+1:], '}'); size > 0 {
			key = key[open+1 : open+1+size]
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc & 0x3fff
}

// A node is a server: its idle connections, and the requests that go out together.
type node struct {
	engine  *engine
	address string // empty: the one that the application named

	mu       sync.Mutex
	shared   []idle // for all requests but those that wait; the newest is last
	blocking []idle
	queue    []*call
	writes   int       // on their way
	began    time.Time // the last of them
	sweeper  *time.Timer
	channel  *channel
	openings chan struct{} // of shared connections
	arrival  chan struct{} // closed when the next one is open
}

type idle struct {
	Conn
	since  time.Time
	unused bool
}

// A call is a request that goes out with those of others.
type call struct {
	request  Request
	deadline time.Time
	reply    Reply
	turn     chan bool // true: send all that queue; false: the reply is there
	unsent   bool
	late     func() // what to do about a grant for which nobody waits any more
}

// The kinds of connections.
const (
	forAll = iota
	forWait
)

func (n *node) idles(kind int) *[]idle {
	if kind == forWait {
		return &n.blocking
	}
	return &n.shared
}

// take returns an idle connection, unless it must be fresh, or opens one. kept is true if it was idle.
func (n *node) take(ctx context.Context, kind int, fresh bool) (conn Conn, kept bool, err error) {
	if conn = n.takeIdle(kind, fresh); conn != nil {
		return conn, !fresh, nil
	}
	if kind == forAll {
		conn, err = n.openShared(ctx)
	} else {
		conn, err = n.open(ctx)
	}
	return conn, false, err
}

func (n *node) open(ctx context.Context) (Conn, error) {
	dial, cancel := context.WithCancel(ctx)
	defer cancel()
	// Close waits for what goes on in the background.
	defer context.AfterFunc(n.engine.working, cancel)()
	conn, err := n.engine.transport.Dial(dial, n.address)
	if err != nil {
		return nil, err
	}
	if !n.engine.open(conn) {
		conn.Close()
		return nil, ErrClosed
	}
	return conn, nil
}

// openShared opens a connection, or returns one that was open too late for its caller: far away the greeting may take
// longer than a renewal has.
func (n *node) openShared(ctx context.Context) (Conn, error) {
	var ended chan error // of the opening for this caller; nil: there is none
	for {
		n.mu.Lock()
		arrival := n.arrival
		n.mu.Unlock()
		if conn := n.takeIdle(forAll, true); conn != nil {
			return conn, nil
		}
		slots := n.openings
		if ended != nil {
			slots = nil
		}
		select {
		case slots <- struct{}{}:
			own := make(chan error, 1)
			if ended = own; !n.engine.run(func() { own <- n.openInto() }) {
				<-n.openings
				return nil, ErrClosed
			}
		case err := <-ended:
			if err != nil {
				return nil, err
			}
			ended = nil // another caller may have it
		case <-arrival:
		case <-n.engine.working.Done():
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// openInto opens a connection for whoever takes it, and frees its slot.
func (n *node) openInto() error {
	defer func() { <-n.openings }()
	dial, cancel := context.WithTimeout(n.engine.working, answerTime)
	defer cancel()
	conn, err := n.open(dial)
	if err == nil {
		n.keep(idle{conn, time.Now(), true}, forAll)
	}
	return err
}

// takeIdle returns the newest idle connection; if it must be unused, the newest one of these.
func (n *node) takeIdle(kind int, unused bool) Conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.idles(kind)
	for at := len(*list) - 1; at >= 0; at-- {
		if one := (*list)[at]; one.unused || !unused {
			*list = slices.Delete(*list, at, at+1)
			return one.Conn
		}
	}
	return nil
}

// put gives a connection back that works.
func (n *node) put(conn Conn, kind int) { n.keep(idle{conn, time.Now(), false}, kind) }

func (n *node) keep(one idle, kind int) {
	n.mu.Lock()
	list := n.idles(kind)
	if n.engine.isShut() || !one.unused && len(*list) >= idleMost {
		n.mu.Unlock()
		n.engine.shut(one.Conn)
		return
	}
	*list = append(*list, one)
	if one.unused {
		close(n.arrival)
		n.arrival = make(chan struct{})
	}
	if n.sweeper == nil {
		n.sweeper = time.AfterFunc(idleTime, n.sweep)
	}
	n.mu.Unlock()
}

// sweep closes what has been idle for long.
func (n *node) sweep() {
	n.mu.Lock()
	var old []idle
	for kind := range 2 {
		list := n.idles(kind)
		*list = slices.DeleteFunc(*list, func(one idle) bool {
			if time.Since(one.since) < idleTime {
				return false
			}
			old = append(old, one)
			return true
		})
	}
	n.sweeper = nil
	if len(n.shared)+len(n.blocking) > 0 {
		n.sweeper = time.AfterFunc(idleTime/4, n.sweep)
	}
	n.mu.Unlock()
	for _, one := range old {
		n.engine.shut(one.Conn)
	}
}

// failed closes a connection that failed, and all idle ones: what ended one has mostly ended all. In a cluster the node
// may be dead, so the server that the application named is asked again where its slots are.
func (n *node) failed(conn Conn) {
	if conn != nil {
		n.engine.shut(conn)
	}
	n.closeIdle()
	n.channelOf().forgive()
	n.engine.forget(n.address)
}

func (n *node) closeIdle() {
	n.mu.Lock()
	all := append(n.shared, n.blocking...)
	n.shared, n.blocking = nil, nil
	if n.sweeper != nil {
		n.sweeper.Stop()
		n.sweeper = nil
	}
	n.mu.Unlock()
	for _, one := range all {
		n.engine.shut(one.Conn)
	}
}

// exchange sends requests that are nobody else's, over a shared connection. With fresh it is a new one, unless none can
// be had.
func (n *node) exchange(ctx context.Context, deadline time.Time, requests []Request, fresh bool) ([]Reply, error) {
	begun := deadline
	if fresh {
		begun = time.Now().Add(time.Until(deadline) / 2) // the rest is for a kept one
	}
	dial, cancel := context.WithDeadline(ctx, begun)
	conn, _, err := n.take(dial, forAll, fresh)
	cancel()
	if fresh && err == nil {
		// Those may have died as the last one did.
		n.closeIdle()
	} else if fresh {
		if kept := n.takeIdle(forAll, false); kept != nil {
			conn, err = kept, nil
		}
	}
	if err != nil {
		n.engine.forget(n.address)
		return nil, err
	}
	replies, isCut := doUntil(ctx, conn, deadline, requests, nil)
	if err := brokenBy(replies); err != nil {
		n.failed(conn)
		return nil, err
	}
	if isCut {
		n.engine.shut(conn)
	} else {
		n.keepOrLeave(conn, forAll, replies)
	}
	return replies, nil
}

// doUntil sends requests and reads their replies. When the context is done meanwhile it calls cancelled, and closes the
// connection from outside if that does not end it within cancelTime: isCut is true then.
func doUntil(ctx context.Context, conn Conn, deadline time.Time, requests []Request, cancelled func()) (
	replies []Reply, isCut bool,
) {
	var cut *time.Timer
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		cut = time.AfterFunc(cancelTime, func() { conn.Close() })
		if cancelled != nil {
			cancelled()
		}
	})
	replies = conn.Do(limited{ctx, deadline}, requests)
	if !stop() {
		<-over
		isCut = !cut.Stop()
	}
	return replies, isCut
}

// keepOrLeave keeps a connection, unless its server is a primary no more.
func (n *node) keepOrLeave(conn Conn, kind int, replies []Reply) {
	for _, reply := range replies {
		var failure *ServerError
		if errors.As(reply.Err, &failure) && (failure.Code == "READONLY" || failure.Code == "MASTERDOWN") {
			n.failed(conn)
			return
		}
	}
	n.put(conn, kind)
}

// brokenBy is the error of the connection, if there is one.
func brokenBy(replies []Reply) error {
	for _, reply := range replies {
		var failure *ServerError
		if reply.Err != nil && !errors.As(reply.Err, &failure) {
			return reply.Err
		}
	}
	return nil
}

// do sends a request together with those of others. repeated is true if the server may have had it twice, and unsent if
// it never had it. It gives up at the deadline, and cancelTime after the context is done.
func (n *node) do(ctx context.Context, deadline time.Time, request Request) (reply Reply, repeated, unsent bool) {
	fresh := false
	for tries := 1; ; tries++ {
		reply, unsent := n.run(ctx, &call{request: request, deadline: deadline, turn: make(chan bool, 1)}, fresh)
		var failure *ServerError
		isAnswer := reply.Err == nil || errors.As(reply.Err, &failure)
		isOver := tries == 3 || ctx.Err() != nil || !time.Now().Before(deadline)
		if isAnswer || isOver || unsent && reply.Err != errCut {
			return reply, repeated, unsent && !repeated
		}
		fresh, repeated = true, repeated || !unsent
	}
}

func (n *node) run(ctx context.Context, c *call, fresh bool) (reply Reply, unsent bool) {
	n.mu.Lock()
	if n.mayWrite() {
		n.writes++
		return n.write(ctx, c, fresh)
	}
	n.queue = append(n.queue, c)
	n.mu.Unlock()
	limit := time.NewTimer(min(busPatient, time.Until(c.deadline)))
	defer limit.Stop()
	done := ctx.Done()
	isOver := false
	for {
		select {
		case mine := <-c.turn:
			if !mine {
				return c.reply, c.unsent
			}
			n.mu.Lock()
			return n.write(ctx, c, fresh)
		case <-done:
			done, isOver = nil, true
			limit.Reset(max(min(cancelTime, time.Until(c.deadline)), 0))
			continue
		case <-limit.C:
		}
		isOver = isOver || !time.Now().Before(c.deadline)
		n.mu.Lock()
		queued := slices.Contains(n.queue, c)
		if queued && !isOver && n.mayWrite() {
			n.drop(c)
			n.writes++
			return n.write(ctx, c, fresh)
		}
		if isOver {
			n.drop(c)
			if !queued {
				return n.last(c)
			}
			n.mu.Unlock()
			return Reply{Err: errUnanswered}, true
		}
		n.mu.Unlock()
		limit.Reset(max(min(busPatient, time.Until(c.deadline)), 0))
	}
}

// drop takes a call out of the queue. The node is locked.
func (n *node) drop(c *call) {
	n.queue = slices.DeleteFunc(n.queue, func(other *call) bool { return other == c })
}

// last is what there is for a call whose time is over. A turn that came too late is passed on. The node is locked, and
// is unlocked here.
func (n *node) last(c *call) (reply Reply, unsent bool) {
	defer n.mu.Unlock()
	select {
	case mine := <-c.turn:
		if !mine {
			return c.reply, c.unsent
		}
		n.writes--
		n.pass()
		return Reply{Err: errUnanswered}, true
	default:
		return Reply{Err: errUnanswered}, false
	}
}

// mayWrite is true if a write may begin now: none is on its way, or the last is slow.
func (n *node) mayWrite() bool {
	return n.writes == 0 || n.writes < busesMost && time.Since(n.began) >= busPatient
}

// pass lets the first that queues send for all.
func (n *node) pass() {
	if len(n.queue) == 0 || !n.mayWrite() {
		return
	}
	n.writes++
	n.queue[0].turn <- true
	n.queue = n.queue[1:]
}

// write sends all that queue, and c, in this goroutine. The node is locked, and is unlocked here.
func (n *node) write(ctx context.Context, c *call, fresh bool) (reply Reply, unsent bool) {
	size := min(len(n.queue), batchMost-1)
	batch := append(make([]*call, 0, size+1), c)
	batch = append(batch, n.queue[:size]...)
	n.queue = slices.Delete(n.queue, 0, size)
	n.began = time.Now()
	n.mu.Unlock()

	replies, unsent := n.writeBatch(ctx, batch, c.deadline, fresh)
	for at, one := range batch[1:] {
		one.reply, one.unsent = replies[at+1], unsent
		one.turn <- false
	}
	n.mu.Lock()
	n.writes--
	n.pass()
	n.mu.Unlock()
	return replies[0], unsent
}

func (n *node) writeBatch(ctx context.Context, batch []*call, deadline time.Time, fresh bool) ([]Reply, bool) {
	dial, cancel := context.WithDeadline(ctx, deadline)
	conn, _, err := n.take(dial, forAll, fresh)
	cancel()
	if err != nil {
		if ctx.Err() != nil {
			err = errCut
		} else {
			n.engine.forget(n.address)
		}
		return slices.Repeat([]Reply{{Err: err}}, len(batch)), true
	}
	requests := make([]Request, len(batch))
	for at, one := range batch {
		requests[at] = one.request
	}
	replies, isCut := doUntil(ctx, conn, deadline, requests, nil)
	if err := brokenBy(replies); err != nil {
		n.failed(conn)
		return replies, false
	}
	if isCut {
		n.engine.shut(conn)
	} else {
		n.keepOrLeave(conn, forAll, replies)
	}
	return replies, false
}
