// SPDX-License-Identifier: MIT

// Package lockotel records what locks do with a meter of OpenTelemetry.
package lockotel

import (
	"context"
	"errors"
	"time"

	"redis-lock.example/clients/go/redislock"

	"go.opentelemetry.io/otel/metric"
)

// New returns what records the figures of a client: redislock.WithListener. Times are in seconds.
func New(meter metric.Meter) (redislock.Listener, error) {
	var failures []error
	times := func(what, description string) func(time.Duration) {
		about := metric.WithDescription(description)
		histogram, err := meter.Float64Histogram("redis_lock."+what, metric.WithUnit("s"), about)
		failures = append(failures, err)
		return func(took time.Duration) { histogram.Record(context.Background(), took.Seconds()) }
	}
	counts := func(what, unit, description string) func(int) {
		counter, err := meter.Int64Counter("redis_lock."+what, metric.WithUnit(unit), metric.WithDescription(description))
		failures = append(failures, err)
		return func(count int) { counter.Add(context.Background(), int64(count)) }
	}
	renewals := counts("renewal_failed", "{renewal}", "renewals that failed, and were tried again")
	listener := redislock.Listener{
		Waited:        times("waited", "from the first request to the grant"),
		Refused:       times("refused", "how long others had it"),
		Held:          times("held", "from the grant to the release"),
		Lost:          times("lost", "from the grant to the loss"),
		RenewalFailed: func() { renewals(1) },
		Dropped:       counts("dropped", "{figure}", "figures that were dropped, since others took too long"),
	}
	return listener, errors.Join(failures...)
}
