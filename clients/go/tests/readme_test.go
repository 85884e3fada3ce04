package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	redigo "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// Each block of Go in the README is a program, and runs.
func TestTheProgramsOfTheReadmeRun(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	programs := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(text, -1)
	if len(programs) < 2 {
		t.Fatalf("%d programs", len(programs))
	}
	for number, program := range programs {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "main.go")
			source := strings.ReplaceAll(string(program[1]), "127.0.0.1:6379", address(t))
			if err := os.WriteFile(file, []byte(source), 0o644); err != nil {
				t.Fatal(err)
			}
			if formatted, err := exec.Command("gofmt", "-l", file).CombinedOutput(); err != nil || len(formatted) > 0 {
				t.Errorf("gofmt: %s %v", formatted, err)
			}
			if output, err := exec.Command("go", "run", file).CombinedOutput(); err != nil || len(output) == 0 {
				t.Errorf("%s %v", output, err)
			} else {
				t.Logf("%s", output)
			}
		})
	}
}

// The ways of the README to ask who holds a lock, each with the client of its library.
func TestEachLibraryTellsWhoHoldsALockAsTheReadmeSays(t *testing.T) {
	page, err := os.ReadFile("../README.md")
	must(fake{T: t}, err)
	client := redis.NewClient(&redis.Options{Addr: address(t)})
	defer client.Close()
	other, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address(t)}})
	must(fake{T: t}, err)
	defer other.Close()
	connection, err := redigo.Dial("tcp", address(t))
	must(fake{T: t}, err)
	defer connection.Close()
	key := t.Name()
	must(fake{T: t}, client.Do(bg, "LOCK.ACQUIRE", key, "another", "PX", 600_000).Err())
	defer client.Del(bg, key)
	for _, one := range []struct {
		page     string
		holders  func(key string) (int, error)
		isNobody func(err error) bool
	}{
		{`client.Do(ctx, "LOCK.INFO", "report").Result()`, func(key string) (int, error) {
			reply, err := client.Do(bg, "LOCK.INFO", key).Result()
			if err != nil {
				return 0, err
			}
			holders := reply.(map[any]any)["holders"].([]any)
			return len(holders), checked(holders[0].(map[any]any)["owner"])
		}, func(err error) bool { return err == redis.Nil }},
		{`client.Do(ctx, client.B().Arbitrary("LOCK.INFO").Keys("report").Build()).AsMap()`, func(key string) (int, error) {
			reply, err := other.Do(bg, other.B().Arbitrary("LOCK.INFO").Keys(key).Build()).AsMap()
			if err != nil {
				return 0, err
			}
			of := reply["holders"]
			holders, err := of.ToArray()
			return len(holders), err
		}, rueidis.IsRedisNil},
		{`redis.Values(connection.Do("LOCK.INFO", "report"))`, func(key string) (int, error) {
			reply, err := redigo.Values(connection.Do("LOCK.INFO", key))
			for at := 0; at+1 < len(reply); at += 2 {
				if name, _ := redigo.String(reply[at], nil); name == "holders" {
					return len(reply[at+1].([]any)), err
				}
			}
			return 0, err
		}, func(err error) bool { return err == redigo.ErrNil }},
	} {
		if !strings.Contains(string(page), one.page) {
			t.Error("not on the page:", one.page)
		}
		if holders, err := one.holders(key); holders != 1 || err != nil {
			t.Error(one.page, holders, err)
		}
		if _, err := one.holders(key + ":nobody"); !one.isNobody(err) {
			t.Error(one.page, err)
		}
	}
}

func checked(owner any) error {
	if owner != "another" {
		return fmt.Errorf("%v holds it", owner)
	}
	return nil
}

// guide are the pages that begin with a few lines in each language.
var guide = []string{
	"README.md", "docs/guide/first-lock.md", "docs/guide/waiting.md", "docs/guide/readers-writers.md",
	"docs/guide/semaphores.md", "docs/guide/several-keys.md", "docs/guide/losing-a-lock.md",
	"docs/guide/recipes.md", "docs/guide/testing.md",
}

// aroundLines is the program for the lines of these pages, which run twice: each block of them is a function, which is
// given what it does not make itself.
const aroundLines = `package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"redis-lock.example/clients/go/lockgoredis"
	"redis-lock.example/clients/go/redislock"
	"redis-lock.example/clients/go/redislocktest"

	"github.com/redis/go-redis/v9"
)

var _, _, _ = errors.Is, time.Second, redislocktest.NewServer

func work(ctx context.Context, hold *redislock.Hold) error { return ctx.Err() }

func main() {
	transport, err := lockgoredis.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"}))
	if err != nil {
		panic(err)
	}
	locks := redislock.New(transport)
	for range 2 {
		for number, run := range []func(context.Context, *redislock.Client) error{%s} {
			if err := run(context.Background(), locks); err != nil {
				fmt.Println(number, err)
				os.Exit(1)
			}
		}
	}
	fmt.Println("the end")
}
%s`

// The lines in Go of the front page and of the guide are code that compiles, runs, and takes a lock without an error.
func TestTheLinesOfTheGuideRun(t *testing.T) {
	t.Parallel()
	var names, functions strings.Builder
	for _, page := range guide {
		text, err := os.ReadFile(filepath.Join("../../..", page))
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(text, -1)
		if len(blocks) == 0 {
			t.Errorf("%s has no line in Go", page)
		}
		for _, block := range blocks {
			name := fmt.Sprintf("block%d", functions.Len())
			fmt.Fprintf(&names, "%s, ", name)
			const function = "\nfunc %s(ctx context.Context, locks *redislock.Client) error {\n{\n%sreturn err\n}\n}\n"
			fmt.Fprintf(&functions, function, name, block[1])
		}
	}
	file := filepath.Join(t.TempDir(), "main.go")
	program := fmt.Sprintf(aroundLines, names.String(), functions.String())
	program = strings.ReplaceAll(program, "127.0.0.1:6379", address(t))
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: address(t)})
	defer client.Close()
	// An earlier run on this server may have done the job of the day.
	days := client.Keys(bg, "{nightly}*").Val()
	must(fake{T: t}, client.Del(bg, append(days, "{nightly}lock")...).Err())
	output, err := exec.Command("go", "run", file).CombinedOutput()
	if err != nil || !strings.Contains(string(output), "the end") {
		t.Errorf("%s %v\n%s", output, err, program)
	}
	// The second run may be at the next day.
	days = client.Keys(bg, "{nightly}*").Val()
	if ran := strings.Count(string(output), "once a day\n"); ran == 0 || ran != len(days) {
		t.Errorf("the job ran %d times, on the days %v", ran, days)
	}
	if terms := strings.Count(string(output), "leading with the fence "); terms != 2 {
		t.Errorf("%d terms of a leader", terms)
	}
}

// The lowest versions of the client libraries that the modules name, which are in lowest.mod.
func TestTheLowestVersionsPlayToo(t *testing.T) {
	t.Parallel()
	checkLowest(t)
	const play = "TestDeadIdle|TestTroubleIsTold|TestAWaitOutlives|" +
		"TestScenarios/(taken|waited|over|cancelled|several|lost|turns|guarded)$/(go-redis|redigo|rueidis)"
	command := exec.Command("go", "test", "-modfile=lowest.mod", "-count=1", "-run", play, ".")
	command.Env = append(os.Environ(), "GOWORK=off")
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("%s %v", output, err)
	}
}

// checkLowest compares lowest.mod with what the modules need.
func checkLowest(t *testing.T) {
	text, err := os.ReadFile("lowest.mod")
	if err != nil {
		t.Fatal(err)
	}
	for module, client := range clients {
		if client == "" {
			continue
		}
		needs, err := os.ReadFile(filepath.Join("..", module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		line := regexp.MustCompile(regexp.QuoteMeta(client) + ` \S+`).Find(needs)
		if !regexp.MustCompile(`(?m)^\t` + regexp.QuoteMeta(string(line)) + `( // indirect)?$`).Match(text) {
			t.Errorf("lowest.mod has not %s", line)
		}
	}
}

// clients are the modules of clients/go, and the client library of each.
var clients = map[string]string{
	"lockgoredis": "github.com/redis/go-redis/v9",
	"lockrueidis": "github.com/redis/rueidis",
	"lockredigo":  "github.com/gomodule/redigo",
	"lockgocron":  "",
	"lockotel":    "go.opentelemetry.io/otel/metric",
	".":           "",
}

// A program that needs one of the modules pulls in no other client.
func TestAModulePullsInNoOtherClient(t *testing.T) {
	for module, own := range clients {
		command := exec.Command("go", "list", "-m", "all")
		command.Dir = filepath.Join("..", module)
		command.Env = append(os.Environ(), "GOWORK=off")
		list, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %s", module, list)
		}
		for _, client := range clients {
			if isThere := strings.Contains(string(list), client+" "); client != "" && isThere != (client == own) {
				t.Errorf("%s: %s: %v:\n%s", module, client, isThere, list)
			}
		}
	}
}
