module redis-lock.example/clients/go/lockredigo

go 1.24

require (
	github.com/gomodule/redigo v1.8.9
	redis-lock.example/clients/go v0.0.0
)

replace redis-lock.example/clients/go => ../
