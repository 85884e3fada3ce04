// SPDX-License-Identifier: MIT

package redislocktest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"redis-lock.example/clients/go/redislock"
)

// Command asks the server as another program does, and returns its reply: a string, an int64, nil, or a []any of them.
// Besides what locks need there are LOCK.INFO, LOCK.BREAK, INFO, and for data GET, SET, DEL and EXISTS. An error of the
// server is a *redislock.ServerError. A wait ends with ctx.
func (s *Server) Command(ctx context.Context, words ...string) (any, error) {
	if len(words) == 0 {
		return nil, fmt.Errorf("%w: no command", redislock.ErrInvalid)
	}
	reply := (&conn{server: s, closed: make(chan struct{})}).serve(ctx, words)
	return reply.Value, reply.Err
}

var errWrongType = redislock.NewServerError(
	"WRONGTYPE Operation against a key holding the wrong kind of value")

// fewest is how many words a command has at least.
var fewest = map[string]int{
	"LOCK.ACQUIRE": 3, "LOCK.RW": 4, "LOCK.SHARE": 4, "LOCK.MACQUIRE": 4, "LOCK.RELEASE": 3, "LOCK.MRELEASE": 4,
	"LOCK.EXTEND": 3, "LOCK.CHECK": 4, "LOCK.GUARD": 5, "LOCK.INFO": 2, "LOCK.BREAK": 2,
	"GET": 2, "SET": 3, "DEL": 2, "EXISTS": 2, "INFO": 1, "HELLO": 1,
}

// refusal is why a command is not even tried, or nil.
func (s *Server) refusal(words redislock.Request) error {
	least, isKnown := fewest[words[0]]
	if !isKnown {
		return redislock.NewServerError("ERR unknown command '" + words[0] + "'")
	}
	if len(words) < least {
		return redislock.NewServerError("ERR wrong number of arguments for '" + strings.ToLower(words[0]) + "' command")
	}
	if !strings.HasPrefix(words[0], "LOCK.") {
		return nil
	}
	keys, err := keysOf(words)
	for _, key := range keys {
		if _, isString := s.strings[key]; isString {
			return errWrongType
		}
	}
	return err
}

// data answers the commands that are about data, or about the server.
func (s *Server) data(words redislock.Request) (any, error) {
	switch key := words[len(words)-1]; words[0] {
	case "GET":
		if l := s.locks[key]; l != nil && len(l.holders) > 0 {
			return nil, errWrongType
		}
		if text, isThere := s.strings[key]; isThere {
			return text, nil
		}
		return nil, nil
	case "SET":
		s.overwrite(words[1], words[2])
		return "OK", nil
	case "DEL", "EXISTS":
		count := int64(0)
		for _, key := range words[1:] {
			_, isString := s.strings[key]
			if isString || s.locks[key] != nil && len(s.locks[key].holders) > 0 {
				count++
			}
			if words[0] == "DEL" {
				delete(s.strings, key)
				s.end(key)
			}
		}
		return count, nil
	case "INFO":
		rows := fmt.Sprintf("redis_mode:standalone\r\nlock_queued:%d\r\n", s.queued)
		for name, count := range s.calls {
			rows += fmt.Sprintf("cmdstat_%s:calls=%d\r\n", strings.ToLower(name), count)
		}
		return rows, nil
	case "LOCK.BREAK":
		return s.end(words[1]), nil
	case "LOCK.INFO":
		return s.info(words[1]), nil
	}
	return "OK", nil
}

// overwrite puts a string in the place of a lock. Nobody can wait for that.
func (s *Server) overwrite(key, text string) {
	s.strings[key] = text
	for _, p := range slices.Clone(s.lock(key).queue) {
		s.leave(p)
		if p.reply != nil {
			p.reply <- redislock.Reply{Err: errWrongType}
		}
	}
	s.end(key)
}

// end takes a lock away from its holders, and returns how many there were.
func (s *Server) end(key string) int64 {
	// Those who get it then are others.
	owners := slices.Collect(maps.Keys(s.lock(key).holders))
	for _, owner := range owners {
		s.remove(key, owner)
	}
	s.serve()
	return int64(len(owners))
}

// info is the reply to LOCK.INFO.
func (s *Server) info(key string) any {
	l := s.locks[key]
	if l == nil {
		return nil
	}
	mode := map[bool]string{true: "write", false: "read"}
	var modeOfAll, highest any
	holders, waiters, shares := []any{}, []any{}, int64(0)
	for owner, h := range l.holders {
		reads, writes := int64(h.shares), int64(0)
		if h.isWriter {
			reads, writes = 0, 1
		}
		shares, modeOfAll = shares+reads, mode[h.isWriter]
		if before, _ := highest.(int64); h.fence > before {
			highest = h.fence
		}
		holders = append(holders, []any{
			"owner", owner, "mode", mode[h.isWriter], "reads", reads, "writes", writes, "fence", h.fence,
			"ttl_ms", time.Until(h.until).Milliseconds(), "held_ms", time.Since(h.since).Milliseconds(), "offered", int64(0),
			"session", nil, "client", nil, "note", orNil(h.note),
		})
	}
	for _, p := range l.queue {
		var left, queueLeft any
		if p.reply == nil {
			queueLeft = time.Until(p.until).Milliseconds()
		} else {
			left = time.Until(p.until).Milliseconds()
		}
		waiters = append(waiters, []any{
			"owner", p.owner, "mode", mode[p.isWriter], "limit", orNil(int64(p.limit)), "take", int64(p.shares),
			"waited_ms", time.Since(p.since).Milliseconds(), "left_ms", left, "queue_left_ms", queueLeft,
			"keys", int64(len(p.keys)), "client", nil,
		})
	}
	return []any{
		"mode", modeOfAll, "fence", highest, "shares", shares, "holding", int64(len(holders)), "holders", holders,
		"waiting", int64(len(waiters)), "waiters", waiters, "reserved_by", nil,
	}
}

func orNil[T comparable](value T) any {
	if value == *new(T) {
		return nil
	}
	return value
}

// cycle is the way of owners and keys from a request that would wait back to its own owner, or nil.
func (s *Server) cycle(r request) []string {
	holds := false
	for _, l := range s.locks {
		holds = holds || l.holders[r.owner] != nil
	}
	if !holds {
		return nil
	}
	var paths [][]string
	for _, key := range r.keys {
		paths = append(paths, []string{r.owner, key})
	}
	for seen := map[string]bool{}; len(paths) > 0; {
		path := paths[0]
		paths = paths[1:]
		for owner := range s.lock(path[len(path)-1]).holders {
			if owner == r.owner && len(path) > 2 {
				return append(path, owner)
			}
			if seen[owner] || owner == r.owner {
				continue
			}
			seen[owner] = true
			for key, l := range s.locks {
				if slices.ContainsFunc(l.queue, func(p *place) bool { return p.owner == owner }) {
					paths = append(paths, append(slices.Clone(path), owner, key))
				}
			}
		}
	}
	return nil
}
