package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"redis-lock.example/clients/go/redislock"
	"redis-lock.example/clients/go/redislocktest"
)

var none = redislock.WithMaxBlocking(0)

// lockAndUnlock takes a lock and gives it back.
func lockAndUnlock(ctx context.Context, client *redislock.Client, key string) error {
	hold, err := client.Lock(ctx, key)
	if err == nil {
		err = hold.Unlock(ctx)
	}
	return err
}

// take takes the lock and gives it back, in a goroutine. The error is there when that is done.
func (s *stage) take(client *redislock.Client) <-chan error {
	got := make(chan error, 1)
	go func() { got <- lockAndUnlock(s.ctx, client, s.key) }()
	return got
}

// wait does the same, and is in the queue now.
func (s *stage) wait(client *redislock.Client) <-chan error {
	before := s.waiters()
	got := s.take(client)
	s.until("a waiter", func() bool { return s.waiters() == before+1 })
	return got
}

func (s *stage) channels() []string {
	var names []string
	list, _ := s.do("PUBSUB", "CHANNELS", "lock:notify:*").([]any)
	for _, name := range list {
		names = append(names, name.(string))
	}
	return names
}

// Its application's prefix, which a right may be for. One for all waits of a client, and closed with it.
func TestOneSubscriptionServesAllWaits(t *testing.T) {
	onEach(t, func(s *stage) {
		client := s.open(quiet, none, redislock.WithChannelPrefix("app1:"))
		s.do("LOCK.ACQUIRE", s.key, "another", "PX", 60_000)
		dialled := s.proxy.dialled.Load()
		ctx, cancel := context.WithCancel(s.ctx)
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if _, err := client.Lock(ctx, s.key); !errors.Is(err, context.Canceled) {
					s.Error(err)
				}
			})
		}
		s.until("all to wait", func() bool { return s.waiters() == 100 && len(s.channels()) > 0 })
		if names := s.channels(); len(names) != 1 || !strings.HasPrefix(names[0], "lock:notify:app1:") {
			s.Error(names)
		}
		if more := s.proxy.dialled.Load() - dialled; more > 6 {
			s.Error("connections:", more)
		}
		cancel()
		all.Wait()
		s.until("no place", func() bool { return s.waiters() == 0 })
		s.must(client.Close())
		s.until("no subscription", func() bool { return len(s.channels()) == 0 })
		s.do("LOCK.RELEASE", s.key, "another")
	})
}

// Again and again: what was published meanwhile is asked for.
func TestSubscriptionsThatEndLoseNoTurn(t *testing.T) {
	onEach(t, func(s *stage) {
		client := s.open(quiet, none)
		var all sync.WaitGroup
		var killed atomic.Int32
		for range 8 {
			all.Go(func() {
				for killed.Load() < 10 {
					if err := lockAndUnlock(s.ctx, client, s.key); err != nil {
						s.Error(err)
					}
				}
			})
		}
		for killed.Load() < 10 {
			s.until("a subscription", func() bool { return len(s.channels()) == 1 })
			s.do("CLIENT", "KILL", "TYPE", "PUBSUB")
			killed.Add(1)
		}
		all.Wait()
		s.untilFree()
	})
}

// A server whose lock.max-queue-ms is lower says so.
func TestAWaitTakesTheTimeThatTheServerAllows(t *testing.T) {
	onEach(t, func(s *stage) {
		s.do("CONFIG", "SET", "lock.max-queue-ms", "5000")
		defer s.do("CONFIG", "SET", "lock.max-queue-ms", "60000")
		for _, way := range ways {
			client := s.open(append(way.options, quiet)...)
			s.do("LOCK.ACQUIRE", s.key, "another", "PX", 60_000)
			got := s.wait(client)
			s.do("LOCK.RELEASE", s.key, "another")
			s.must(<-got)
		}
	})
}

// Waits ask each second.
func TestAWaitOnAModuleThatKnowsNoNotifyEndsToo(t *testing.T) {
	inMemory(t, &tapped{unknown: "NOTIFY"}, func(server *tapped, got <-chan error) {
		time.Sleep(10 * time.Second)
		if asked := server.asked("LOCK.ACQUIRE"); asked < 10 || asked > 16 {
			t.Error("requests:", asked)
		}
		server.Lose("k")
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if len(got) == 0 {
			t.Error("it still waits")
		}
	})
}

// A message is a hint, which may be lost.
func TestAWaitWithoutMessagesEndsToo(t *testing.T) {
	inMemory(t, &tapped{isMute: true}, func(server *tapped, got <-chan error) {
		time.Sleep(25 * time.Second)
		// The first try, two when there is a channel, and one each ten seconds, or a little earlier.
		if asked := server.asked("LOCK.ACQUIRE"); asked < 4 || asked > 6 {
			t.Error("requests:", asked)
		}
		server.Lose("k")
		begin := time.Now()
		synctest.Wait()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(got) == 0 {
			t.Error("it still waits", time.Since(begin))
		}
	})
}

// It asks each second meanwhile.
func TestAServerThatWasTooSlowToConfirmIsAskedAgain(t *testing.T) {
	server := &tapped{}
	server.isSlow.Store(true)
	inMemory(t, server, func(server *tapped, got <-chan error) {
		time.Sleep(5 * time.Second)
		server.isSlow.Store(false)
		time.Sleep(10 * time.Second)
		before := server.asked("LOCK.ACQUIRE")
		time.Sleep(5 * time.Second)
		if asked := server.asked("LOCK.ACQUIRE") - before; asked > 1 {
			t.Error("requests:", asked)
		}
		server.Lose("k")
		synctest.Wait()
		if len(got) == 0 {
			t.Error("it heard nothing")
		}
	})
}

// What was said meanwhile is lost, so all ask when the subscription is there again.
func TestAfterALostSubscriptionAllWaitsAsk(t *testing.T) {
	inMemory(t, &tapped{isMute: true}, func(server *tapped, got <-chan error) {
		before := server.asked("LOCK.ACQUIRE")
		server.SetDown(true)
		time.Sleep(time.Second)
		server.SetDown(false)
		server.Lose("k")
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		if len(got) == 0 || server.asked("LOCK.ACQUIRE") == before {
			t.Error("it did not ask")
		}
	})
}

// A write is a message to the server, and another one to read its replies.
func TestWaitsThatAreToldAtOnceAskInOneWrite(t *testing.T) {
	const waits, tries = 10, 100
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	server := &tapped{}
	inBubble(t, server, []redislock.ClientOption{none}, func(t *testing.T, client *redislock.Client, _ *atomic.Int64) {
		server.Take("k")
		ctx, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		for range waits {
			all.Go(func() { client.Lock(ctx, "k") })
		}
		synctest.Wait()
		server.most.Store(0)
		// The system may have other plans for a while.
		for try := 0; server.most.Load() < waits && try < tries; try++ {
			server.Publish(server.channel.Load().(string), "*")
			time.Sleep(2 * time.Second)
		}
		if most := server.most.Load(); most < waits {
			t.Error("requests in one write:", most)
		}
		cancel()
		all.Wait()
	})
}

// Half a minute after the last wait nothing is left of it.
func TestASubscriptionWithoutWaitsEnds(t *testing.T) {
	inMemory(t, &tapped{}, func(server *tapped, got <-chan error) {
		channel := server.channel.Load().(string)
		server.Lose("k")
		synctest.Wait()
		time.Sleep(20 * time.Second)
		if server.Publish(channel, "nobody") != 1 {
			t.Error("the next wait needs another one")
		}
		time.Sleep(25 * time.Second)
		synctest.Wait()
		if server.Publish(channel, "nobody") != 0 {
			t.Error("it is left")
		}
	})
}

// Anybody may publish what he likes: he gets a few requests for it, and no lock.
func TestForgedMessagesBringAboutFewRequests(t *testing.T) {
	inMemory(t, &tapped{}, func(server *tapped, got <-chan error) {
		owner := server.WaitingOwners("k")[0]
		forge := func(text string, least, most int64) {
			before := server.asked("LOCK.ACQUIRE")
			for range 5000 {
				server.Publish(server.channel.Load().(string), text)
				time.Sleep(time.Millisecond)
			}
			if more := server.asked("LOCK.ACQUIRE") - before; more > most || more < least {
				t.Error(text, "requests:", more)
			}
		}
		forge("*", 2, 8)
		forge("nobody", 0, 2)
		forge(owner, 2, 10)
		if len(got) > 0 {
			t.Error(<-got)
		}
		server.Lose("k")
	})
}

// A step is a request, the end of a connection, or a message that is waited for.
type step struct {
	on    int // connection
	words string
}

// One message for an offer; the server in memory says what a real one says.
func TestTheServerInMemoryNotifiesAsARealOne(t *testing.T) {
	plays := map[string][]step{
		"a place is offered": {
			{0, "LOCK.ACQUIRE k a PX 60000"}, {1, "LOCK.ACQUIRE k b PX 60000 RETRY 1 QUEUE 60000 NOTIFY ch"},
			{0, "LOCK.RELEASE k a ALL"}, {1, "LOCK.ACQUIRE k b PX 60000 RETRY 1 QUEUE 60000 NOTIFY ch"},
			{1, "LOCK.RELEASE k b ALL"}},
		"an offer is given back, and the next is told": {
			{0, "LOCK.ACQUIRE k a PX 60000"}, {1, "LOCK.ACQUIRE k b PX 60000 RETRY 1 QUEUE 60000 NOTIFY ch"},
			{1, "LOCK.ACQUIRE k c PX 60000 RETRY 1 QUEUE 60000 NOTIFY ch"}, {0, "LOCK.RELEASE k a ALL"},
			{1, "LOCK.RELEASE k b ALL"}, {1, "LOCK.RELEASE k c ALL"}},
		"a place that is given up is not told": {
			{0, "LOCK.ACQUIRE k a PX 60000"}, {1, "LOCK.ACQUIRE k b PX 60000 RETRY 1 QUEUE 60000 NOTIFY ch"},
			{1, "LOCK.RELEASE k b ALL"}, {0, "LOCK.RELEASE k a ALL"}},
		"the last request sets the channel": {
			{0, "LOCK.ACQUIRE k a PX 60000"}, {1, "LOCK.ACQUIRE k b PX 60000 RETRY 1 QUEUE 60000 NOTIFY ch"},
			{1, "LOCK.ACQUIRE k b PX 60000 RETRY 1 QUEUE 60000"}, {0, "LOCK.RELEASE k a ALL"},
			{1, "LOCK.RELEASE k b ALL"}},
		"a lease that ends": {
			{0, "LOCK.ACQUIRE k a PX 3000"}, {1, "LOCK.ACQUIRE k b PX 60000 RETRY 1 QUEUE 60000 NOTIFY ch"},
			{0, "TOLD"}, {1, "LOCK.RELEASE k b ALL"}},
		"readers are told together": {
			{0, "LOCK.ACQUIRE k a PX 60000"}, {1, "LOCK.RW k b READ PX 60000 RETRY 1 QUEUE 60000 NOTIFY ch"},
			{1, "LOCK.RW k c READ PX 60000 RETRY 1 QUEUE 60000 NOTIFY ch"}, {0, "LOCK.RELEASE k a ALL"},
			{1, "LOCK.RELEASE k b ALL"}, {1, "LOCK.RELEASE k c ALL"}},
		"several keys are one message": {
			{0, "LOCK.ACQUIRE k a PX 60000"}, {0, "LOCK.ACQUIRE l a PX 60000"},
			{1, "LOCK.MACQUIRE 2 k l b WRITE PX 60000 RETRY 1 QUEUE 60000 NOTIFY ch"}, {0, "LOCK.RELEASE k a ALL"},
			{0, "LOCK.RELEASE l a ALL"}, {1, "LOCK.MRELEASE 2 k l b ALL"}},
		"its connection closes": {
			{0, "LOCK.ACQUIRE k a PX 60000"}, {1, "LOCK.ACQUIRE k b PX 60000 RETRY 1 QUEUE 60000 NOTIFY ch"},
			{2, "LOCK.ACQUIRE k c PX 60000 RETRY 1 QUEUE 60000 NOTIFY ch"}, {1, "CLOSE"},
			{0, "LOCK.RELEASE k a ALL"}, {0, "TOLD"}, {0, "TOLD"}, {2, "LOCK.RELEASE k c ALL"}},
		"NOTIFY needs QUEUE": {{0, "LOCK.ACQUIRE k a PX 60000 NOTIFY ch"}},
	}
	for name, steps := range plays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want, got []string
			synctest.Test(t, func(t *testing.T) {
				server := redislocktest.NewServer()
				want = played(t, server, "k", steps, func(channel string) { server.Publish(channel, "end") })
			})
			s := &stage{T: t, library: libraries[0], ctx: context.Background()}
			s.stand()
			to := s.library.to(s, address(s))
			got = played(t, to, s.key, steps, func(channel string) { s.do("PUBLISH", channel, "end") })
			if !slices.Equal(got, want) {
				t.Errorf("in memory:\n%s\non the server:\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
			}
		})
	}
}

// played returns the replies, and then the messages.
func played(t *testing.T, to redislock.Transport, key string, steps []step, end func(channel string)) []string {
	var replies, told []string
	messages := make(chan string, 100)
	sub, err := to.Subscribe(t.Context(), "", redislock.Channel{Name: key}, func(text string) { messages <- text })
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	conns := map[int]redislock.Conn{}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	for _, step := range steps {
		conn := conns[step.on]
		if conn == nil {
			if conn, err = to.Dial(ctx, ""); err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conns[step.on] = conn
		}
		switch step.words {
		case "CLOSE":
			conn.Close()
			continue
		case "TOLD":
			select {
			case text := <-messages:
				told = append(told, text)
			case <-ctx.Done():
				t.Fatal("no message")
			}
			continue
		}
		words := redislock.Request(strings.Split(step.words, " "))
		for at, word := range words {
			switch word {
			case "k", "l":
				words[at] = "{" + key + "}" + word
			case "ch":
				words[at] = key
			}
		}
		reply := conn.Do(ctx, []redislock.Request{words})[0]
		if _, ok := reply.Value.(int64); ok && !strings.Contains(words[0], "RELEASE") {
			reply.Value = "a fence"
		}
		replies = append(replies, fmt.Sprint(step.words, ": ", reply.Value, " ", reply.Err))
	}
	for end(key); ; {
		text := <-messages
		if text == "end" {
			return append(replies, told...)
		}
		told = append(told, text)
	}
}
