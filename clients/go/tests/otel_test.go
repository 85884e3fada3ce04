package tests

import (
	"errors"
	"testing"
	"time"

	"redis-lock.example/clients/go/lockotel"
	"redis-lock.example/clients/go/redislock"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Times are in seconds, and the key is no label.
func TestAMeterOfOpenTelemetryHasTheFigures(t *testing.T) {
	onEach(t, func(s *stage) {
		reader := metric.NewManualReader()
		provider := metric.NewMeterProvider(metric.WithReader(reader))
		listener, err := lockotel.New(provider.Meter("shop"))
		s.must(err)
		client := s.open(quiet, redislock.WithListener(listener))
		take := func(held time.Duration) *redislock.Hold {
			hold, err := client.Lock(s.ctx, s.key)
			s.must(err)
			time.Sleep(held)
			return hold
		}
		s.must(take(1500 * time.Millisecond).Unlock(s.ctx))
		lost := take(0)
		s.do("LOCK.BREAK", s.key)
		if err := lost.Unlock(s.ctx); !errors.Is(err, redislock.ErrLost) {
			s.Error(err)
		}
		s.do("LOCK.ACQUIRE", s.key, "another", "PX", 60_000)
		if _, err := client.TryLock(s.ctx, s.key); !errors.Is(err, redislock.ErrHeld) {
			s.Error(err)
		}
		s.do("LOCK.RELEASE", s.key, "another")
		s.must(client.Close())
		var found metricdata.ResourceMetrics
		s.must(reader.Collect(s.ctx, &found))
		counts := map[string]uint64{}
		for _, scope := range found.ScopeMetrics {
			for _, one := range scope.Metrics {
				for _, point := range one.Data.(metricdata.Histogram[float64]).DataPoints {
					counts[one.Name] += point.Count
					if point.Attributes.Len() > 0 || one.Unit != "s" || point.Bounds[0] != 0.001 {
						s.Error(one.Name, one.Unit, point.Attributes, point.Bounds)
					}
					if one.Name == "redis_lock.held" && (point.Sum < 1.5 || point.Sum > 60) {
						s.Error(one.Name, point.Sum)
					}
				}
			}
		}
		for name, want := range map[string]uint64{
			"redis_lock.waited": 2, "redis_lock.held": 1, "redis_lock.lost": 1, "redis_lock.refused": 1,
		} {
			if counts[name] != want {
				s.Error(name, counts[name], "and not", want)
			}
		}
	})
}
