// SPDX-License-Identifier: MIT

package lockredigo

import (
	"context"
	"errors"
	"time"

	"redis-lock.example/clients/go/redislock"

	"github.com/gomodule/redigo/redis"
)

const silence = 5 * time.Second // from one ping to the next; two that are not answered mean a dead connection

func (t *transport) Subscribe(
	ctx context.Context, address string, channel redislock.Channel, message func(string),
) (redislock.Subscription, error) {
	return redislock.At(t.homes, address, func(at string) (redislock.Subscription, error) {
		return t.subscribe(ctx, at, channel, message)
	})
}

func (t *transport) subscribe(
	ctx context.Context, address string, channel redislock.Channel, message func(string),
) (redislock.Subscription, error) {
	opened, err := t.open(ctx, address)
	if err != nil {
		return nil, err
	}
	hears := opened.(*conn)
	stop := context.AfterFunc(ctx, func() { hears.Close() })
	err = hears.Send(channel.Command(), channel.Name)
	if err == nil {
		err = hears.Flush()
	}
	if err == nil {
		_, err = hears.ReceiveWithTimeout(0)
	}
	if !stop() {
		return nil, ctx.Err()
	}
	if err != nil {
		hears.Close()
		return nil, replyOf(nil, err).Err
	}
	return redislock.Listen(func() { listen(hears, message) }, hears.Close), nil
}

// listen ends with the connection, or when the server ends the subscription.
func listen(hears *conn, message func(string)) {
	var ping *time.Timer
	ping = time.AfterFunc(time.Hour, func() {
		if hears.Send("PING") == nil && hears.Flush() == nil {
			ping.Reset(silence)
		}
	})
	ping.Reset(silence)
	defer ping.Stop()
	defer hears.Close()
	for {
		reply, err := redis.Values(hears.ReceiveWithTimeout(2 * silence))
		var refusal redis.Error
		if errors.As(err, &refusal) {
			continue // of the ping
		}
		if err != nil || len(reply) < 2 {
			return
		}
		switch kind, _ := redis.String(reply[0], nil); kind {
		case "message", "smessage":
			text, _ := redis.String(reply[len(reply)-1], nil)
			message(text)
		case "unsubscribe", "sunsubscribe":
			return
		}
	}
}
