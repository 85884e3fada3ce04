// SPDX-License-Identifier: MIT

package redislock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	channelHome  = "lock:notify:"
	confirmTime  = 2 * time.Second       // for the confirmation of a subscription
	quietTime    = 10 * time.Second      // without another try where it was not confirmed
	allTime      = time.Second           // between two rounds in which all waits ask
	roundTime    = 50 * time.Millisecond // between batchMost of them: 10,000 requests a second
	nullsBearing = 2                     // messages in vain before a wait pauses
	tagsMost     = 1 << 20               // tries for a tag of a slot; one in 16,384 fits
)

// A channel is where a server tells waits of this process that it is worthwhile to ask again. It has a subscription,
// and a connection for the requests that name it: the server takes the places of a closed one for those of a dead
// process. Its goroutine has both while there are waits, and for idleTime after.
type channel struct {
	node   *node
	random string

	mu      sync.Mutex
	name    string             // of the subscription, or of the last one
	slot    uint16             // of the name, in a cluster
	waits   map[string][]*wait // by owner; one may wait for several locks
	calls   []*call
	runs    bool
	isOpen  bool
	trying  chan struct{} // while an attempt to open it goes on; closed at its end
	refusal error         // why it is not tried until the node fails
	quiet   time.Time     // or until then, unless it is zero
	asked   time.Time     // when all waits were last asked to ask
	asking  bool
	rouse   chan bool
}

func newChannel(n *node) *channel {
	var random [16]byte
	rand.Read(random[:])
	return &channel{
		node:   n,
		random: hex.EncodeToString(random[:]),
		waits:  map[string][]*wait{},
		rouse:  make(chan bool, 1),
	}
}

// channelOf returns the channel of a node, which need not be open.
func (n *node) channelOf() *channel {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.channel == nil {
		n.channel = newChannel(n)
	}
	return n.channel
}

// ready is true while its messages come.
func (c *channel) ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isOpen
}

// join lets a wait hear messages. False: they cannot come yet, or at all.
func (c *channel) join(ctx context.Context, w *wait) bool {
	c.mu.Lock()
	if c.isRefused() {
		c.mu.Unlock()
		return false
	}
	c.waits[w.owner.name] = append(c.waits[w.owner.name], w)
	if !c.runs && c.node.engine.run(c.run) {
		c.runs, c.trying = true, make(chan struct{})
	}
	isOpen, trying := c.isOpen, c.trying
	c.mu.Unlock()
	if !isOpen && trying != nil {
		limit := time.NewTimer(max(min(confirmTime, w.left()), 0))
		defer limit.Stop()
		select {
		case <-trying:
		case <-limit.C:
		case <-ctx.Done():
		}
		isOpen = c.ready()
	}
	if !isOpen {
		c.part(w)
	}
	return isOpen
}

func (c *channel) part(w *wait) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := w.owner.name
	rest := slices.DeleteFunc(c.waits[name], func(other *wait) bool { return other == w })
	if len(rest) > 0 {
		c.waits[name] = rest
	} else {
		delete(c.waits, name)
	}
}

// do sends a request with those of other waits. It gives up at the deadline, and cancelTime after the context is done.
// A lock that is granted after that is given back, unless the wait goes on: then it is what its next request asks for.
func (c *channel) do(ctx context.Context, deadline time.Time, w *wait) (reply Reply, unsent bool) {
	one := &call{turn: make(chan bool, 1)}
	c.mu.Lock()
	if !c.isOpen {
		c.mu.Unlock()
		return Reply{Err: errCut}, true
	}
	one.request = w.terms.acquire(w.owner.name, 0, w.engine.queueFor(notifyQueue), c.name)
	c.calls = append(c.calls, one)
	c.mu.Unlock()
	rouse(c.rouse, false)
	limit := time.NewTimer(max(time.Until(deadline), 0))
	defer limit.Stop()
	select {
	case <-one.turn:
		return one.reply, one.unsent
	case <-limit.C:
	case <-ctx.Done():
		limit.Reset(cancelTime)
		select {
		case <-one.turn:
			return one.reply, one.unsent
		case <-limit.C:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-one.turn:
		return one.reply, one.unsent
	default:
	}
	before := len(c.calls)
	c.calls = slices.DeleteFunc(c.calls, func(other *call) bool { return other == one })
	if len(c.calls) < before {
		return Reply{Err: errUnanswered}, true
	}
	one.late = func() {
		if w.isLeft.Load() {
			w.engine.run(func() { w.release(time.Now().Add(answerTime)) })
		}
	}
	return Reply{Err: errUnanswered}, false
}

func rouse(sleeper chan bool, isMessage bool) {
	select {
	case sleeper <- isMessage:
	default:
	}
}

// run has the channel open until nobody waits.
func (c *channel) run() {
	e := c.node.engine
	for pause := pauseMin; ; pause = min(2*pause, pauseMax) {
		conn, sub, err := c.open()
		c.opened(err)
		// What was said before is lost. Without the channel waits ask by themselves.
		e.run(c.askAll)
		if err == nil {
			e.over("notify")
			pause = pauseMin / 2
			err = c.serve(conn, sub)
			e.shut(conn)
			sub.Close()
		}
		if c.close(err) {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-e.working.Done():
		}
		timer.Stop()
	}
}

// open opens the connection, and then the subscription.
func (c *channel) open() (Conn, Subscription, error) {
	e := c.node.engine
	ctx, cancel := context.WithTimeout(e.working, answerTime)
	defer cancel()
	conn, err := e.transport.Dial(ctx, c.node.address)
	if err != nil {
		c.node.engine.forget(c.node.address)
		return nil, nil, err
	}
	if !e.open(conn) {
		conn.Close()
		return nil, nil, ErrClosed
	}
	hello := conn.Do(limited{ctx, time.Now().Add(answerTime)}, []Request{{"HELLO"}})
	if err := brokenBy(hello); err != nil {
		e.shut(conn)
		return nil, nil, err
	}
	at := Channel{IsSharded: isCluster(hello[0].Value)}
	c.mu.Lock()
	if at.IsSharded && !c.fits() {
		c.slot = c.anySlot()
		c.name = ""
	}
	if c.name == "" {
		c.name = nameOf(channelHome+e.prefix+c.random, c.slot, at.IsSharded)
	}
	at.Name = c.name
	isElsewhere := at.IsSharded && slotOf(c.name) != c.slot
	c.mu.Unlock()
	if isElsewhere {
		e.shut(conn)
		return nil, nil, because(errRefused, errors.New("the prefix of channels has braces"))
	}
	confirmed, cancelled := context.WithTimeout(ctx, confirmTime)
	defer cancelled()
	sub, err := e.transport.Subscribe(confirmed, c.node.address, at, c.hear)
	if err != nil {
		e.shut(conn)
		return nil, nil, c.judged(err)
	}
	return conn, sub, nil
}

// opened notes how an attempt ended.
func (c *channel) opened(err error) {
	c.mu.Lock()
	c.isOpen = err == nil
	if c.isOpen {
		c.refusal = nil
	}
	key := ""
	for _, list := range c.waits {
		key = list[0].terms.key()
	}
	close(c.trying)
	c.trying = nil
	c.mu.Unlock()
	if errors.Is(err, errRefused) {
		c.refuse(key, err)
	}
}

// judged notes what the error of a subscription means.
func (c *channel) judged(err error) error {
	var reply *ServerError
	if isRedirect(err, &reply) {
		// The slot of the channel has moved, and with it a lock for which somebody waits.
		c.node.engine.moved(reply)
		return err
	}
	if errors.As(err, &reply) && reply.passes() {
		return err
	}
	if reply != nil || errors.Is(err, context.DeadlineExceeded) {
		return because(errRefused, err)
	}
	return err
}

var errRefused = errors.New("waits hear nothing from the server, and ask each second")

// isCluster is true if HELLO says so. Who does not answer it is none.
func isCluster(hello any) bool {
	list, _ := hello.([]any)
	for at := 0; at+1 < len(list); at += 2 {
		if list[at] == "mode" {
			return list[at+1] == "cluster"
		}
	}
	return false
}

// nameOf adds a tag of the slot to a name.
func nameOf(name string, slot uint16, isSharded bool) string {
	for number := range tagsMost {
		if tag := strconv.Itoa(number); isSharded && slotOf(tag) == slot {
			return name + ":{" + tag + "}"
		}
	}
	return name
}

// fits is true if the node serves the slot, as far as is known. The channel is locked.
func (c *channel) fits() bool {
	return c.name != "" && c.node.engine.nodeOf(c.slot) == c.node
}

// anySlot is a slot of a lock for which somebody waits here. The channel is locked.
func (c *channel) anySlot() uint16 {
	for _, list := range c.waits {
		for _, w := range list {
			if slot := slotOf(w.terms.key()); c.node.engine.nodeOf(slot) == c.node {
				return slot
			}
		}
	}
	return c.slot
}

// serve sends what waits ask, until the subscription or the connection fails, or nobody has waited for long.
func (c *channel) serve(conn Conn, sub Subscription) error {
	e := c.node.engine
	quiet := time.NewTicker(idleTime / 4)
	defer quiet.Stop()
	used := time.Now()
	for {
		select {
		case <-sub.Done():
			return errCut
		case <-e.working.Done():
			return ErrClosed
		case <-quiet.C:
			c.mu.Lock()
			isIdle := len(c.waits) == 0 && len(c.calls) == 0
			c.mu.Unlock()
			if !isIdle {
				used = time.Now()
			} else if time.Since(used) >= idleTime {
				return nil
			}
			continue
		case <-c.rouse:
		}
		// The waits that run now go with it: mostly one that was told, and the one that gave the lock back.
		runtime.Gosched()
		for {
			c.mu.Lock()
			size := min(len(c.calls), batchMost)
			batch := slices.Clone(c.calls[:size])
			c.calls = slices.Delete(c.calls, 0, size)
			c.mu.Unlock()
			if size == 0 {
				break
			}
			if err := c.send(conn, batch); err != nil {
				return err
			}
		}
	}
}

func (c *channel) send(conn Conn, batch []*call) error {
	requests := make([]Request, len(batch))
	for at, one := range batch {
		requests[at] = one.request
	}
	replies := conn.Do(limited{context.Background(), time.Now().Add(answerTime)}, requests)
	c.answer(batch, replies, false)
	for _, reply := range replies {
		var failure *ServerError
		if errors.As(reply.Err, &failure) && slices.Contains([]string{"READONLY", "MASTERDOWN", "NOTIFYSLOT"}, failure.Code) {
			return failure
		}
	}
	return brokenBy(replies)
}

func (c *channel) answer(batch []*call, replies []Reply, unsent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at, one := range batch {
		one.reply, one.unsent = replies[at], unsent
		if one.late != nil && one.reply.Err == nil && one.reply.Value != nil {
			one.late()
		}
		one.turn <- false
	}
}

// close ends what was open. True: nobody waits for another attempt, so that the goroutine ends.
func (c *channel) close(err error) bool {
	c.mu.Lock()
	calls := c.calls
	c.calls, c.isOpen = nil, false
	var reply *ServerError
	if errors.As(err, &reply) && reply.Code == "NOTIFYSLOT" {
		c.name = ""
	}
	c.runs = !c.isRefused() && len(c.waits) > 0 && c.node.engine.working.Err() == nil
	if c.runs {
		c.trying = make(chan struct{})
	}
	isOver := !c.runs
	c.mu.Unlock()
	c.answer(calls, slices.Repeat([]Reply{{Err: errCut}}, len(calls)), true)
	return isOver
}

// refuse lets waits go on without the channel, until the node fails. A server that did not confirm was only slow,
// perhaps: it is tried again soon, and told once.
func (c *channel) refuse(key string, err error) {
	c.mu.Lock()
	isKnown := c.refusal != nil
	c.refusal, c.quiet = err, time.Time{}
	if errors.Is(err, context.DeadlineExceeded) {
		c.quiet = time.Now().Add(quietTime)
	}
	c.mu.Unlock()
	if !isKnown {
		c.node.engine.tell("notify", key, err)
	}
}

// isRefused is true while it is not tried. The channel is locked.
func (c *channel) isRefused() bool {
	return c.refusal != nil && (c.quiet.IsZero() || time.Now().Before(c.quiet))
}

// forgive tries the channel again: the node has failed, and may be another one now.
func (c *channel) forgive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal = nil
}

// hear takes a message: an owner's name, or an asterisk for all.
func (c *channel) hear(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text != "*" {
		for _, w := range c.waits[text] {
			rouse(w.wake, true)
		}
		return
	}
	if !c.asking {
		c.asking = true
		c.node.engine.run(c.askAllAgain)
	}
}

// askAllAgain lets all waits ask, a second after the last time.
func (c *channel) askAllAgain() {
	c.mu.Lock()
	rest := allTime - time.Since(c.asked)
	c.mu.Unlock()
	if rest > 0 && !c.node.engine.sleep(rest) {
		return
	}
	c.mu.Lock()
	c.asking = false
	c.mu.Unlock()
	c.askAll()
}

// askAll lets all waits ask, some after the others.
func (c *channel) askAll() {
	c.mu.Lock()
	c.asked = time.Now()
	all := make([]*wait, 0, len(c.waits))
	for _, list := range c.waits {
		all = append(all, list...)
	}
	c.mu.Unlock()
	for at, w := range all {
		rouse(w.wake, false)
		if at%batchMost == batchMost-1 && !c.node.engine.sleep(roundTime) {
			return
		}
	}
}

// refuses is true if a server that is asked for NOTIFY refuses just that: it is too old, or the user has no right.
func refuses(reply *ServerError) bool {
	return reply.says("unknown option") || reply.says("NOTIFY ") ||
		reply.Code == "NOPERM" && strings.HasSuffix(reply.Text, "NOTIFY")
}
