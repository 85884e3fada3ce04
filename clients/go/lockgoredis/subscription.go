// SPDX-License-Identifier: MIT

package lockgoredis

import (
	"context"
	"errors"
	"net"
	"time"

	"redis-lock.example/clients/go/redislock"

	"github.com/redis/go-redis/v9"
)

const (
	silence   = 5 * time.Second // before a ping; after as long again the connection is dead
	closeTime = 100 * time.Millisecond
)

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
	c, err := t.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.net.Close() })
	hears := c.client.Subscribe(ctx)
	shut := func() error {
		// The library tells of a connection that fails before it is closed. A ping that is not taken holds up the end.
		defer time.AfterFunc(closeTime, func() { c.net.Close() }).Stop()
		defer c.net.Close()
		return errors.Join(hears.Close(), c.client.Close())
	}
	if channel.IsSharded {
		err = hears.SSubscribe(ctx, channel.Name)
	} else {
		err = hears.Subscribe(ctx, channel.Name)
	}
	if err == nil {
		_, err = hears.Receive(ctx)
	}
	if !stop() {
		err = ctx.Err()
	}
	var refusal redis.Error
	if errors.As(err, &refusal) {
		err = redislock.NewServerError(refusal.Error())
	}
	if err != nil {
		shut()
		return nil, err
	}
	return redislock.Listen(func() { listen(hears, message) }, shut), nil
}

// listen ends with the connection, or when the server ends the subscription.
func listen(hears *redis.PubSub, message func(string)) {
	ctx := context.Background()
	pinged := false
	for {
		got, err := hears.ReceiveTimeout(ctx, silence)
		var late net.Error
		var refusal redis.Error
		switch {
		case err == nil, errors.As(err, &refusal):
			pinged = false
		case errors.As(err, &late) && late.Timeout() && !pinged:
			if hears.Ping(ctx) != nil {
				return
			}
			pinged = true
		default:
			return
		}
		switch got := got.(type) {
		case *redis.Message:
			message(got.Payload)
		case *redis.Subscription:
			return
		}
	}
}
