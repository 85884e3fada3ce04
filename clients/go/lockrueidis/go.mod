module redis-lock.example/clients/go/lockrueidis

go 1.25.0

require (
	github.com/redis/rueidis v1.0.79
	redis-lock.example/clients/go v0.0.0
)

require golang.org/x/sys v0.47.0 // indirect

replace redis-lock.example/clients/go => ../
