// SPDX-License-Identifier: MIT

package redislock

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"time"
)

// A Transport leads to the servers of the locks through some client library. The modules lockgoredis, lockrueidis and
// lockredigo have one each, and redislocktest has a server in memory. It never repeats a request: the engine does,
// where that is right.
type Transport interface {
	// Dial opens a connection to the server at the address, or to the one that the application named where the address
	// is empty: in a cluster to any node. It obeys the context. The engine keeps the connection, and closes it.
	Dial(ctx context.Context, address string) (Conn, error)
	// Subscribe opens a connection of its own, as Dial does, and subscribes to the channel there. It obeys the context
	// until the server has confirmed, and returns then. Each message goes to the function, by one goroutine.
	Subscribe(ctx context.Context, address string, channel Channel, message func(text string)) (Subscription, error)
	// Close ends what the Transport has beside its connections.
	Close() error
}

// A Conn is one connection. The engine uses it for one call of Do at a time.
type Conn interface {
	// Do sends the requests in one write, and returns a reply for each. It ends at the deadline of the context, which
	// is never cancelled, with errors that are no *ServerError. After one of these the Conn is of no more use.
	Do(ctx context.Context, requests []Request) []Reply
	// Close ends Do from another goroutine.
	Close() error
}

// A Channel is where a server tells the waits of a process that it is worthwhile to ask again.
type Channel struct {
	Name      string
	IsSharded bool // in a cluster: SSUBSCRIBE, and not SUBSCRIBE
}

// Command returns the name of the command that subscribes.
func (c Channel) Command() string {
	if c.IsSharded {
		return "SSUBSCRIBE"
	}
	return "SUBSCRIBE"
}

// A Subscription delivers messages until it ends: the server unsubscribed it, its connection failed, or Close.
type Subscription interface {
	// Done is closed when no message comes any more.
	Done() <-chan struct{}
	// Close returns when no message comes any more.
	Close() error
}

type subscription struct {
	shut func() error
	done chan struct{}
}

// Listen returns a Subscription. The function listen delivers its messages in a goroutine until it fails, and shut lets
// it fail.
func Listen(listen func(), shut func() error) Subscription {
	s := &subscription{shut: shut, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		listen()
	}()
	return s
}

func (s *subscription) Done() <-chan struct{} { return s.done }
func (s *subscription) Close() error {
	err := s.shut()
	<-s.done
	return err
}

// Homes are the addresses by which an application names its servers: one, Sentinels, or nodes of a cluster. The
// Dial and the Subscribe of a Transport use them where their address is empty.
type Homes struct {
	addresses []string
	first     atomic.Int64 // of addresses, the one that answered last
}

// NewHomes returns these addresses.
func NewHomes(addresses ...string) *Homes {
	return &Homes{addresses: append([]string(nil), addresses...)}
}

// At opens something at an address; if that is empty, at the first of these for which it succeeds. It begins with the
// one that answered last. The error is that of the last address.
func At[T any](h *Homes, address string, open func(address string) (T, error)) (found T, err error) {
	if address != "" {
		return open(address)
	}
	err = errors.New("redislock: the transport has no address")
	first := int(h.first.Load())
	for at := range h.addresses {
		at = (first + at) % len(h.addresses)
		if found, err = open(h.addresses[at]); err == nil {
			h.first.Store(int64(at))
			return found, nil
		}
	}
	return found, err
}

// Within opens something in a way that may not obey the context, and does not wait longer than that. What is opened
// later is closed.
func Within[T io.Closer](ctx context.Context, open func() (T, error)) (T, error) {
	type opened struct {
		found T
		err   error
	}
	got := make(chan opened, 1)
	go func() {
		found, err := open()
		got <- opened{found, err}
	}()
	select {
	case one := <-got:
		return one.found, one.err
	case <-ctx.Done():
	}
	go func() {
		if one := <-got; one.err == nil {
			one.found.Close()
		}
	}()
	var none T
	return none, context.Cause(ctx)
}

// A Request is a command and its arguments.
type Request []string

// A Reply is an int64, a string, a []any of these, or nil for null. Err is a *ServerError where the server answered
// with an error, and anything else where there was no answer.
type Reply struct {
	Value any
	Err   error
}

// A ServerError is an error that the server answered.
type ServerError struct {
	Code string // its first word, such as NOPERM
	Text string // all of it
}

// NewServerError returns the error with this text.
func NewServerError(text string) *ServerError {
	code, _, _ := strings.Cut(text, " ")
	return &ServerError{Code: code, Text: text}
}

func (e *ServerError) Error() string { return e.Text }

// says is true if it is an error without a code of its own, with a text that begins so. Some client libraries leave out
// ERR.
func (e *ServerError) says(text string) bool {
	return strings.HasPrefix(strings.ToLower(strings.TrimPrefix(e.Text, "ERR ")), strings.ToLower(text))
}

// isAhead is true if the fence that was asked for is too far ahead of the server's clock of fences.
func (e *ServerError) isAhead() bool { return e.says("MINFENCE is more than") }

// passes is true if asking again may help.
func (e *ServerError) passes() bool {
	switch e.Code {
	case "GRACE", "MOVED", "ASK", "UNBLOCKED", "READONLY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN",
		"NOREPLICAS", "MISCONF", "LIMIT", "OOM", "NOTIFYSLOT":
		return true
	}
	return e.says("max number of clients")
}

// limited is a context that has a deadline, and no timer.
type limited struct {
	context.Context // for its values
	deadline        time.Time
}

func (c limited) Deadline() (time.Time, bool) { return c.deadline, true }
func (c limited) Done() <-chan struct{}       { return nil }
func (c limited) Err() error {
	if !time.Now().Before(c.deadline) {
		return context.DeadlineExceeded
	}
	return nil
}
