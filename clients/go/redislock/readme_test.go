package redislock_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each block of Go in the README is a program, and runs.
func TestTheProgramsOfTheReadmeRun(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	programs := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(text, -1)
	if len(programs) < 4 {
		t.Fatalf("%d programs", len(programs))
	}
	port := os.Getenv("REDIS_LOCK_PORT")
	for number, program := range programs {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "main.go")
			source := strings.ReplaceAll(string(program[1]), "6379", port)
			if err := os.WriteFile(file, []byte(source), 0o644); err != nil {
				t.Fatal(err)
			}
			if formatted, err := exec.Command("gofmt", "-l", file).CombinedOutput(); err != nil || len(formatted) > 0 {
				t.Errorf("gofmt: %s %v", formatted, err)
			}
			if output, err := exec.Command("go", "run", file).CombinedOutput(); err != nil || len(output) == 0 {
				t.Errorf("%s %v", output, err)
			} else {
				t.Logf("%s", output)
			}
		})
	}
}

// Both ways of the README to install it: a copy of the folder, and a checkout that go.mod names.
func TestAModuleElsewhereCanUseIt(t *testing.T) {
	here, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	redigo, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/gomodule/redigo").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"copy":     "elsewhere/internal/redislock",
		"checkout": "redis-lock.example/redislock",
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			run := func(name string, args ...string) {
				t.Helper()
				command := exec.Command(name, args...)
				command.Dir = folder
				command.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -buildvcs=false")
				if output, err := command.CombinedOutput(); err != nil {
					t.Fatalf("%s %v: %s", name, args, output)
				}
			}
			program := fmt.Sprintf("package main\n\nimport %q\n\nfunc main() { redislock.New(nil) }\n", path)
			if err := os.WriteFile(filepath.Join(folder, "main.go"), []byte(program), 0o644); err != nil {
				t.Fatal(err)
			}
			run("go", "mod", "init", "elsewhere")
			// For want of a proxy of modules.
			run("go", "mod", "edit", "-require", "github.com/gomodule/redigo@v1.8.3",
				"-replace", "github.com/gomodule/redigo="+strings.TrimSpace(string(redigo)))
			if name == "copy" {
				copying := regexp.MustCompile("(?m)^ *(mkdir -p internal/redislock\n *cp .*\n *rm .*)$")
				commands := copying.FindSubmatch(text)
				if commands == nil {
					t.Fatal("the README says not how to copy it")
				}
				run("sh", "-ec", strings.ReplaceAll(string(commands[1]), "/path/to/redis-lock/clients/go", here))
			} else {
				run("go", "mod", "edit", "-require", "redis-lock.example@v0.0.0", "-replace",
					"redis-lock.example@v0.0.0="+here)
			}
			run("go", "build", "-o", os.DevNull, ".")
			run("go", "vet", "./...")
		})
	}
}
