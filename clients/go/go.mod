// The path is a placeholder: README.md says how a program of yours names this module.
module redis-lock.example/clients/go

go 1.24
