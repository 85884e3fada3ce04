//go:build !linux

package redislock

import "time"

var start = time.Now()

// now reads Go's monotonic clock, for want of one that counts the time that the machine is suspended.
func now() time.Duration { return time.Since(start) }
