module redis-lock.example/clients/go/tests

go 1.26.0

require (
	github.com/go-co-op/gocron/v2 v2.21.2
	github.com/gomodule/redigo v1.9.3
	github.com/redis/go-redis/v9 v9.23.0
	github.com/redis/rueidis v1.0.79
	go.opentelemetry.io/otel/sdk/metric v1.38.0
	go.uber.org/goleak v1.3.0
	redis-lock.example/clients/go v0.0.0
	redis-lock.example/clients/go/lockgocron v0.0.0
	redis-lock.example/clients/go/lockgoredis v0.0.0
	redis-lock.example/clients/go/lockotel v0.0.0
	redis-lock.example/clients/go/lockredigo v0.0.0
	redis-lock.example/clients/go/lockrueidis v0.0.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
	go.opentelemetry.io/auto/sdk v1.1.0 // indirect
	go.opentelemetry.io/otel v1.38.0 // indirect
	go.opentelemetry.io/otel/metric v1.38.0 // indirect
	go.opentelemetry.io/otel/sdk v1.38.0 // indirect
	go.opentelemetry.io/otel/trace v1.38.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace (
	redis-lock.example/clients/go => ../
	redis-lock.example/clients/go/lockgocron => ../lockgocron
	redis-lock.example/clients/go/lockgoredis => ../lockgoredis
	redis-lock.example/clients/go/lockotel => ../lockotel
	redis-lock.example/clients/go/lockredigo => ../lockredigo
	redis-lock.example/clients/go/lockrueidis => ../lockrueidis
)
