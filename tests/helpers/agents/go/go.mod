module redis-lock.example/agent

go 1.21

require (
	github.com/gomodule/redigo v1.8.3
)
