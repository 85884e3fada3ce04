// Redigo as it comes: traps LIBRARY PORT MODE. tests/guide/traps.rs says what the modes are.
package main

import (
	"bufio"
	"fmt"
	"os"

	"github.com/gomodule/redigo/redis"
)

func main() {
	mode := os.Args[3]
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", "127.0.0.1:"+os.Args[2]) }}
	send := func(name string, words ...interface{}) (interface{}, error) {
		conn := pool.Get()
		defer conn.Close()
		return conn.Do(name, words...)
	}
	say := func(what string, reply interface{}, err error) {
		if err != nil {
			fmt.Printf("error %T %v\n", err, err)
		} else {
			fmt.Println(what, reply)
		}
	}
	wait := func() {
		reply, err := send("LOCK.ACQUIRE", "traps", "client", "PX", 600000, "BLOCK", 600000)
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
		send("GET", "traps:other")
		fmt.Println("get answered")
		<-over
	default:
		// It does not tell its version.
		reply, err := send("LOCK.ACQUIRE", "traps", "other")
		say("null", reply, err)
		reply, err = send("LOCK.ACQUIRE", "traps", "other", "PX", 0)
		say("error", reply, err)
	}
}
