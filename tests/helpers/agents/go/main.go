// Command agent drives the helper for Go: a JSON object a line on stdin asks, one on stdout answers. The scenarios of
// tests/helpers say what there is to ask. Its arguments are go-redis, rueidis or redigo, and the URL of a server; then
// --cluster if that is a node of one, and blocking=N: so many waits may block, and the others hear from the server.
// With the URL fake: it has a server in memory, and no library.
// Build: tools/go.sh build -o target/helpers/go-agent ./tests/helpers/agents/go
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"redis-lock.example/clients/go/lockgoredis"
	"redis-lock.example/clients/go/lockredigo"
	"redis-lock.example/clients/go/lockrueidis"
	"redis-lock.example/clients/go/redislock"
	"redis-lock.example/clients/go/redislocktest"

	redigo "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

type request struct {
	ID      int      `json:"id"`
	Do      string   `json:"do"`
	Lock    string   `json:"lock"`
	Of      int      `json:"of"`
	Keys    []string `json:"keys"`
	Lease   float64  `json:"lease"`
	Wait    *float64 `json:"wait"`
	Shared  bool     `json:"shared"`
	Limit   *uint32  `json:"limit"`
	Take    uint32   `json:"take"`
	Note    string   `json:"note"`
	Within  string   `json:"within"`
	Command []string `json:"command"`
}

type answer map[string]any

// A lock is a lock object of the scenarios: a mutex, and what it holds.
type lock struct {
	request
	mu      sync.Mutex
	hold    *redislock.Hold
	lost    context.Context // ends with the hold
	signals int
}

type agent struct {
	client  *redislock.Client
	memory  *redislocktest.Server       // with the URL fake:
	ping    func(context.Context) error // by the application's own client
	shut    func() error
	mu      sync.Mutex
	locks   map[string]*lock
	cancels map[int]context.CancelFunc
	told    []string // the troubles
	out     sync.Mutex
}

func main() {
	a := &agent{
		locks:   map[string]*lock{},
		cancels: map[int]context.CancelFunc{},
	}
	if err := a.open(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(2)
	}
	a.write(answer{"ready": "go"})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			os.Exit(2)
		}
		ctx, cancel := context.WithCancel(context.Background())
		a.mu.Lock()
		a.cancels[r.ID] = cancel
		a.mu.Unlock()
		go func() {
			defer cancel()
			reply, err := a.serve(ctx, r)
			if err != nil {
				reply = answer{"error": kind(err), "message": err.Error()}
			}
			reply["id"] = r.ID
			a.mu.Lock()
			delete(a.cancels, r.ID)
			a.mu.Unlock()
			a.write(reply)
		}()
	}
}

// open has a client of the library, as it comes, and locks through it.
func (a *agent) open(library, url string, words []string) error {
	cluster := false
	options := []redislock.ClientOption{redislock.WithTrouble(func(trouble redislock.Trouble) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.told = append(a.told, trouble.Kind+": "+trouble.Err.Error())
	})}
	for _, word := range words {
		var waits int
		if word == "--cluster" {
			cluster = true
		} else if _, err := fmt.Sscanf(word, "blocking=%d", &waits); err == nil {
			options = append(options, redislock.WithMaxBlocking(waits))
		} else {
			return fmt.Errorf("no argument %q", word)
		}
	}
	if url == "fake:" {
		a.memory = redislocktest.NewServer()
		a.client = a.memory.Client(options...)
		a.ping, a.shut = func(context.Context) error { return nil }, func() error { return nil }
		return nil
	}
	var transport redislock.Transport
	switch library {
	case "go-redis":
		options, err := redis.ParseURL(url)
		if err != nil {
			return err
		}
		var client redis.UniversalClient = redis.NewClient(options)
		if cluster {
			client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{options.Addr}})
		}
		if transport, err = lockgoredis.New(client); err != nil {
			return err
		}
		a.ping, a.shut = func(ctx context.Context) error { return client.Ping(ctx).Err() }, client.Close
	case "rueidis":
		options, err := rueidis.ParseURL(url)
		if err != nil {
			return err
		}
		if transport, err = lockrueidis.New(options); err != nil {
			return err
		}
		client, err := rueidis.NewClient(options)
		if err != nil {
			return err
		}
		a.ping = func(ctx context.Context) error { return client.Do(ctx, client.B().Ping().Build()).Error() }
		a.shut = func() error { client.Close(); return nil }
	case "redigo":
		pool := &redigo.Pool{Dial: func() (redigo.Conn, error) { return redigo.DialURL(url) }, MaxIdle: 3}
		transport = lockredigo.New(pool)
		if cluster {
			home := strings.TrimPrefix(url, "redis://")
			transport = lockredigo.NewDial(func(ctx context.Context, address string) (redigo.Conn, error) {
				return redigo.DialContext(ctx, "tcp", address)
			}, strings.Split(home, "/")[0])
		}
		a.ping = func(context.Context) error {
			conn := pool.Get()
			defer conn.Close()
			_, err := conn.Do("PING")
			return err
		}
		a.shut = pool.Close
	default:
		return fmt.Errorf("no library %q", library)
	}
	a.client = redislock.New(transport, options...)
	return nil
}

func (a *agent) write(reply answer) {
	line, err := json.Marshal(reply)
	if err != nil {
		panic(err)
	}
	a.out.Lock()
	defer a.out.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func (a *agent) lock(name string) *lock {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.locks[name]
}

func (a *agent) serve(ctx context.Context, r request) (answer, error) {
	switch r.Do {
	case "open":
		a.mu.Lock()
		defer a.mu.Unlock()
		a.locks[r.Lock] = &lock{request: r}
		return answer{}, nil
	case "cancel":
		a.mu.Lock()
		defer a.mu.Unlock()
		if cancel := a.cancels[r.Of]; cancel != nil {
			cancel()
		}
		return answer{}, nil
	case "troubles":
		a.mu.Lock()
		defer a.mu.Unlock()
		return answer{"troubles": append([]string{}, a.told...)}, nil
	case "tasks":
		return answer{"tasks": runtime.NumGoroutine()}, nil
	case "close":
		return answer{}, errors.Join(a.client.Close(), a.shut())
	case "ping":
		return answer{}, a.ping(ctx)
	case "server":
		if a.memory == nil {
			return nil, fmt.Errorf("%w: no server in memory", redislock.ErrInvalid)
		}
		reply, err := a.memory.Command(ctx, r.Command...)
		if err != nil {
			return answer{"reply": answer{"error": err.Error()}}, nil
		}
		return answer{"reply": reply}, nil
	}
	l := a.lock(r.Lock)
	if l == nil {
		return nil, fmt.Errorf("%w: no lock %q", redislock.ErrInvalid, r.Lock)
	}
	if r.Do == "acquire" {
		return a.acquire(ctx, l)
	}
	l.mu.Lock()
	hold := l.hold
	l.mu.Unlock()
	if hold == nil {
		return nil, fmt.Errorf("%w: lock %q is not held", redislock.ErrInvalid, r.Lock)
	}
	switch r.Do {
	case "release":
		return answer{"released": true}, hold.Unlock(ctx)
	case "check":
		held, err := hold.Check(ctx)
		return answer{"held": held}, err
	case "guard":
		args := make([]any, len(r.Command)-1)
		for i := range args {
			args[i] = r.Command[i+1]
		}
		reply, err := hold.Guard(ctx, r.Command[0], args...)
		return answer{"reply": reply}, err
	case "lost":
		return answer{"lost": errors.Is(hold.Err(), redislock.ErrLost)}, nil
	case "await-lost":
		<-l.lost.Done()
		if cause := context.Cause(l.lost); !errors.Is(cause, redislock.ErrLost) {
			return nil, cause
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return answer{"signals": max(l.signals, 1)}, nil
	case "owner":
		return answer{"owner": hold.Owner()}, nil
	}
	return nil, fmt.Errorf("%w: do %q", redislock.ErrInvalid, r.Do)
}

func (a *agent) acquire(ctx context.Context, l *lock) (answer, error) {
	var opts []redislock.LockOption
	if l.Limit != nil {
		opts = append(opts, redislock.WithShares(*l.Limit, l.Take))
	}
	if l.Lease != 0 {
		opts = append(opts, redislock.WithLease(time.Duration(l.Lease*float64(time.Second))))
	}
	if l.Shared {
		opts = append(opts, redislock.WithRead())
	}
	if l.Note != "" {
		opts = append(opts, redislock.WithNote(l.Note))
	}
	if l.Within != "" {
		outer := a.lock(l.Within)
		outer.mu.Lock()
		opts = append(opts, redislock.WithOuter(outer.hold))
		outer.mu.Unlock()
	}
	if l.Wait != nil {
		opts = append(opts, redislock.WithWait(time.Duration(*l.Wait*float64(time.Second))))
	}
	hold, err := a.client.LockAll(ctx, l.Keys, opts...)
	if errors.Is(err, redislock.ErrHeld) {
		return answer{"fences": nil}, nil
	} else if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold, l.signals = hold, 0
	l.lost, _ = hold.Context(context.Background())
	context.AfterFunc(l.lost, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.signals++
	})
	return answer{"fences": hold.Fences()}, nil
}

func kind(err error) string {
	var reply *redislock.ServerError
	switch {
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, redislock.ErrDeadlock):
		return "deadlock"
	case errors.Is(err, redislock.ErrLost):
		return "lost"
	case errors.Is(err, redislock.ErrInvalid), errors.Is(err, redislock.ErrReleased):
		return "refused"
	case errors.As(err, &reply):
		return "server"
	default:
		return "connection"
	}
}
