package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"redis-lock.example/redislock"

	"github.com/gomodule/redigo/redis"
)

func ExampleMutex_Do() {
	pool := newPool()
	defer pool.Close()
	mutex := redislock.New(pool, "example:report")
	err := mutex.Do(context.Background(), func(ctx context.Context, hold *redislock.Hold) error {
		// ctx is cancelled if the lock is lost.
		fmt.Println("working, lost:", hold.Lost())
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// working, lost: false
	// <nil>
}

func ExampleMutex_Lock() {
	pool := newPool()
	defer pool.Close()
	mutex := redislock.New(pool, "example:accounts:{7}:a", "example:accounts:{7}:b")
	mutex.Wait = 5 * time.Second
	hold, err := mutex.Lock(context.Background())
	if errors.Is(err, redislock.ErrNotAcquired) {
		fmt.Println("others have it")
		return
	} else if err != nil {
		log.Fatal(err)
	}
	fmt.Println("fences:", len(hold.Fences()))
	fmt.Println(hold.Unlock(context.Background()))
	// Output:
	// fences: 2
	// <nil>
}

func ExampleNewSemaphore() {
	pool := newPool()
	defer pool.Close()
	mutex := redislock.NewSemaphore(pool, "example:api", 2)
	ctx := context.Background()
	for range make([]struct{}, 3) {
		hold, err := mutex.TryLock(ctx)
		fmt.Println(err)
		if err == nil {
			defer hold.Unlock(ctx)
		}
	}
	// Output:
	// <nil>
	// <nil>
	// redislock: "example:api" not acquired
}

func ExampleHold_Guard() {
	pool := newPool()
	defer pool.Close()
	mutex := redislock.New(pool, "example:{account}")
	err := mutex.Do(context.Background(), func(ctx context.Context, hold *redislock.Hold) error {
		if _, err := hold.Guard(ctx, "SET", "example:{account}:balance", 100); err != nil {
			return err
		}
		balance, err := redis.Int(hold.Guard(ctx, "GET", "example:{account}:balance"))
		fmt.Println(balance)
		return err
	})
	fmt.Println(err)
	// Output:
	// 100
	// <nil>
}
