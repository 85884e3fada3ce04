package tests

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
)

// program is that of the server that the tests run on.
func program() string {
	if named := os.Getenv("REDIS_LOCK_SERVER"); named != "" {
		return named
	}
	return "redis-server"
}

// modulePath is the module that the tests load.
func modulePath(t testing.TB) string {
	file := os.Getenv("REDIS_LOCK_MODULE")
	if file == "" {
		file = "../../../target/release/libredis_lock.so"
	}
	file, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

var lastPort atomic.Uint32

// freePort is below the ports that kernels give to connections: any process may get those before a server listens.
func freePort(t testing.TB) int {
	for range 10_000 {
		port := 10_000 + (uint32(os.Getpid())*61+lastPort.Add(1))%10_000
		listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			listener.Close()
			return int(port)
		}
	}
	t.Fatal("no port is free")
	return 0
}

// serve starts a server of its own, in an empty folder, and ends it with the test.
func serve(t testing.TB, program string, words ...string) {
	t.Helper()
	command := exec.Command(program, words...)
	command.Dir = t.TempDir()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
}

// reachable waits until the client is answered.
func reachable(t testing.TB, client redis.UniversalClient) {
	t.Helper()
	t.Cleanup(func() { client.Close() })
	end := time.Now().Add(30 * time.Second)
	for client.Ping(context.Background()).Err() != nil {
		if time.Now().After(end) {
			t.Fatal("no server")
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// A place is one way to have servers.
type place struct {
	homes          []string // of the server, a few nodes of its cluster, or its Sentinels
	isCluster      bool
	master         string // by its Sentinel
	tls            *tls.Config
	user, password string
	options        []redislock.ClientOption
	admin          redis.UniversalClient
	servers        []*redis.Client // each
}

func (p *place) to(t testing.TB, library string) redislock.Transport {
	switch library {
	case "go-redis":
		var client redis.UniversalClient
		switch {
		case p.isCluster:
			client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: p.homes})
		case p.master != "":
			client = redis.NewFailoverClient(&redis.FailoverOptions{MasterName: p.master, SentinelAddrs: p.homes})
		default:
			client = redis.NewClient(&redis.Options{
				Addr: p.homes[0], TLSConfig: p.tls, Username: p.user, Password: p.password})
		}
		t.Cleanup(func() { client.Close() })
		found, err := lockgoredis.New(client)
		if err != nil {
			t.Fatal(err)
		}
		return found
	case "rueidis":
		found, err := lockrueidis.New(rueidis.ClientOption{
			InitAddress: p.homes, Sentinel: rueidis.SentinelOption{MasterSet: p.master}, TLSConfig: p.tls,
			Username: p.user, Password: p.password,
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	return lockredigo.NewDial(func(ctx context.Context, address string) (redigo.Conn, error) {
		return redigo.DialContext(ctx, "tcp", address, redigo.DialUseTLS(p.tls != nil), redigo.DialTLSConfig(p.tls),
			redigo.DialUsername(p.user), redigo.DialPassword(p.password))
	}, p.homes...)
}

func alone(t testing.TB, program string, words ...string) *place {
	return plain(t, program, append([]string{"--loadmodule", modulePath(t)}, words...)...)
}

// plain has no module.
func plain(t testing.TB, program string, words ...string) *place {
	port := freePort(t)
	serve(t, program, append([]string{"--port", strconv.Itoa(port), "--save", ""}, words...)...)
	home := fmt.Sprint("127.0.0.1:", port)
	admin := redis.NewClient(&redis.Options{Addr: home})
	reachable(t, admin)
	return &place{homes: []string{home}, admin: admin, servers: []*redis.Client{admin}}
}

// version is a server that make servers brings.
func version(t testing.TB, folder, program string) *place {
	file, err := filepath.Abs(filepath.Join("../../../target/servers", folder, program))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Skip("make servers brings it: ", err)
	}
	return alone(t, file)
}

// cluster has three nodes, each with a third of the slots.
func cluster(t testing.TB, program string) *place {
	p := &place{isCluster: true}
	var ports []int
	for range 3 {
		// The bus has a port of its own.
		port, bus := freePort(t), freePort(t)
		serve(t, program, "--port", strconv.Itoa(port), "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus),
			"--save", "", "--loadmodule", modulePath(t))
		client := redis.NewClient(&redis.Options{Addr: fmt.Sprint("127.0.0.1:", port)})
		reachable(t, client)
		p.servers, ports = append(p.servers, client), append(ports, bus)
		p.homes = append(p.homes, client.Options().Addr)
	}
	ctx := context.Background()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for at, one := range p.servers {
		must(one.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", at+1).Err())
		must(one.ClusterAddSlotsRange(ctx, at*5462, min(at*5462+5461, 16383)).Err())
		_, port, _ := net.SplitHostPort(p.homes[at])
		must(p.servers[0].Do(ctx, "CLUSTER", "MEET", "127.0.0.1", port, ports[at]).Err())
	}
	end := time.Now().Add(60 * time.Second)
	for _, one := range p.servers {
		for {
			info, err := one.ClusterInfo(ctx).Result()
			nodes, _ := one.ClusterNodes(ctx).Result()
			if err == nil && strings.Contains(info, "cluster_state:ok") && strings.Count(nodes, " connected ") == 3 {
				break
			}
			if time.Now().After(end) {
				t.Fatal(info, nodes)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	p.admin = redis.NewClusterClient(&redis.ClusterOptions{Addrs: p.homes})
	reachable(t, p.admin)
	return p
}

func sentinel(t testing.TB, program string) *place {
	p := alone(t, program)
	host, port, _ := net.SplitHostPort(p.homes[0])
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("port %d\nsentinel monitor locks %s %s 1\n", freePort(t), host, port)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	serve(t, program, file, "--sentinel")
	own := strings.Fields(text)[1]
	asked := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + own})
	reachable(t, asked)
	p.homes, p.master = []string{"127.0.0.1:" + own}, "locks"
	return p
}

func secured(t testing.TB, program string) *place {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	folder, known := t.TempDir(), x509.NewCertPool()
	write := func(name, kind string, bytes []byte) string {
		file := filepath.Join(folder, name)
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes})
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		known.AppendCertsFromPEM(text)
		return file
	}
	certificate, secret := write("cert", "CERTIFICATE", der), write("key", "EC PRIVATE KEY", private)
	port := freePort(t)
	p := alone(t, program, "--tls-port", strconv.Itoa(port), "--tls-cert-file", certificate, "--tls-key-file", secret,
		"--tls-ca-cert-file", certificate, "--tls-auth-clients", "no")
	p.homes, p.tls = []string{fmt.Sprint("127.0.0.1:", port)}, &tls.Config{RootCAs: known}
	return p
}

// limited has the rights that docs/operations/acl.md names, and no others.
func limited(t testing.TB, program string) *place {
	p := alone(t, program)
	p.user, p.password = "app", "secret"
	p.options = []redislock.ClientOption{redislock.WithChannelPrefix("app1:")}
	err := p.admin.Do(context.Background(), "ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "resetchannels",
		"&lock:notify:app1:*", "+lock.acquire", "+lock.release", "+lock.extend", "+lock.check", "+publish",
		"+subscribe").Err()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// elsewhere is a world on a place.
type elsewhere struct {
	*testing.T
	place   *place
	library string
	way     way
}

func (e elsewhere) open(opts ...redislock.ClientOption) *redislock.Client {
	told := redislock.WithTrouble(func(one redislock.Trouble) {
		// On a busy machine a subscription may not be confirmed in time.
		if one.Kind == "no right" || one.Kind == "notify" && !errors.Is(one.Err, context.DeadlineExceeded) {
			e.Error(one)
		}
	})
	opts = append(append(append(e.way.options, e.place.options...), told), opts...)
	c := redislock.New(e.place.to(e, e.library), opts...)
	e.Cleanup(func() { c.Close() })
	return c
}

func (e elsewhere) count(key, field string) int {
	e.Helper()
	value, err := e.place.admin.Do(context.Background(), "LOCK.INFO", key, "COUNT", 1000).Result()
	if err != nil && err != redis.Nil {
		e.Fatal(err)
	}
	list, _ := fieldOf(value, field).([]any)
	return len(list)
}

// number is a field of LOCK.INFO that counts.
func (e elsewhere) number(key, field string) int64 {
	e.Helper()
	value, err := e.place.admin.Do(context.Background(), "LOCK.INFO", key, "COUNT", 1).Result()
	if err != nil && err != redis.Nil {
		e.Fatal(err)
	}
	count, _ := fieldOf(value, field).(int64)
	return count
}

// clients are those of the server, one a line.
func (e elsewhere) clients() []string {
	e.Helper()
	list, err := e.place.servers[0].ClientList(context.Background()).Result()
	if err != nil {
		e.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(list), "\n")
}
func (e elsewhere) waiting(key string) int { return e.count(key, "waiters") }
func (e elsewhere) holding(key string) int { return e.count(key, "holders") }
func (e elsewhere) do(words ...any) {
	e.Helper()
	if err := e.place.admin.Do(context.Background(), words...).Err(); err != nil && err != redis.Nil {
		e.Fatal(err)
	}
}
func (e elsewhere) note(key string) string {
	e.Helper()
	value, err := e.place.admin.Do(context.Background(), "LOCK.INFO", key).Result()
	if err != nil {
		e.Fatal(err)
	}
	return noteOf(value)
}
func (e elsewhere) lose(key string) { e.do("LOCK.BREAK", key) }
func (e elsewhere) take(key string) { e.do("LOCK.ACQUIRE", key, "another", "PX", 600_000) }
func (e elsewhere) within(what string, met func() bool) {
	e.Helper()
	for end := time.Now().Add(30 * time.Second); !met(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			e.Fatal("waited for ", what)
		}
	}
}

// All connections are killed while somebody holds, and others wait.
func cut(w world, c *redislock.Client, key string) {
	hold := lock(w, c, key)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			next, err := c.Lock(bg, key)
			if err == nil {
				err = next.Unlock(bg)
			}
			if err != nil {
				w.Error(err)
			}
		})
	}
	w.within("two waiters", func() bool { return w.waiting(key) == 2 })
	for _, one := range w.(elsewhere).place.servers {
		for _, kind := range []string{"normal", "pubsub"} {
			one.Do(bg, "CLIENT", "KILL", "TYPE", kind)
		}
	}
	must(w, hold.Unlock(bg))
	all.Wait()
	w.within("nothing to be left", func() bool { return w.holding(key)+w.waiting(key) == 0 })
}

// Six scenarios, on other servers and over other ways to them.
func TestScenariosElsewhere(t *testing.T) {
	places := map[string]func(t testing.TB) *place{
		"redis 7.0":  func(t testing.TB) *place { return version(t, "redis-7.0", "redis-server") },
		"valkey 9.1": func(t testing.TB) *place { return version(t, "valkey-9.1", "valkey-server") },
		"cluster":    func(t testing.TB) *place { return cluster(t, program()) },
		"sentinel":   func(t testing.TB) *place { return sentinel(t, program()) },
		"tls":        func(t testing.TB) *place { return secured(t, program()) },
		"acl":        func(t testing.TB) *place { return limited(t, program()) },
	}
	for name, start := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			group := func(isParallel bool, name string, scenarios map[string]func(w world, c *redislock.Client, key string)) {
				t.Run(name, func(t *testing.T) {
					for name, play := range scenarios {
						for _, library := range libraries {
							if library.name == "redigo" && p.master != "" {
								continue // it knows no Sentinel
							}
							for _, way := range ways {
								t.Run(fmt.Sprint(name, " ", library.name, " ", way.name), func(t *testing.T) {
									if isParallel {
										t.Parallel()
									}
									e := elsewhere{t, p, library.name, way}
									play(e, e.open(quiet), t.Name())
								})
							}
						}
					}
				})
			}
			group(true, "calm", map[string]func(w world, c *redislock.Client, key string){
				"taken": taken, "waited": waited, "cancelled": cancelled, "lost": lost, "renewed": renewed,
			})
			// One after the other: each ends the connections of all.
			group(false, "torn", map[string]func(w world, c *redislock.Client, key string){"cut": cut})
		})
	}
}

// The channel of each node has a slot of this node, and serves the locks there.
func TestWaitsOfAClusterHearFromEachNode(t *testing.T) {
	t.Parallel()
	p := cluster(t, program())
	for _, library := range libraries {
		t.Run(library.name, func(t *testing.T) {
			e := elsewhere{t, p, library.name, ways[1]}
			client := e.open(quiet)
			var all sync.WaitGroup
			key := func(n int) string { return fmt.Sprint(t.Name(), n) }
			const locks = 30
			for n := range locks {
				e.take(key(n))
				all.Go(func() {
					if err := lockAndUnlock(bg, client, key(n)); err != nil {
						e.Error(err)
					}
				})
			}
			for _, one := range p.servers {
				e.within("a channel", func() bool {
					names, err := one.PubSubShardChannels(bg, "*").Result()
					return err == nil && len(names) == 1
				})
			}
			for n := range locks {
				e.within("a waiter", func() bool { return e.waiting(key(n)) == 1 })
				e.do("LOCK.RELEASE", key(n), "another")
			}
			all.Wait()
			must(e, client.Close())
			for _, one := range p.servers {
				e.within("no channel", func() bool {
					names, err := one.PubSubShardChannels(bg, "*").Result()
					return err == nil && len(names) == 0
				})
			}
		})
	}
}

// A wait asks at the new node, and hears from it.
func TestAWaitGoesWithItsSlot(t *testing.T) {
	t.Parallel()
	p := cluster(t, program())
	for _, library := range libraries {
		for _, way := range ways {
			t.Run(library.name+" "+way.name, func(t *testing.T) {
				e := elsewhere{t, p, library.name, way}
				client, key := e.open(quiet), t.Name()
				e.take(key)
				got := make(chan error, 1)
				go func() { got <- lockAndUnlock(bg, client, key) }()
				e.within("a waiter", func() bool { return e.waiting(key) == 1 })
				slot, err := p.servers[0].ClusterKeySlot(bg, key).Result()
				must(e, err)
				var ids []string
				from := 0
				for at, one := range p.servers {
					id, err := one.Do(bg, "CLUSTER", "MYID").Text()
					must(e, err)
					ids = append(ids, id)
					if one.Do(bg, "LOCK.INFO", key).Err() == nil {
						from = at
					}
				}
				to := (from + 1) % len(ids)
				host, port, _ := net.SplitHostPort(p.homes[to])
				must(e, p.servers[to].Do(bg, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from]).Err())
				must(e, p.servers[from].Do(bg, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to]).Err())
				must(e, p.servers[from].Do(bg, "MIGRATE", host, port, key, 0, 10_000).Err())
				for _, at := range []int{to, from, (to + 1) % len(ids)} {
					must(e, p.servers[at].Do(bg, "CLUSTER", "SETSLOT", slot, "NODE", ids[to]).Err())
				}
				count := func() int {
					value, _ := p.servers[to].Do(bg, "LOCK.INFO", key, "COUNT", 1000).Result()
					list, _ := fieldOf(value, "waiters").([]any)
					return len(list)
				}
				e.within("it to wait at the new node", func() bool { return count() == 1 })
				must(e, p.servers[to].Do(bg, "LOCK.RELEASE", key, "another").Err())
				must(e, <-got)
				must(e, client.Close())
			})
		}
	}
}
