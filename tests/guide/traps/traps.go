// Redigo and go-redis as they come: traps LIBRARY PORT MODE. tests/guide/traps.rs says what the modes are.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
)

type send func(words ...interface{}) (interface{}, error)

func redigo(address string) send {
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", address) }}
	return func(words ...interface{}) (interface{}, error) {
		conn := pool.Get()
		defer conn.Close()
		return conn.Do(words[0].(string), words[1:]...)
	}
}

func goRedis(address string) send {
	client := goredis.NewClient(&goredis.Options{Addr: address})
	fmt.Println("version", goredis.Version())
	return func(words ...interface{}) (interface{}, error) {
		reply, err := client.Do(context.Background(), words...).Result()
		if err == goredis.Nil {
			return "redis.Nil", nil
		}
		return reply, err
	}
}

// kind is the type that an application asks an error for.
func kind(err error) string {
	var refusal goredis.Error
	if errors.As(err, &refusal) {
		return "redis.Error"
	}
	return fmt.Sprintf("%T", err)
}

func main() {
	address, mode := "127.0.0.1:"+os.Args[2], os.Args[3]
	ask := redigo(address)
	if os.Args[1] == "go-redis" {
		ask = goRedis(address)
	}
	say := func(what string, reply interface{}, err error) {
		if err != nil {
			fmt.Println("error", kind(err), err)
		} else {
			fmt.Println(what, reply)
		}
	}
	wait := func() {
		reply, err := ask("LOCK.ACQUIRE", "traps", "client", "PX", 600000, "BLOCK", 600000)
		say("reply", reply, err)
	}
	switch mode {
	case "wait":
		wait()
	case "shared":
		over := make(chan bool)
		go func() { wait(); over <- true }()
		bufio.NewReader(os.Stdin).ReadString('\n')
		fmt.Println("get sent")
		ask("GET", "traps:other")
		fmt.Println("get answered")
		<-over
	default:
		// Redigo does not tell its version.
		reply, err := ask("LOCK.ACQUIRE", "traps", "other")
		say("null", reply, err)
		reply, err = ask("LOCK.ACQUIRE", "traps", "other", "PX", 0)
		say("error", reply, err)
	}
}
