// The path is a placeholder: README.md says how a program of yours names this module.
module redis-lock.example

go 1.21

require github.com/gomodule/redigo v1.8.3
