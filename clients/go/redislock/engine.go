// SPDX-License-Identifier: MIT

package redislock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	leaseDefault  = 30 * time.Second
	leaseMin      = time.Second
	blockTime     = 3 * time.Second        // a request waits in the server for at most so long, and asks again
	queueTime     = 10 * time.Second       // how long the server keeps the place between two requests
	notifyQueue   = 30 * time.Second       // the same with NOTIFY; a third of it lies between two requests
	pollTime      = time.Second            // between two requests of a wait that neither blocks nor hears messages
	answerTime    = 3 * time.Second        // for an answer, beyond BLOCK
	overTime      = 150 * time.Millisecond // for the last answer of a wait that is over
	cancelTime    = 250 * time.Millisecond // how long the end of a wait may hold up its caller
	closeTime     = time.Second            // how long Close waits for what is to be given back
	readOnTime    = time.Second            // after so long a request that was given up is released once more
	pauseMin      = 100 * time.Millisecond
	pauseMax      = time.Second
	cutPause      = 5 * time.Millisecond // before asking again when a request was cut off, the first time
	redirectsMost = 5
	blockingMost  = 32
)

// engine asks for locks, keeps and gives them back. It is what a Client has, without its face.
type engine struct {
	transport Transport
	now       func() time.Duration
	logger    *slog.Logger
	trouble   func(Trouble)
	figures   *figures
	slots     chan struct{} // for waits that block
	prefix    string        // of the names of channels
	queueMost atomic.Int64  // the most that the server allows for QUEUE, or 0: not known

	closing   atomic.Bool
	shutDown  chan struct{} // closed when Close is done. No mutex: a test may wait in a bubble of testing/synctest
	closeFail error         // what came of it

	mu     sync.Mutex
	closed bool
	ending context.Context // done when it is closed
	end    context.CancelFunc
	// Done after that, when what waits had to send is sent.
	working context.Context
	stop    context.CancelFunc
	nodes   map[string]*node
	places  map[uint16]*node // in a cluster: where slots are, as the servers have told
	conns   map[Conn]struct{}
	told    map[string]bool
	tasks   sync.WaitGroup

	renewer renewer
}

func (e *engine) isShut() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// open counts a connection, unless the engine is closed.
func (e *engine) open(conn Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.conns[conn] = struct{}{}
	return true
}

func (e *engine) shut(conn Conn) {
	e.mu.Lock()
	delete(e.conns, conn)
	e.mu.Unlock()
	conn.Close()
}

// run starts a task that Close waits for. False: it is closed.
func (e *engine) run(task func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.tasks.Add(1)
	go func() {
		defer e.tasks.Done()
		task()
	}()
	return true
}

// settle runs a task that gives something back, which Close waits for a while.
func (e *engine) settle(task func()) {
	paid := e.renewer.owe()
	if !e.run(func() { defer paid(); task() }) {
		paid()
	}
}

// sleep returns false if the engine is closed meanwhile.
func (e *engine) sleep(pause time.Duration) bool { return sleep(e.ending, pause) }

// rest is the pause before something is given back once more. It is short while Close waits. False: it waits no more.
func (e *engine) rest(pause time.Duration) bool {
	if e.ending.Err() != nil {
		return sleep(e.working, pauseMin)
	}
	e.sleep(pause)
	return e.working.Err() == nil
}

func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (e *engine) close() error {
	if e.closing.Swap(true) {
		<-e.shutDown
		return e.closeFail
	}
	defer close(e.shutDown)
	// Waits end by this, and may still send what gives up their places.
	e.end()
	e.renewer.close()
	limit := time.NewTimer(closeTime)
	select {
	case <-e.renewer.idle:
	case <-limit.C:
	}
	limit.Stop()
	e.mu.Lock()
	e.closed = true
	e.stop()
	nodes := make([]*node, 0, len(e.nodes))
	for _, one := range e.nodes {
		nodes = append(nodes, one)
	}
	conns := make([]Conn, 0, len(e.conns))
	for conn := range e.conns {
		conns = append(conns, conn)
	}
	e.mu.Unlock()
	for _, one := range nodes {
		one.closeIdle()
	}
	for _, conn := range conns {
		e.shut(conn)
	}
	<-e.renewer.idle
	e.tasks.Wait()
	e.closeFail = e.transport.Close()
	return e.closeFail
}

// tell lets the application know of a trouble, once for each kind until it is over.
func (e *engine) tell(kind, key string, err error) {
	e.mu.Lock()
	known := e.told[kind] || e.closed
	// Each of these is a lock of its own.
	e.told[kind] = kind != "lost" && kind != "forgotten"
	e.mu.Unlock()
	if known {
		return
	}
	e.logger.Warn("redislock: "+kind, "key", key, "error", err)
	if e.trouble != nil {
		e.run(func() {
			e.survive("the function of WithTrouble", func() { e.trouble(Trouble{Kind: kind, Key: key, Err: err}) })
		})
	}
}

func (e *engine) over(kinds ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.told) > 0 {
		for _, kind := range kinds {
			delete(e.told, kind)
		}
	}
}

// --- nodes ---

func (e *engine) nodeAt(address string) *node {
	if e.nodes[address] == nil {
		e.nodes[address] = &node{
			engine: e, address: address, openings: make(chan struct{}, openingsMost), arrival: make(chan struct{}),
		}
	}
	return e.nodes[address]
}

// node is the server that has a key, as far as is known.
func (e *engine) node(key string) *node {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.places) > 0 {
		if found := e.places[slotOf(key)]; found != nil {
			return found
		}
	}
	return e.nodeAt("")
}

// nodeOf is the same for a slot.
func (e *engine) nodeOf(slot uint16) *node {
	e.mu.Lock()
	defer e.mu.Unlock()
	if found := e.places[slot]; found != nil {
		return found
	}
	return e.nodeAt("")
}

// queueFor is how long a place is to stay: at most what the server allows.
func (e *engine) queueFor(wanted time.Duration) time.Duration {
	if most := time.Duration(e.queueMost.Load()); most > 0 {
		return min(wanted, most)
	}
	return wanted
}

// learns is true if the error says how long a place may stay at most.
func (e *engine) learns(reply *ServerError) bool {
	var most int64
	text := strings.TrimPrefix(reply.Text, "ERR ")
	if _, err := fmt.Sscanf(text, "QUEUE must be a whole number from 1 to %d", &most); err != nil || most < 1 {
		return false
	}
	most *= int64(time.Millisecond)
	return e.queueMost.Swap(most) != most
}

// moved notes what MOVED says, and returns the node that ASK names.
func (e *engine) moved(reply *ServerError) (asking *node) {
	var slot int
	var address string
	_, err := fmt.Sscanf(reply.Text[len(reply.Code):], "%d %s", &slot, &address)
	if err != nil || address[0] == ':' || slot < 0 || slot > 0x3fff {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if reply.Code == "ASK" {
		return e.nodeAt(address)
	}
	e.places[uint16(slot)] = e.nodeAt(address)
	return nil
}

// forget asks the server that the application named again where the slots of a node are.
func (e *engine) forget(address string) {
	if address == "" {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for slot, one := range e.places {
		if one.address == address {
			delete(e.places, slot)
		}
	}
}

// ask sends a request to the server of the key, and follows redirections.
func (e *engine) ask(ctx context.Context, deadline time.Time, key string, request Request) (Reply, bool, bool) {
	repeated := false
	for redirects := 0; ; redirects++ {
		reply, again, unsent := e.node(key).do(ctx, deadline, request)
		repeated = repeated || again
		var failure *ServerError
		if redirects == redirectsMost || !isRedirect(reply.Err, &failure) {
			return reply, repeated, unsent
		}
		if asking := e.moved(failure); asking != nil {
			replies, err := asking.exchange(ctx, deadline, []Request{{"ASKING"}, request}, false)
			if err != nil {
				return Reply{Err: err}, repeated, false
			}
			return replies[1], repeated, false
		}
	}
}

func isRedirect(err error, failure **ServerError) bool {
	return errors.As(err, failure) && ((*failure).Code == "MOVED" || (*failure).Code == "ASK")
}

// --- owners ---

// An owner is one thread of control: an outermost lock, and the locks within it.
type owner struct {
	name string
	mu   sync.Mutex
	busy []string // keys that are asked for, held, or not yet given back: few
}

var home = func() string {
	host, _ := os.Hostname()
	return host[:min(len(host), 64)] + ":" + strconv.Itoa(os.Getpid()) + ":"
}()

func newOwner() *owner {
	var random [16]byte
	rand.Read(random[:])
	return &owner{name: home + hex.EncodeToString(random[:])}
}

// enter makes the keys busy. If one is, it is refused.
func (o *owner) enter(keys []string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, key := range keys {
		if slices.Contains(o.busy, key) {
			return invalid(fmt.Sprintf("key %q twice under one owner", key))
		}
	}
	o.busy = append(o.busy, keys...)
	return nil
}

func (o *owner) leave(keys []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = slices.DeleteFunc(o.busy, func(key string) bool { return slices.Contains(keys, key) })
}

// --- terms ---

// terms are what an application asks for.
type terms struct {
	keys        []string
	lease       time.Duration
	wait        time.Duration // negative: as long as the context
	max         time.Duration // 0: no limit
	note        string
	hasNote     bool
	read        bool
	limit, take uint32 // of shares; a limit of 0 is no share
	outer       *Hold
	reentry     bool
	oldClients  bool // what is no lock counts as one of others
}

func (t *terms) check() error {
	seen := map[string]bool{}
	for _, key := range t.keys {
		if seen[key] {
			return invalid("the same key twice")
		}
		seen[key] = true
	}
	switch {
	case len(t.keys) == 0:
		return invalid("no key")
	case t.lease < leaseMin:
		return invalid("a lease must be at least 1 s")
	case t.max < 0:
		return invalid("WithMax must not be negative")
	case t.take > t.limit || (t.limit > 0 && t.take == 0):
		return invalid("WithShares takes from 1 to limit")
	case t.limit > 0 && (t.read || len(t.keys) > 1):
		return invalid("WithShares is for one key, and not with WithRead")
	}
	return nil
}

func (t *terms) key() string { return t.keys[0] }

// isShared is true for readers and shares.
func (t *terms) isShared() bool { return t.read || t.limit > 0 }

func (t *terms) mode() string {
	if t.isShared() {
		return "READ"
	}
	return "WRITE"
}

// margin is what clocks may differ by.
func margin(lease time.Duration) time.Duration { return max(lease/100, 100*time.Millisecond) }

func millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

// acquire is the request. With QUEUE it may be sent any number of times: the owner keeps its place, and counts once.
func (t *terms) acquire(owner string, block, queue time.Duration, channel string) Request {
	var words Request
	retry := "1"
	switch {
	case len(t.keys) > 1:
		words = append(Request{"LOCK.MACQUIRE", strconv.Itoa(len(t.keys))}, t.keys...)
		words = append(words, owner, t.mode())
	case t.limit > 0:
		retry = strconv.FormatUint(uint64(t.take), 10)
		words = Request{"LOCK.SHARE", t.key(), owner, strconv.FormatUint(uint64(t.limit), 10), "TAKE", retry}
	case t.read:
		words = Request{"LOCK.RW", t.key(), owner, "READ"}
	default:
		words = append(make(Request, 0, 15), "LOCK.ACQUIRE", t.key(), owner)
	}
	words = append(words, "PX", millis(t.lease), "RETRY", retry)
	if block > 0 {
		words = append(words, "BLOCK", millis(block))
	}
	if t.wait != 0 {
		words = append(words, "QUEUE", millis(queue))
	}
	if channel != "" {
		words = append(words, "NOTIFY", channel)
	}
	if t.hasNote {
		words = append(words, "NOTE", t.note)
	}
	return words
}

// leave gives up the place, and what was granted meanwhile.
func (t *terms) leave(owner string) Request {
	if len(t.keys) > 1 {
		words := append(Request{"LOCK.MRELEASE", strconv.Itoa(len(t.keys))}, t.keys...)
		return append(words, owner, "ALL")
	}
	return Request{"LOCK.RELEASE", t.key(), owner, "ALL"}
}

// fencesOf reads the reply of an acquisition.
func (t *terms) fencesOf(value any) ([]int64, error) {
	if fence, ok := value.(int64); ok && len(t.keys) == 1 {
		return []int64{fence}, nil
	}
	list, ok := value.([]any)
	fences := make([]int64, 0, len(list))
	for _, one := range list {
		if fence, ok := one.(int64); ok {
			fences = append(fences, fence)
		}
	}
	if !ok || len(fences) != len(t.keys) {
		return nil, NewServerError(fmt.Sprintf("ERR not a reply of an acquisition: %v", value))
	}
	return slices.Clip(fences), nil
}
