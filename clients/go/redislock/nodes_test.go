package redislock_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"redis-lock.example/redislock"

	"github.com/gomodule/redigo/redis"
)

// A node is a server of the test's own that answers each command with a line.
type node struct {
	net.Listener
	reply atomic.Value // func(command string) string
	asked atomic.Int32
}

func newNode(t *testing.T, reply func(command string) string) *node {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	n := &node{Listener: listener}
	n.reply.Store(reply)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go n.serve(conn)
		}
	}()
	return n
}

// serve ends without a reply where the reply is empty, as the death of a process does.
func (n *node) serve(conn net.Conn) {
	defer conn.Close()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		command := lines.Text()
		if !strings.HasPrefix(command, "LOCK.") {
			continue
		}
		n.asked.Add(1)
		reply := n.reply.Load().(func(string) string)(command)
		if reply == "" {
			return
		}
		io.WriteString(conn, reply+"\r\n")
	}
}

func dials(address string) *redis.Pool {
	return &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", address) }}
}

func (n *node) pool() *redis.Pool { return dials(n.Addr().String()) }

func (n *node) says(reply string) { n.reply.Store(func(string) string { return reply }) }

func (n *node) movesTo(other *node) { n.says(fmt.Sprintf("-MOVED 1 %s", other.Addr())) }

// The node that MOVED named has died. The one that the user named knows its replica, sooner or later.
func TestANodeThatDiesIsLeftForTheOneThatTookItsPlace(t *testing.T) {
	grants := func(string) string { return ":7" }
	home, first, second := newNode(t, grants), newNode(t, grants), newNode(t, grants)
	home.movesTo(first)
	mutex := redislock.New(home.pool(), "k")
	mutex.Node = dials
	ctx := context.Background()
	hold, err := mutex.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	first.says("")
	// Until the cluster notices, longer than MOVED is followed in a row.
	for range make([]struct{}, 12) {
		if held, err := hold.Check(ctx); err == nil {
			t.Fatal(held)
		}
	}
	home.movesTo(second)
	hold.Check(ctx)
	if held, err := hold.Check(ctx); !held || err != nil {
		t.Error(held, err)
	}

	// A wait, too.
	home.movesTo(first)
	mutex.Wait = 10 * time.Second
	time.AfterFunc(300*time.Millisecond, func() { home.movesTo(second) })
	if other, err := mutex.Lock(ctx); err != nil {
		t.Error(err)
	} else if err = other.Unlock(ctx); err != nil {
		t.Error(err)
	}
	second.says("")
	home.movesTo(first)
	first.says(":0")
	if err = hold.Unlock(ctx); err != nil {
		t.Error(err)
	}
}

// A function that knows no such node may return nil.
func TestANodeThatIsNotKnownIsAnError(t *testing.T) {
	grants := func(string) string { return ":7" }
	home, other := newNode(t, grants), newNode(t, grants)
	home.movesTo(other)
	mutex := redislock.New(home.pool(), "k")
	mutex.Node = func(string) *redis.Pool { return nil }
	if _, err := mutex.TryLock(context.Background()); err == nil || !strings.Contains(err.Error(), "MOVED") {
		t.Error(err)
	}
}

// An error reply is no reason to ask elsewhere.
func TestANodeThatAnswersIsStayedWith(t *testing.T) {
	grants := func(string) string { return ":7" }
	home, first := newNode(t, grants), newNode(t, grants)
	home.movesTo(first)
	mutex := redislock.New(home.pool(), "k")
	mutex.Node = dials
	ctx := context.Background()
	hold, err := mutex.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	first.says("-LOADING soon")
	for range make([]struct{}, 3) {
		if _, err := hold.Check(ctx); err == nil {
			t.Error("no error")
		}
	}
	first.says(":7")
	if err := hold.Unlock(ctx); err != nil {
		t.Error(err)
	}
	if home.asked.Load() != 1 {
		t.Errorf("home was asked %d times", home.asked.Load())
	}
}

// The node that the user named has died, and the other one only lost a connection.
func TestANodeIsFoundAgainWithoutTheOneThatNamedIt(t *testing.T) {
	grants := func(string) string { return ":7" }
	home, first := newNode(t, grants), newNode(t, grants)
	home.movesTo(first)
	mutex := redislock.New(home.pool(), "k")
	mutex.Node = dials
	ctx := context.Background()
	hold, err := mutex.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	home.says("")
	first.says("")
	if _, err := hold.Check(ctx); err == nil {
		t.Error("no error")
	}
	first.says(":7")
	hold.Check(ctx)
	if held, err := hold.Check(ctx); !held || err != nil {
		t.Error(held, err)
	}
	// A caller that gives up says nothing about the node.
	first.reply.Store(func(string) string { time.Sleep(100 * time.Millisecond); return ":7" })
	soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := hold.Check(soon); err == nil {
		t.Error("no error")
	}
	if err := hold.Unlock(ctx); err != nil {
		t.Error(err)
	}
	if home.asked.Load() != 2 {
		t.Errorf("home was asked %d times", home.asked.Load())
	}
}
