package redislock

import (
	"syscall"
	"time"
	"unsafe"
)

// now reads CLOCK_BOOTTIME. Go's own clock stands still while the machine is suspended; the lease in the server does
// not.
func now() time.Duration {
	const boottime = 7
	var t syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, boottime, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		panic("redislock: clock_gettime(CLOCK_BOOTTIME): " + errno.Error())
	}
	return time.Duration(t.Nano())
}
