package tests

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"redis-lock.example/clients/go/lockgocron"
	"redis-lock.example/clients/go/redislock"
	"redis-lock.example/clients/go/redislocktest"

	"github.com/go-co-op/gocron/v2"
)

// schedule starts three schedulers, one after the other, of one job that is due each second.
func schedule(t *testing.T, runs *atomic.Int64, option func(number int) gocron.SchedulerOption) {
	for number := range 3 {
		scheduler, err := gocron.NewScheduler(option(number))
		if err == nil {
			job := gocron.NewTask(func() { runs.Add(1) })
			_, err = scheduler.NewJob(gocron.DurationJob(time.Second), job, gocron.WithName("report"))
		}
		if err != nil {
			t.Fatal(err)
		}
		scheduler.Start()
		t.Cleanup(func() { scheduler.Shutdown() })
		time.Sleep(50 * time.Millisecond)
	}
}

// A job that is short runs once each time, though the clocks of the schedulers differ. Without the minimum each of them
// runs it.
func TestThreeSchedulersRunAJobOnceEachTime(t *testing.T) {
	for atLeast, want := range map[time.Duration]int64{500 * time.Millisecond: 5, time.Nanosecond: 15} {
		t.Run(atLeast.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := redislocktest.NewServer()
				var runs atomic.Int64
				schedule(t, &runs, func(int) gocron.SchedulerOption {
					client := server.Client(quiet)
					t.Cleanup(func() { client.Close() })
					locker := &lockgocron.Locker{Client: client, AtLeast: atLeast, Prefix: "jobs:"}
					return gocron.WithDistributedLocker(locker)
				})
				time.Sleep(5 * time.Second)
				if runs.Load() != want {
					t.Error(runs.Load(), "runs, not", want)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		client := redislocktest.NewServer().Client(quiet)
		defer client.Close()
		locker := &lockgocron.Locker{Client: client}
		if _, err := locker.Lock(context.Background(), "report"); !errors.Is(err, redislock.ErrInvalid) {
			t.Error(err)
		}
	})
}

// One scheduler runs all, and another one when it is gone.
func TestOneOfThreeSchedulersIsTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redislocktest.NewServer()
		var runs atomic.Int64
		electors := map[int]*lockgocron.Elector{}
		schedule(t, &runs, func(number int) gocron.SchedulerOption {
			client := server.Client(quiet)
			t.Cleanup(func() { client.Close() })
			electors[number] = lockgocron.NewElector(client, "leader")
			t.Cleanup(func() { electors[number].Close() })
			return gocron.WithDistributedElector(electors[number])
		})
		time.Sleep(5 * time.Second)
		if runs.Load() != 5 {
			t.Error(runs.Load(), "runs")
		}
		leader := -1
		for number, one := range electors {
			if one.IsLeader(context.Background()) == nil {
				if leader >= 0 {
					t.Error("two leaders")
				}
				leader = number
			}
		}
		if leader < 0 {
			t.Fatal("no leader")
		}
		if err := electors[leader].Close(); err != nil {
			t.Error(err)
		}
		if err := electors[leader].IsLeader(context.Background()); !errors.Is(err, lockgocron.ErrNotLeader) {
			t.Error(err)
		}
		time.Sleep(5 * time.Second)
		if more := runs.Load() - 5; more != 5 {
			t.Error(more, "runs of the next leader")
		}
		// A break is found at the next renewal.
		server.Lose("leader")
		time.Sleep(11 * time.Second)
		before := runs.Load()
		time.Sleep(5 * time.Second)
		if more := runs.Load() - before; more != 5 {
			t.Error(more, "runs after a loss")
		}
	})
}
