// Package tests plays redislock on servers: those of this machine that have the module, at REDIS_LOCK_PORT.
package tests

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redis-lock.example/clients/go/lockgoredis"
	"redis-lock.example/clients/go/lockredigo"
	"redis-lock.example/clients/go/lockrueidis"
	"redis-lock.example/clients/go/redislock"

	redigo "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"go.uber.org/goleak"
)

func address(t testing.TB) string {
	t.Helper()
	port := os.Getenv("REDIS_LOCK_PORT")
	if port == "" {
		t.Fatal("REDIS_LOCK_PORT names no server with the module")
	}
	return "127.0.0.1:" + port
}

// A library is a client library, and how a transport through it is made.
type library struct {
	name string
	to   func(t testing.TB, address string) redislock.Transport
}

var libraries = []library{
	{"go-redis", func(t testing.TB, address string) redislock.Transport {
		client := redis.NewClient(&redis.Options{Addr: address})
		t.Cleanup(func() { client.Close() })
		found, err := lockgoredis.New(client)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}},
	{"rueidis", func(t testing.TB, address string) redislock.Transport {
		found, err := lockrueidis.New(rueidis.ClientOption{InitAddress: []string{address}})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}},
	{"redigo", func(_ testing.TB, address string) redislock.Transport {
		return lockredigo.New(&redigo.Pool{DialContext: func(ctx context.Context) (redigo.Conn, error) {
			return redigo.DialContext(ctx, "tcp", address)
		}})
	}},
}

var keys atomic.Int64

// A stage is a server, a key of its own on it, and a client through one library.
type stage struct {
	*testing.T
	library library
	proxy   *proxy
	key     string
	ctx     context.Context
	admin   *redis.Client
	client  *redislock.Client
}

// onEach plays a test through each library, and sees that no goroutine is left. It has the server for itself.
func onEach(t *testing.T, play func(s *stage)) {
	t.Helper()
	onEachOf(t, libraries, play)
}

func onEachOf(t *testing.T, libraries []library, play func(s *stage)) {
	t.Helper()
	for _, one := range libraries {
		t.Run(one.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			t.Cleanup(func() { goleak.VerifyNone(t, before) })
			playOn(t, one, play)
		})
	}
}

// onEachAtOnce plays a test that shares the server with others.
func onEachAtOnce(t *testing.T, play func(s *stage)) {
	t.Helper()
	t.Parallel()
	for _, one := range libraries {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			playOn(t, one, play)
		})
	}
}

func playOn(t *testing.T, one library, play func(s *stage)) {
	s := &stage{T: t, library: one, ctx: context.Background()}
	s.stand()
	s.client = s.open(quiet)
	play(s)
}

// TestMain sees that no goroutine outlives all tests. Most tests sleep, so that many run at once.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func (s *stage) stand() {
	s.proxy = newProxy(s, address(s))
	s.key = fmt.Sprintf("%s:%d", s.Name(), keys.Add(1))
	s.admin = redis.NewClient(&redis.Options{Addr: address(s)})
	s.Cleanup(func() { s.admin.Close() })
}

// open returns one more client, through the proxy.
func (s *stage) open(opts ...redislock.ClientOption) *redislock.Client {
	c := redislock.New(s.library.to(s, s.proxy.address()), opts...)
	s.Cleanup(func() { c.Close() })
	return c
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stage) do(args ...any) any {
	s.Helper()
	value, err := s.admin.Do(s.ctx, args...).Result()
	if err != nil && err != redis.Nil {
		s.Fatal(err)
	}
	return value
}

func (s *stage) lock(opts ...redislock.LockOption) *redislock.Hold {
	s.Helper()
	hold, err := s.client.Lock(s.ctx, s.key, opts...)
	s.must(err)
	return hold
}

// info is a field of LOCK.INFO, or nil.
func (s *stage) info(field string) any {
	s.Helper()
	return fieldOf(s.do("LOCK.INFO", s.key, "COUNT", 1000), field)
}

// fieldOf is a field of a reply of LOCK.INFO, or nil.
func fieldOf(reply any, field string) any {
	switch found := reply.(type) {
	case map[any]any:
		return found[field]
	case []any:
		for at := 0; at+1 < len(found); at += 2 {
			if found[at] == field {
				return found[at+1]
			}
		}
	}
	return nil
}

// noteOf is the note of the first holder in a reply of LOCK.INFO.
func noteOf(reply any) string {
	holders, _ := fieldOf(reply, "holders").([]any)
	if len(holders) == 0 {
		return ""
	}
	note, _ := fieldOf(holders[0], "note").(string)
	return note
}

func (s *stage) isFree() bool { return s.do("LOCK.INFO", s.key) == nil }

func (s *stage) waiters() int {
	list, _ := s.info("waiters").([]any)
	return len(list)
}

func (s *stage) until(what string, met func() bool) {
	s.Helper()
	for end := time.Now().Add(30 * time.Second); !met(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("waited for %s: %v", what, s.do("LOCK.INFO", s.key))
		}
	}
}

func (s *stage) untilFree() { s.Helper(); s.until("the lock to be free", s.isFree) }

// A proxy is a network that can be slow, hang, lose replies, or be cut.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex
	to       string
	conns    map[net.Conn]bool // true: no byte passes any more
	delay    time.Duration     // each way
	change   func(request []byte) []byte
	hangs    bool
	isDeaf   bool
	stalls   int // the next requests for a lease die with their connections, until they thaw
	ended    bool
	going    *sync.Cond
	dialled  atomic.Int64
	late     atomic.Int64 // requests that were held back, and have arrived
	refuses  atomic.Bool
	all      sync.WaitGroup
}

func newProxy(t testing.TB, to string) *proxy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, to: to, conns: map[net.Conn]bool{}}
	p.going = sync.NewCond(&p.mu)
	p.all.Add(1)
	go p.accept()
	t.Cleanup(func() {
		listener.Close()
		p.mu.Lock()
		p.ended = true
		p.mu.Unlock()
		p.hang(false)
		p.cut()
		p.all.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	defer p.all.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.dialled.Add(1)
		if p.refuses.Load() {
			client.Close()
			continue
		}
		server, err := net.Dial("tcp", p.to)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = false, false
		ended := p.ended
		p.mu.Unlock()
		if ended {
			client.Close()
			server.Close()
			continue
		}
		p.all.Add(2)
		go p.pass(client, server, false)
		go p.pass(server, client, true)
	}
}

func (p *proxy) pass(from, to net.Conn, areReplies bool) {
	defer p.all.Done()
	defer to.Close()
	defer from.Close()
	data := make([]byte, 64<<10)
	for {
		size, err := from.Read(data)
		if err != nil {
			break
		}
		p.mu.Lock()
		if p.stalls > 0 && !areReplies && bytes.Contains(data[:size], []byte("LOCK.EXTEND")) {
			p.stalls--
			p.conns[from] = true
		}
		isLate := !areReplies && (p.hangs || p.conns[from])
		for !p.ended && (p.hangs || p.conns[from]) {
			p.going.Wait()
		}
		delay, isLost, passed := p.delay, p.isDeaf && areReplies, data[:size]
		if p.change != nil && !areReplies {
			passed = p.change(passed)
		}
		p.mu.Unlock()
		time.Sleep(delay)
		if isLost {
			continue
		}
		if _, err := to.Write(passed); err != nil {
			break
		}
		if isLate {
			p.late.Add(1)
		}
	}
	p.mu.Lock()
	delete(p.conns, from)
	p.mu.Unlock()
}

// hang lets bytes wait, or go on.
func (p *proxy) hang(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hangs = on
	p.going.Broadcast()
}

// slow lets each byte take so long.
func (p *proxy) slow(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// deafen loses replies, or no more.
func (p *proxy) deafen(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isDeaf = on
}

// freeze lets all connections die without a word. New ones work.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		p.conns[conn] = true
	}
}

// stall lets that many connections die without a word, each when a request for a lease comes over it.
func (p *proxy) stall(requests int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalls = requests
}

// thaw lets arrive what was sent on them meanwhile.
func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		p.conns[conn] = false
	}
	p.going.Broadcast()
}

// rewrite changes requests.
func (p *proxy) rewrite(change func(request []byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change = change
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		conn.Close()
	}
}
