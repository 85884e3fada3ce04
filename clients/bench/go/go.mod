module redis-lock.example/bench

go 1.26.0

require (
	github.com/bsm/redislock v0.9.4
	github.com/go-redsync/redsync/v4 v4.18.1
	github.com/gomodule/redigo v1.9.3
	github.com/redis/go-redis/v9 v9.23.0
	github.com/redis/rueidis v1.0.79
	redis-lock.example/clients/go v0.0.0
	redis-lock.example/clients/go/lockgoredis v0.0.0
	redis-lock.example/clients/go/lockredigo v0.0.0
	redis-lock.example/clients/go/lockrueidis v0.0.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace (
	redis-lock.example/clients/go => ../../go
	redis-lock.example/clients/go/lockgoredis => ../../go/lockgoredis
	redis-lock.example/clients/go/lockredigo => ../../go/lockredigo
	redis-lock.example/clients/go/lockrueidis => ../../go/lockrueidis
)
