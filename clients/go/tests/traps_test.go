package tests

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"redis-lock.example/clients/go/lockgoredis"
	"redis-lock.example/clients/go/lockredigo"
	"redis-lock.example/clients/go/lockrueidis"
	"redis-lock.example/clients/go/redislock"

	redigo "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// narrow are the libraries with options that spoil waits: short time limits, retries, and a pool of one connection.
var narrow = []library{
	{"go-redis", func(t testing.TB, address string) redislock.Transport {
		client := redis.NewClient(&redis.Options{
			Addr: address, MaxRetries: 3, ReadTimeout: 300 * time.Millisecond, WriteTimeout: 300 * time.Millisecond,
			PoolSize: 1, PoolTimeout: 300 * time.Millisecond,
		})
		t.Cleanup(func() { client.Close() })
		found, err := lockgoredis.New(client)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}},
	{"rueidis", func(t testing.TB, address string) redislock.Transport {
		found, err := lockrueidis.New(rueidis.ClientOption{
			InitAddress: []string{address}, ConnWriteTimeout: 300 * time.Millisecond, BlockingPoolSize: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}},
	{"redigo", func(_ testing.TB, address string) redislock.Transport {
		return lockredigo.New(&redigo.Pool{MaxActive: 1, DialContext: func(ctx context.Context) (redigo.Conn, error) {
			return redigo.DialContext(ctx, "tcp", address, redigo.DialReadTimeout(300*time.Millisecond))
		}})
	}},
}

// A reply is lost. Whoever asks again is the engine alone, with RETRY.
func TestATransportSendsARequestOnce(t *testing.T) {
	onEachOf(t, narrow, func(s *stage) {
		to := s.library.to(s, s.proxy.address())
		defer to.Close()
		limit, cancel := context.WithTimeout(s.ctx, 30*time.Second)
		defer cancel()
		conn, err := to.Dial(limit, "")
		s.must(err)
		defer conn.Close()
		before := calls(s, s.admin, "lock.acquire")
		s.proxy.deafen(true)
		soon, over := context.WithTimeout(s.ctx, 2*time.Second)
		defer over()
		reply := conn.Do(soon, []redislock.Request{{"LOCK.ACQUIRE", s.key, "owner", "PX", "60000"}})[0]
		var answer *redislock.ServerError
		if reply.Err == nil || errors.As(reply.Err, &answer) {
			s.Error(reply)
		}
		s.proxy.deafen(false)
		// One that is cut off is not sent again over a new connection either.
		conn, err = to.Dial(limit, "")
		s.must(err)
		defer conn.Close()
		cut := time.AfterFunc(500*time.Millisecond, s.proxy.cut)
		defer cut.Stop()
		conn.Do(limit, []redislock.Request{{"LOCK.ACQUIRE", s.key, "next", "PX", "60000", "BLOCK", "10000"}})
		time.Sleep(time.Second)
		if sent := calls(s, s.admin, "lock.acquire") - before; sent != 2 {
			s.Error("two requests were sent", sent, "times")
		}
		if count, _ := s.do("LOCK.RELEASE", s.key, "owner").(int64); count != 0 {
			s.Error("it counts", count, "more")
		}
	})
}

// The connections of waits have no time limit but that of the request.
func TestTheTimeLimitsOfAClientEndNoWait(t *testing.T) {
	onEachOf(t, narrow, func(s *stage) {
		client := s.open(quiet, redislock.WithTrouble(func(one redislock.Trouble) { s.Error(one) }))
		s.do("LOCK.ACQUIRE", s.key, "another", "PX", 60_000)
		asked, dialled, begin := calls(s, s.admin, "lock.acquire"), s.proxy.dialled.Load(), time.Now()
		got := s.wait(client)
		time.Sleep(1500 * time.Millisecond)
		s.do("LOCK.RELEASE", s.key, "another")
		s.must(<-got)
		// To try it, and to wait; once more after each three seconds.
		most := 2 + int64(time.Since(begin)/(3*time.Second))
		if sent := calls(s, s.admin, "lock.acquire") - asked; sent > most {
			s.Error("requests:", sent)
		}
		if opened := s.proxy.dialled.Load() - dialled; opened > 2 {
			s.Error("connections:", opened)
		}
	})
}

// What waits has connections of its own: others, and the release that it waits for, are sent meanwhile.
func TestWaitsHoldUpNoOtherRequest(t *testing.T) {
	onEachOf(t, narrow, func(s *stage) {
		client := s.open(quiet, redislock.WithTrouble(func(one redislock.Trouble) { s.Error(one) }))
		hold, err := client.Lock(s.ctx, s.key)
		s.must(err)
		var got []<-chan error
		for range 6 {
			got = append(got, s.wait(client))
		}
		parked := func() map[string]bool {
			ids := map[string]bool{}
			list, err := s.admin.ClientList(s.ctx).Result()
			s.must(err)
			for _, found := range regexp.MustCompile(`(?m)^id=(\d+) .* flags=b .*$`).FindAllStringSubmatch(list, -1) {
				ids[found[1]] = true
			}
			return ids
		}
		s.until("six clients that wait", func() bool { return len(parked()) == 6 })
		before := parked()
		other, err := client.TryLock(s.ctx, s.key+"other", redislock.WithNote("other"))
		s.must(err)
		list, err := s.admin.ClientList(s.ctx).Result()
		s.must(err)
		for _, line := range strings.Split(list, "\n") {
			id, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " ")
			if before[id] && !strings.Contains(line, " flags=b ") {
				s.Error("a connection that waits was used, or its wait ended:", line)
			}
		}
		s.must(other.Unlock(s.ctx))
		s.must(hold.Unlock(s.ctx))
		for _, one := range got {
			s.must(<-one)
		}
	})
}

// PubSub.Channel of go-redis drops what comes after a hundred.
func TestASlowReaderOfMessagesMissesNone(t *testing.T) {
	const messages = 1000
	onEachAtOnce(t, func(s *stage) {
		to := s.library.to(s, s.proxy.address())
		defer to.Close()
		limit, cancel := context.WithTimeout(s.ctx, 30*time.Second)
		defer cancel()
		goesOn, heard := make(chan struct{}), make(chan string, messages)
		sub, err := to.Subscribe(limit, "", redislock.Channel{Name: s.key}, func(text string) {
			<-goesOn
			heard <- text
		})
		s.must(err)
		together := s.admin.Pipeline()
		for n := range messages {
			together.Publish(s.ctx, s.key, n)
		}
		_, err = together.Exec(s.ctx)
		s.must(err)
		if s.library.name == "go-redis" && os.Getenv("REDIS_LOCK_NIGHTLY") != "" {
			// It drops what nobody took for a minute.
			time.Sleep(65 * time.Second)
		}
		close(goesOn)
		for n := range messages {
			select {
			case text := <-heard:
				if text != fmt.Sprint(n) {
					s.Fatal(text, "and not", n)
				}
			case <-time.After(30 * time.Second):
				s.Fatal("messages:", n)
			}
		}
		s.must(sub.Close())
	})
}

// It is looked at each five seconds.
func TestASubscriptionThatDiesWithoutAWordEnds(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		to := s.library.to(s, s.proxy.address())
		defer to.Close()
		limit, cancel := context.WithTimeout(s.ctx, 60*time.Second)
		defer cancel()
		sub, err := to.Subscribe(limit, "", redislock.Channel{Name: s.key}, func(string) {})
		s.must(err)
		s.proxy.freeze()
		select {
		case <-sub.Done():
		case <-limit.Done():
			s.Error("it lives on")
		}
		sub.Close()
	})
}

// Each of them is tried no more after the first: the next attempt is over a new one.
func TestConnectionsThatDieWithoutAWordCostNoLock(t *testing.T) {
	onEachAtOnce(t, func(s *stage) {
		for _, client := range []*redislock.Client{s.open(quiet), s.open(quiet, none)} {
			// Six connections that are idle, where waits have some.
			s.do("LOCK.ACQUIRE", s.key, "another", "PX", 60_000)
			var got []<-chan error
			for range 6 {
				got = append(got, s.wait(client))
			}
			s.do("LOCK.RELEASE", s.key, "another")
			for _, one := range got {
				s.must(<-one)
			}
			hold, err := client.Lock(s.ctx, s.key, redislock.WithLease(safeLease))
			s.must(err)
			s.proxy.freeze()
			var all sync.WaitGroup
			for n := range 3 {
				all.Go(func() {
					next, err := client.Lock(s.ctx, fmt.Sprint(s.key, n))
					if err == nil {
						err = next.Unlock(s.ctx)
					}
					if err != nil {
						s.Error(err)
					}
				})
			}
			all.Wait()
			time.Sleep(safeLease)
			s.must(hold.Err())
			s.must(hold.Unlock(s.ctx))
			s.untilFree()
		}
	})
}

// A held lock has a connection from the first on, and a wait needs none of its own.
func TestNoLockIsLostWhileTheServerTakesNoMoreConnections(t *testing.T) {
	t.Parallel()
	for _, one := range libraries {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			for _, way := range ways {
				p := alone(t, program())
				e := elsewhere{t, p, one.name, way}
				client := redislock.New(p.to(t, one.name), append(way.options, quiet)...)
				hold := lock(e, client, "k", redislock.WithLease(safeLease))
				e.do("CONFIG", "SET", "maxclients", len(e.clients()))
				e.take("wanted")
				got := make(chan error, 1)
				go func() {
					next, err := client.Lock(bg, "wanted")
					if err == nil {
						err = next.Unlock(bg)
					}
					got <- err
				}()
				e.within("a waiter", func() bool { return e.waiting("wanted") == 1 })
				time.Sleep(safeLease + 2*time.Second)
				must(e, hold.Err())
				e.do("LOCK.RELEASE", "wanted", "another")
				must(e, <-got)
				must(e, hold.Unlock(bg))
				must(e, client.Close())
			}
		})
	}
}

// A node of a cluster hangs: the locks of the others are renewed.
func TestANodeThatHangsDelaysNoRenewalOfOthers(t *testing.T) {
	t.Parallel()
	p := cluster(t, program())
	e := elsewhere{T: t, place: p}
	holds := map[string]*redislock.Hold{}
	for _, one := range libraries {
		client := redislock.New(p.to(t, one.name), quiet)
		defer client.Close()
		for n := range 30 {
			key := fmt.Sprint(one.name, n)
			holds[key] = lock(e, client, key, redislock.WithLease(safeLease))
		}
	}
	must(e, p.servers[0].Do(bg, "CLIENT", "PAUSE", (safeLease+3*time.Second).Milliseconds(), "ALL").Err())
	time.Sleep(safeLease + time.Second)
	kept := 0
	for key, hold := range holds {
		slot, err := p.servers[1].ClusterKeySlot(bg, key).Result()
		must(e, err)
		if isHanging := slot < 5462; isHanging != (hold.Err() != nil) {
			t.Error(key, isHanging, hold.Err())
		} else if !isHanging {
			kept++
			must(e, hold.Unlock(bg))
		}
	}
	if kept == 0 || kept == len(holds) {
		t.Error(kept, "locks at others")
	}
}

// Dials that know no context: TLS of go-redis, and those of an application.
func TestAServerThatHangsInTheHandshakeProlongsNoCancel(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address, options := listener.Addr().String(), &tls.Config{InsecureSkipVerify: true}
	const patient = 2 * time.Minute
	oneRedis := redis.NewClient(&redis.Options{Addr: address, TLSConfig: options, DialTimeout: patient})
	defer oneRedis.Close()
	goRedis, err := lockgoredis.New(oneRedis)
	must(fake{T: t}, err)
	own, err := lockrueidis.New(rueidis.ClientOption{InitAddress: []string{address}, DialFn: func(
		address string, _ *net.Dialer, _ *tls.Config,
	) (net.Conn, error) {
		return tls.DialWithDialer(&net.Dialer{Timeout: patient}, "tcp", address, options)
	}})
	must(fake{T: t}, err)
	for name, to := range map[string]redislock.Transport{
		"go-redis": goRedis,
		"rueidis":  own,
		"redigo": lockredigo.NewDial(func(_ context.Context, address string) (redigo.Conn, error) {
			return redigo.Dial("tcp", address, redigo.DialUseTLS(true), redigo.DialTLSConfig(options),
				redigo.DialConnectTimeout(patient), redigo.DialTLSHandshakeTimeout(patient))
		}, address),
	} {
		t.Run(name, func(t *testing.T) {
			client := redislock.New(to, quiet)
			ctx, cancel := context.WithTimeout(bg, 200*time.Millisecond)
			defer cancel()
			begin := time.Now()
			_, err := client.Lock(ctx, "k")
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > patient/4 {
				t.Error(err, time.Since(begin))
			}
			begin = time.Now()
			if err := client.Close(); err != nil || time.Since(begin) > patient/4 {
				t.Error(err, time.Since(begin))
			}
		})
	}
}
