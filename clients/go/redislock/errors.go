// SPDX-License-Identifier: MIT

package redislock

import (
	"errors"
	"fmt"
	"strings"
)

// What an [Error] may be, to be asked about with [errors.Is].
var (
	// ErrHeld says that others had the lock, or stood before this request, until the wait was over.
	ErrHeld = errors.New("held by others")
	// ErrLost says that the lock ended before it was given back: its lease was over, somebody broke it, or its key is
	// gone. If renewals failed until then, the error wraps why.
	ErrLost = errors.New("lost")
	// ErrReleased says that the Hold was given back, or handed over, before.
	ErrReleased = errors.New("released already")
	// ErrClosed says that the Client was closed.
	ErrClosed = errors.New("the client is closed")
	// ErrDeadlock says that waiting would close a cycle of owners. The only way out is to give back what one holds.
	ErrDeadlock = errors.New("deadlock")
	// ErrInvalid says that a call makes no sense: no key, a key twice, a bad option.
	ErrInvalid = errors.New("invalid")
	// ErrUnavailable says that the server could not be asked, or refused to answer yet, until the wait was over.
	ErrUnavailable = errors.New("unavailable")
	// ErrUnsupported says that the server has no module redis_lock, or one that is too old.
	ErrUnsupported = errors.New("unsupported")
)

// An Error says of which lock it speaks.
type Error struct {
	Key string // the first of the keys
	Err error
}

func (e *Error) Error() string {
	return fmt.Sprintf("redislock: %q: %s", e.Key, strings.ReplaceAll(e.Err.Error(), "\n", ": "))
}

func (e *Error) Unwrap() error { return e.Err }

func invalid(text string) error { return fmt.Errorf("%w: %s", ErrInvalid, text) }

// because is an error of this kind for this reason, if there is one.
func because(kind, reason error) error {
	if reason == nil {
		return kind
	}
	return fmt.Errorf("%w: %w", kind, reason)
}

// explained is what an application learns of an error that ends its wait.
func explained(err error) error {
	var reply *ServerError
	if !errors.As(err, &reply) {
		return because(ErrUnavailable, err)
	}
	switch {
	case reply.Code == "DEADLOCK":
		return because(ErrDeadlock, err)
	case isUnknown(reply):
		return because(ErrUnsupported, fmt.Errorf("the server has no module redis_lock: %w", err))
	case isOld(reply):
		return because(ErrUnsupported,
			fmt.Errorf("the server's module redis_lock is too old: this needs 1.0 or newer: %w", err))
	case reply.passes():
		return because(ErrUnavailable, err)
	}
	return err
}

func isUnknown(reply *ServerError) bool { return reply.says("unknown command") }

// isOld is true if the module does not know what a request asks for.
func isOld(reply *ServerError) bool { return reply.says("unknown option") }

// A Trouble is something that an operator should know. Each kind is told once, and again after it was over.
type Trouble struct {
	// Kind is "unreachable", "no module", "old module", "no right", "memory", "refused", "notify", "renewal", "release",
	// "lost" or "forgotten".
	Kind string
	Key  string
	Err  error
}

// troubleOf names the kind of what an acquisition met.
func troubleOf(err error) string {
	var reply *ServerError
	if !errors.As(err, &reply) {
		return "unreachable"
	}
	switch {
	case isUnknown(reply):
		return "no module"
	case isOld(reply):
		return "old module"
	case reply.Code == "NOPERM" || reply.Code == "NOAUTH" || reply.Code == "WRONGPASS":
		return "no right"
	case reply.Code == "OOM" || reply.Code == "LIMIT":
		return "memory"
	}
	return "refused"
}
