// Command agent drives the helper for Go: a JSON object a line on stdin asks, one on stdout answers. The scenarios of
// tests/helpers say what there is to ask. Build: tools/go.sh build -o target/helpers/go-agent
// ./tests/helpers/agents/go
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"redis-lock.example/redislock"

	"github.com/gomodule/redigo/redis"
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
	pool    *redis.Pool
	node    func(address string) *redis.Pool // with --cluster
	mu      sync.Mutex
	locks   map[string]*lock
	cancels map[int]context.CancelFunc
	out     sync.Mutex
}

func main() {
	a := &agent{
		pool:    newPool(os.Args[1]),
		locks:   map[string]*lock{},
		cancels: map[int]context.CancelFunc{},
	}
	if len(os.Args) > 2 && os.Args[2] == "--cluster" {
		a.node = cluster()
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

func newPool(url string) *redis.Pool {
	return &redis.Pool{Dial: func() (redis.Conn, error) { return redis.DialURL(url) }, MaxIdle: 3}
}

// cluster returns what leads to each node of a cluster: redigo has no cluster client, and the helper needs but this.
func cluster() func(address string) *redis.Pool {
	var mu sync.Mutex
	pools := map[string]*redis.Pool{}
	return func(address string) *redis.Pool {
		mu.Lock()
		defer mu.Unlock()
		if pools[address] == nil {
			pools[address] = newPool("redis://" + address)
		}
		return pools[address]
	}
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
	case "tasks":
		return answer{"tasks": runtime.NumGoroutine()}, nil
	case "close":
		return answer{}, a.pool.Close()
	case "ping":
		conn := a.pool.Get()
		defer conn.Close()
		_, err := conn.Do("PING")
		return answer{}, err
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
		if text, ok := reply.([]byte); ok {
			reply = string(text)
		}
		return answer{"reply": reply}, err
	case "lost":
		return answer{"lost": hold.Lost()}, nil
	case "await-lost":
		<-l.lost.Done()
		if cause := context.Cause(l.lost); cause != redislock.ErrLost {
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
	mutex := redislock.New(a.pool, l.Keys...)
	if l.Limit != nil {
		mutex = redislock.NewSemaphore(a.pool, l.Keys[0], *l.Limit)
		mutex.Take = l.Take
	}
	mutex.Lease = time.Duration(l.Lease * float64(time.Second))
	mutex.Shared, mutex.Note, mutex.Node = l.Shared, l.Note, a.node
	if l.Within != "" {
		outer := a.lock(l.Within)
		outer.mu.Lock()
		mutex.Within = outer.hold
		outer.mu.Unlock()
	}
	if l.Wait != nil {
		mutex.Wait = time.Duration(*l.Wait * float64(time.Second))
	}
	hold, err := mutex.Lock(ctx)
	if errors.Is(err, redislock.ErrNotAcquired) {
		return answer{"fences": nil}, nil
	} else if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold, l.lost, l.signals = hold, hold.Context(context.Background()), 0
	context.AfterFunc(l.lost, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.signals++
	})
	return answer{"fences": hold.Fences()}, nil
}

func kind(err error) string {
	var reply redis.Error
	switch {
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, redislock.ErrDeadlock):
		return "deadlock"
	case errors.Is(err, redislock.ErrLost):
		return "lost"
	case errors.Is(err, redislock.ErrInvalid), errors.Is(err, redislock.ErrUnlocked):
		return "refused"
	case errors.As(err, &reply):
		return "server"
	default:
		return "connection"
	}
}
