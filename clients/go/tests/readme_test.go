package tests

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
	if len(programs) < 2 {
		t.Fatalf("%d programs", len(programs))
	}
	for number, program := range programs {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "main.go")
			source := strings.ReplaceAll(string(program[1]), "127.0.0.1:6379", address(t))
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

// The lowest versions of the client libraries that the modules name, which are in lowest.mod.
func TestTheLowestVersionsPlayToo(t *testing.T) {
	t.Parallel()
	checkLowest(t)
	const play = "TestDeadIdle|TestTroubleIsTold|TestAWaitOutlives|" +
		"TestScenarios/(taken|waited|over|cancelled|several|lost|turns|guarded)$/(go-redis|redigo|rueidis)"
	command := exec.Command("go", "test", "-modfile=lowest.mod", "-count=1", "-run", play, ".")
	command.Env = append(os.Environ(), "GOWORK=off")
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("%s %v", output, err)
	}
}

// checkLowest compares lowest.mod with what the modules need.
func checkLowest(t *testing.T) {
	text, err := os.ReadFile("lowest.mod")
	if err != nil {
		t.Fatal(err)
	}
	for module, client := range clients {
		if client == "" {
			continue
		}
		needs, err := os.ReadFile(filepath.Join("..", module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		line := regexp.MustCompile(regexp.QuoteMeta(client) + ` \S+`).Find(needs)
		if !strings.Contains(string(text), "\t"+string(line)+"\n") {
			t.Errorf("lowest.mod has not %s", line)
		}
	}
}

// clients are the modules of clients/go, and the client library of each.
var clients = map[string]string{
	"lockgoredis": "github.com/redis/go-redis/v9",
	"lockrueidis": "github.com/redis/rueidis",
	"lockredigo":  "github.com/gomodule/redigo",
	"lockgocron":  "",
	".":           "",
}

// A program that needs one of the modules pulls in no other client.
func TestAModulePullsInNoOtherClient(t *testing.T) {
	for module, own := range clients {
		command := exec.Command("go", "list", "-m", "all")
		command.Dir = filepath.Join("..", module)
		command.Env = append(os.Environ(), "GOWORK=off")
		list, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %s", module, list)
		}
		for _, client := range clients {
			if isThere := strings.Contains(string(list), client+" "); client != "" && isThere != (client == own) {
				t.Errorf("%s: %s: %v:\n%s", module, client, isThere, list)
			}
		}
	}
}
