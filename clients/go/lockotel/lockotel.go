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

// The bounds of the buckets, in seconds, from a round trip to work of hours. A meter's own are for milliseconds.
var bounds = metric.WithExplicitBucketBoundaries(
	0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200)

// New returns what records the figures of a client: redislock.WithListener. Times are in seconds.
func New(meter metric.Meter) (redislock.Listener, error) {
	var failures []error
	times := func(what, description string) func(time.Duration) {
		about := metric.WithDescription(description)
		histogram, err := meter.Float64Histogram("redis_lock."+what, metric.WithUnit("s"), about, bounds)
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
