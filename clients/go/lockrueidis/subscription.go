// SPDX-License-Identifier: MIT

package lockrueidis

import (
	"context"
	"time"

	"redis-lock.example/clients/go/redislock"

	"github.com/redis/rueidis"
)

const silence = 5 * time.Second // before a ping; after as long again the connection is dead

func (t *transport) Subscribe(
	ctx context.Context, address string, channel redislock.Channel, message func(string),
) (redislock.Subscription, error) {
	if address != "" {
		return t.subscribe(ctx, address, channel, message)
	}
	return redislock.At(t.homes, "", func(home string) (redislock.Subscription, error) {
		server, err := t.serverBy(ctx, home)
		if err != nil {
			return nil, err
		}
		return t.subscribe(ctx, server, channel, message)
	})
}

func (t *transport) subscribe(
	ctx context.Context, address string, channel redislock.Channel, message func(string),
) (redislock.Subscription, error) {
	options := t.options
	options.ConnWriteTimeout, options.Dialer.KeepAlive = silence, silence
	c, err := openWith(ctx, options, address)
	if err != nil {
		return nil, err
	}
	hears, cancel := context.WithCancel(context.Background())
	confirmed, failed := make(chan struct{}), make(chan error, 1)
	noted := rueidis.WithOnSubscriptionHook(hears, func(s rueidis.PubSubSubscription) {
		switch s.Kind {
		case "subscribe", "ssubscribe":
			close(confirmed)
		default:
			cancel()
		}
	})
	command := c.client.B().Subscribe().Channel(channel.Name).Build()
	if channel.IsSharded {
		command = c.client.B().Ssubscribe().Channel(channel.Name).Build()
	}
	listener := redislock.Listen(func() {
		failed <- c.client.Receive(noted, command, func(m rueidis.PubSubMessage) { message(m.Message) })
	}, func() error {
		cancel()
		return c.Close()
	})
	select {
	case <-confirmed:
		return listener, nil
	case err = <-failed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	listener.Close()
	if refusal, ok := rueidis.IsRedisErr(err); ok {
		err = serverError(refusal)
	}
	return nil, err
}
