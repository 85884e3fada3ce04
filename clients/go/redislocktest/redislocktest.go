// SPDX-License-Identifier: MIT

// Package redislocktest has a server in memory, with which programs that use redislock are tested without Redis. It
// also runs under testing/synctest: its time is that of the time package.
package redislocktest

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"redis-lock.example/clients/go/redislock"
)

// A Server keeps locks as the module does: one queue for each key, leases, places, rising fences. It knows the commands
// that redislock sends. Several clients may have one Server.
type Server struct {
	mu      sync.Mutex
	fence   int64
	locks   map[string]*lock
	conns   map[*conn]struct{}
	hears   map[string]map[*listener]struct{} // by channel
	down    bool
	guarded func(command []string) any
	strings map[string]string // what is no lock
	calls   map[string]int    // by command
	queued  int               // how many places there were
}

type lock struct {
	holders map[string]*holder
	queue   []*place
}

type holder struct {
	shares, limit int
	isWriter      bool
	fence         int64
	note          string
	since, until  time.Time
	timer         *time.Timer // ends the lease
}

// A place is an owner that waits, for all of its keys.
type place struct {
	request
	reply   chan redislock.Reply // of the client that waits, or nil
	timer   *time.Timer          // ends the place while no client waits
	until   time.Time            // when it, or the wait of its client, ends
	since   time.Time            // when it began
	from    *conn                // of the last request with BLOCK or NOTIFY: the place ends soon after it
	offered bool                 // it is its turn, and its channel knows
}

// awayTime is how long a place stays whose connection was closed.
const awayTime = 2 * time.Second

// defaultLease is that of a request without PX.
const defaultLease = 30 * time.Second

// forever is longer than anything lasts.
const forever time.Duration = 1 << 62

// A request is an acquisition.
type request struct {
	keys         []string
	owner        string
	isWriter     bool
	shares       int
	limit        int
	lease        time.Duration
	block, queue time.Duration
	note         string
	channel      string
}

// NewServer returns a Server without a lock.
func NewServer() *Server {
	return &Server{
		locks: map[string]*lock{}, conns: map[*conn]struct{}{}, hears: map[string]map[*listener]struct{}{},
		strings: map[string]string{}, calls: map[string]int{},
	}
}

// Client returns a client of the server. Its clock is that of the time package.
func (s *Server) Client(opts ...redislock.ClientOption) *redislock.Client {
	begin := time.Now()
	clock := redislock.WithClock(func() time.Duration { return time.Since(begin) })
	return redislock.New(s, append([]redislock.ClientOption{clock}, opts...)...)
}

// Lose takes a lock away from all its holders, as an operator does with LOCK.BREAK.
func (s *Server) Lose(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(key)
}

// Take holds a lock for somebody else, until Lose, and returns its fence.
func (s *Server) Take(key string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := request{keys: []string{key}, owner: "another", isWriter: true, shares: 1, lease: forever}
	fence, _ := s.grant(r)[0].(int64)
	return fence
}

// Holders returns the owners that hold a lock.
func (s *Server) Holders(key string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var owners []string
	if l := s.locks[key]; l != nil {
		for owner := range l.holders {
			owners = append(owners, owner)
		}
	}
	slices.Sort(owners)
	return owners
}

// Waiting returns how many owners wait for a lock.
func (s *Server) Waiting(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[key]; l != nil {
		return len(l.queue)
	}
	return 0
}

// WaitingOwners returns the owners that wait for a lock, in the order of the queue.
func (s *Server) WaitingOwners(key string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var owners []string
	if l := s.locks[key]; l != nil {
		for _, p := range l.queue {
			owners = append(owners, p.owner)
		}
	}
	return owners
}

// SetDown ends all connections, and refuses new ones, or lets them come again.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	s.down = down
	var all []io.Closer
	if down {
		for c := range s.conns {
			all = append(all, c)
		}
		for _, list := range s.hears {
			for l := range list {
				all = append(all, l)
			}
		}
	}
	s.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// SetGuarded sets what Guard answers: the reply to a command. Without it that is the reply to GET, SET, DEL and EXISTS,
// and "OK" to others.
func (s *Server) SetGuarded(reply func(command []string) any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guarded = reply
}

// Close does nothing.
func (s *Server) Close() error { return nil }

var errDown = errors.New("redislocktest: the server is down")

// Dial opens a connection.
func (s *Server) Dial(context.Context, string) (redislock.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errDown
	}
	c := &conn{server: s, closed: make(chan struct{})}
	s.conns[c] = struct{}{}
	return c, nil
}

// Subscribe opens a subscription.
func (s *Server) Subscribe(
	_ context.Context, _ string, channel redislock.Channel, message func(string),
) (redislock.Subscription, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errDown
	}
	l := &listener{server: s, channel: channel.Name}
	l.some = sync.NewCond(&s.mu)
	if s.hears[channel.Name] == nil {
		s.hears[channel.Name] = map[*listener]struct{}{}
	}
	s.hears[channel.Name][l] = struct{}{}
	return redislock.Listen(func() { l.listen(message) }, l.Close), nil
}

// Publish sends a message, as anybody may, and returns how many subscriptions get it.
func (s *Server) Publish(channel, text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.publish(channel, text)
}

func (s *Server) publish(channel, text string) int {
	for l := range s.hears[channel] {
		l.texts = append(l.texts, text)
		l.some.Signal()
	}
	return len(s.hears[channel])
}

// A listener is a subscription, and what it has not delivered yet.
type listener struct {
	server  *Server
	channel string
	texts   []string
	some    *sync.Cond
	closed  bool
}

func (l *listener) listen(message func(string)) {
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	for !l.closed {
		if len(l.texts) == 0 {
			l.some.Wait()
			continue
		}
		text := l.texts[0]
		l.texts = l.texts[1:]
		l.server.mu.Unlock()
		message(text)
		l.server.mu.Lock()
	}
}

func (l *listener) Close() error {
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	l.closed = true
	delete(l.server.hears[l.channel], l)
	if len(l.server.hears[l.channel]) == 0 {
		delete(l.server.hears, l.channel)
	}
	l.some.Signal()
	return nil
}

type conn struct {
	server *Server
	once   sync.Once
	closed chan struct{}
}

func (c *conn) Close() error {
	c.once.Do(func() {
		c.server.mu.Lock()
		delete(c.server.conns, c)
		c.server.away(c)
		c.server.mu.Unlock()
		close(c.closed)
	})
	return nil
}

func (c *conn) Do(ctx context.Context, requests []redislock.Request) []redislock.Reply {
	replies := make([]redislock.Reply, len(requests))
	for at, words := range requests {
		select {
		case <-c.closed:
			replies[at] = redislock.Reply{Err: io.EOF}
			continue
		default:
		}
		replies[at] = c.serve(ctx, words)
	}
	return replies
}

func (c *conn) serve(ctx context.Context, words redislock.Request) redislock.Reply {
	s := c.server
	s.mu.Lock()
	s.calls[words[0]]++
	err := s.refusal(words)
	s.mu.Unlock()
	if err != nil {
		return redislock.Reply{Err: err}
	}
	switch words[0] {
	case "HELLO":
		return redislock.Reply{Value: []any{"server", "redislocktest", "mode", "standalone"}}
	case "LOCK.ACQUIRE", "LOCK.RW", "LOCK.SHARE", "LOCK.MACQUIRE":
		r, err := parse(words)
		if err != nil {
			return redislock.Reply{Err: err}
		}
		return c.acquire(ctx, r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch words[0] {
	case "LOCK.RELEASE":
		return redislock.Reply{Value: s.release(words[1:2], words[2], fenceOf(words, "FENCE"))[0]}
	case "LOCK.MRELEASE":
		keys, _ := keysOf(words)
		return redislock.Reply{Value: s.release(keys, words[2+len(keys)], 0)}
	case "LOCK.EXTEND", "LOCK.CHECK", "LOCK.GUARD":
		return s.ofHold(words)
	}
	value, err := s.data(words)
	return redislock.Reply{Value: value, Err: err}
}

// ofHold answers what asks for a lock that is held.
func (s *Server) ofHold(words redislock.Request) redislock.Reply {
	h := s.holder(words[1], words[2])
	switch words[0] {
	case "LOCK.EXTEND":
		fence := fenceOf(words, "FENCE")
		if h == nil || fence != 0 && fence != h.fence {
			return redislock.Reply{}
		}
		if least := fenceOf(words, "MINFENCE"); h.fence < least {
			s.fence = max(s.fence+1, least)
			h.fence = s.fence
		}
		if slices.Contains(words[3:], "NOTE") {
			h.note = option(words, "NOTE")
		}
		s.lease(h, words[1], words[2], millis(option(words, "PX")))
		return redislock.Reply{Value: h.fence}
	case "LOCK.CHECK":
		if h == nil || fenceOf(words, "FENCE") != h.fence || h.isWriter != (words[3] == "WRITE") {
			return redislock.Reply{}
		}
		return redislock.Reply{Value: h.fence}
	default:
		if h == nil || !h.isWriter || strconv.FormatInt(h.fence, 10) != words[3] {
			return redislock.Reply{}
		}
		if s.guarded != nil {
			return redislock.Reply{Value: []any{h.fence, s.guarded(words[4:])}}
		}
		value, err := any("OK"), error(nil)
		if fewest[words[4]] > 0 {
			if err = s.refusal(words[4:]); err == nil {
				value, err = s.data(words[4:])
			}
		}
		if err != nil {
			return redislock.Reply{Err: err}
		}
		return redislock.Reply{Value: []any{h.fence, value}}
	}
}

// keysOf is the keys of a command, which has them at its begin.
func keysOf(words redislock.Request) ([]string, error) {
	if words[0] != "LOCK.MACQUIRE" && words[0] != "LOCK.MRELEASE" {
		return words[1:2], nil
	}
	count, err := strconv.Atoi(words[1])
	mode := 0
	if words[0] == "LOCK.MACQUIRE" {
		mode = 1
	}
	if err != nil || count < 1 || len(words) < 3+count+mode {
		return nil, redislock.NewServerError("ERR numkeys must be a whole number from 1 to the number of keys")
	}
	return words[2 : 2+count], nil
}

func parse(words redislock.Request) (request, error) {
	r := request{keys: words[1:2], isWriter: true, shares: 1}
	switch words[0] {
	case "LOCK.MACQUIRE":
		r.keys, _ = keysOf(words)
		r.owner = words[2+len(r.keys)]
		r.isWriter = words[3+len(r.keys)] == "WRITE"
	case "LOCK.RW":
		r.owner, r.isWriter = words[2], words[3] == "WRITE"
	case "LOCK.SHARE":
		r.owner, r.isWriter = words[2], false
		r.limit, _ = strconv.Atoi(words[3])
		if take := option(words, "TAKE"); take != "" {
			r.shares, _ = strconv.Atoi(take)
		}
	default:
		r.owner = words[2]
	}
	r.lease, r.block, r.queue = millis(option(words, "PX")), millis(option(words, "BLOCK")), millis(option(words, "QUEUE"))
	if option(words, "BLOCK") == "0" {
		r.block = forever
	}
	if option(words, "PX") == "" {
		r.lease = defaultLease
	}
	r.note, r.channel = option(words, "NOTE"), option(words, "NOTIFY")
	if r.lease <= 0 {
		return r, redislock.NewServerError("ERR PX must be a number of milliseconds")
	}
	if r.channel != "" && r.queue == 0 {
		return r, redislock.NewServerError("ERR NOTIFY needs QUEUE")
	}
	return r, nil
}

// option is the word behind the last one like this.
func option(words redislock.Request, name string) string {
	for at := len(words) - 2; at > 0; at-- {
		if words[at] == name {
			return words[at+1]
		}
	}
	return ""
}

func millis(text string) time.Duration {
	count, _ := strconv.ParseInt(text, 10, 64)
	return time.Duration(count) * time.Millisecond
}

func fenceOf(words redislock.Request, name string) int64 {
	fence, _ := strconv.ParseInt(option(words, name), 10, 64)
	return fence
}

func (c *conn) acquire(ctx context.Context, r request) redislock.Reply {
	s := c.server
	s.mu.Lock()
	own := s.placeOf(r)
	if own != nil && own.timer != nil {
		own.timer.Stop()
	}
	if fences := s.held(r); fences != nil {
		s.mu.Unlock()
		return reply(r, fences)
	}
	if s.isFree(r, own) {
		s.leave(own)
		fences := s.grant(r)
		s.serve()
		s.mu.Unlock()
		return reply(r, fences)
	}
	if r.queue > 0 || r.block > 0 {
		if cycle := s.cycle(r); cycle != nil {
			s.leave(own)
			s.serve()
			s.mu.Unlock()
			return redislock.Reply{Err: redislock.NewServerError("DEADLOCK " + strings.Join(cycle, " -> "))}
		}
	}
	if own == nil && (r.queue > 0 || r.block > 0) {
		own = &place{request: r, since: time.Now()}
		s.queued++
		for _, key := range r.keys {
			s.lock(key).queue = append(s.lock(key).queue, own)
		}
	}
	if own != nil && own.reply != nil && r.block == 0 {
		// The client that waits goes on to do so.
		own.channel, own.queue = r.channel, r.queue
		s.mu.Unlock()
		return redislock.Reply{}
	}
	if own == nil || r.block == 0 {
		if own != nil {
			own.request, own.offered, own.from = r, false, nil
		}
		if r.channel != "" {
			own.from = c
		}
		s.detach(own)
		s.mu.Unlock()
		return redislock.Reply{}
	}
	own.request, own.offered, own.from = r, false, c
	mine := make(chan redislock.Reply, 1)
	own.reply, own.until = mine, time.Now().Add(r.block)
	s.mu.Unlock()

	limit := r.block
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	timer := time.NewTimer(max(limit, 0))
	defer timer.Stop()
	var out redislock.Reply
	select {
	case out = <-mine:
		return out
	case <-timer.C:
	case <-c.closed:
		out.Err = io.EOF
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case granted := <-mine:
		if out.Err == nil {
			return granted
		}
		return out
	default:
	}
	own.reply = nil
	s.detach(own)
	if out.Err != nil {
		s.away(c)
	}
	s.serve()
	return out
}

// detach keeps a place for as long as its owner asked for.
func (s *Server) detach(p *place) {
	if p == nil {
		return
	}
	if p.queue == 0 {
		s.leave(p)
		s.serve()
		return
	}
	s.keep(p, p.queue)
}

// keep ends a place after a time.
func (s *Server) keep(p *place, rest time.Duration) {
	if p.timer != nil {
		p.timer.Stop()
	}
	p.until = time.Now().Add(rest)
	var timer *time.Timer
	timer = time.AfterFunc(rest, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.reply == nil && p.timer == timer {
			s.leave(p)
			s.serve()
		}
	})
	p.timer = timer
}

// away lets the places of a closed connection end soon.
func (s *Server) away(c *conn) {
	for _, l := range s.locks {
		for _, p := range l.queue {
			if p.from == c && p.reply == nil && time.Until(p.until) > awayTime {
				s.keep(p, awayTime)
			}
		}
	}
}

func (s *Server) lock(key string) *lock {
	if s.locks[key] == nil {
		s.locks[key] = &lock{holders: map[string]*holder{}}
	}
	return s.locks[key]
}

func (s *Server) holder(key, owner string) *holder {
	if l := s.locks[key]; l != nil {
		return l.holders[owner]
	}
	return nil
}

func (s *Server) placeOf(r request) *place {
	for _, p := range s.lock(r.keys[0]).queue {
		if p.owner == r.owner {
			return p
		}
	}
	return nil
}

// held is what a repeated request has already.
func (s *Server) held(r request) []any {
	var fences []any
	for _, key := range r.keys {
		h := s.holder(key, r.owner)
		if h == nil || h.isWriter != r.isWriter {
			return nil
		}
		fences = append(fences, h.fence)
	}
	for _, key := range r.keys {
		s.lease(s.holder(key, r.owner), key, r.owner, r.lease)
	}
	return fences
}

// isFree is true if nobody holds what excludes the request, or waits before it.
func (s *Server) isFree(r request, own *place) bool {
	for _, key := range r.keys {
		l := s.lock(key)
		shares := r.shares
		for _, h := range l.holders {
			if h.isWriter || r.isWriter {
				return false
			}
			shares += h.shares
		}
		if r.limit > 0 && shares > r.limit {
			return false
		}
		for _, before := range l.queue {
			if before == own {
				break
			}
			if before.isWriter || r.isWriter || r.limit > 0 {
				return false
			}
		}
	}
	return true
}

func (s *Server) grant(r request) []any {
	var fences []any
	for _, key := range r.keys {
		s.fence++
		h := &holder{shares: r.shares, limit: r.limit, isWriter: r.isWriter, fence: s.fence, note: r.note,
			since: time.Now()}
		s.lock(key).holders[r.owner] = h
		s.lease(h, key, r.owner, r.lease)
		fences = append(fences, h.fence)
	}
	return fences
}

// lease ends a hold after a time.
func (s *Server) lease(h *holder, key, owner string, lease time.Duration) {
	if h.timer != nil {
		h.timer.Stop()
	}
	h.until = time.Now().Add(lease)
	if lease >= forever {
		return
	}
	h.timer = time.AfterFunc(lease, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.holder(key, owner) == h {
			s.remove(key, owner)
		}
	})
}

func (s *Server) remove(key, owner string) {
	if h := s.holder(key, owner); h != nil {
		if h.timer != nil {
			h.timer.Stop()
		}
		delete(s.locks[key].holders, owner)
		s.serve()
	}
}

// release returns 0 for each key that was held, or offered, and nil for others.
func (s *Server) release(keys []string, owner string, fence int64) []any {
	values := make([]any, len(keys))
	offered := map[*place]bool{}
	for at, key := range keys {
		for _, p := range slices.Clone(s.lock(key).queue) {
			if p.owner == owner && fence == 0 {
				offered[p] = p.offered
				s.leave(p)
				if p.reply != nil {
					p.reply <- redislock.Reply{}
				}
			}
		}
		if h := s.holder(key, owner); h != nil && (fence == 0 || h.fence == fence) {
			s.remove(key, owner)
			values[at] = int64(0)
		}
	}
	for p, isOffered := range offered {
		for at, key := range keys {
			if isOffered && slices.Contains(p.keys, key) {
				values[at] = int64(0)
			}
		}
	}
	s.serve()
	return values
}

func (s *Server) leave(p *place) {
	if p == nil {
		return
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	for _, key := range p.keys {
		l := s.lock(key)
		l.queue = slices.DeleteFunc(l.queue, func(other *place) bool { return other == p })
	}
}

// serve grants what can be granted to those whose clients wait. To others it is offered: they ask again, and their
// channels are told of it once.
func (s *Server) serve() {
	for again := true; again; {
		again = false
		for _, l := range s.locks {
			for _, p := range l.queue {
				if p.reply == nil && !p.offered && s.isFree(p.request, p) {
					p.offered = true
					s.publish(p.channel, p.owner)
				}
				if p.reply != nil && s.isFree(p.request, p) {
					s.leave(p)
					p.reply <- reply(p.request, s.grant(p.request))
					again = true
					break
				}
			}
			if again {
				break
			}
		}
	}
	for key, l := range s.locks {
		if len(l.holders) == 0 && len(l.queue) == 0 {
			delete(s.locks, key)
		}
	}
}

func reply(r request, fences []any) redislock.Reply {
	if len(r.keys) == 1 {
		return redislock.Reply{Value: fences[0]}
	}
	return redislock.Reply{Value: fences}
}
