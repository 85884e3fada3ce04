//! The server's allocator, so that the module's memory counts as the server's: maxmemory, INFO memory and MEMORY DOCTOR
//! see it.

use redis_module::raw;
use std::alloc::{GlobalAlloc, Layout, System};

/// Allocates through the server once the module is loaded, and through the system in a process that is no server (unit
/// tests, benchmarks).
#[derive(Debug)]
pub struct ServerAlloc;

/// What every allocator of the servers (jemalloc, libc) aligns to on 64-bit machines. Greater alignments, which this
/// module has none of, go to the system in both directions.
const ALIGN: usize = 16;

// SAFETY: memory comes from malloc-like functions that return null or memory of at least the size and of alignment 16.
// The functions are all absent before the module is loaded, and nothing is allocated in the server before that: so
// memory goes back where it came from.
unsafe impl GlobalAlloc for ServerAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: reads a pointer that is written once, at load; the call needs nothing else.
        match unsafe { raw::RedisModule_Alloc } {
            // SAFETY: a function of the server's, for any size.
            Some(alloc) if layout.align() <= ALIGN => unsafe { alloc(layout.size()).cast() },
            // SAFETY: as required of the caller.
            _ => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        match unsafe { raw::RedisModule_Calloc } {
            // SAFETY: as in `alloc`.
            Some(calloc) if layout.align() <= ALIGN => unsafe { calloc(1, layout.size()).cast() },
            // SAFETY: as required of the caller.
            _ => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        match unsafe { raw::RedisModule_Free } {
            // SAFETY: `ptr` came from the server's allocator, since the same test sent it there.
            Some(free) if layout.align() <= ALIGN => unsafe { free(ptr.cast()) },
            // SAFETY: as required of the caller; `ptr` came from the system.
            _ => unsafe { System.dealloc(ptr, layout) },
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`.
        match unsafe { raw::RedisModule_Realloc } {
            // SAFETY: as in `dealloc`.
            Some(realloc) if layout.align() <= ALIGN => unsafe { realloc(ptr.cast(), size).cast() },
            // SAFETY: as required of the caller; `ptr` came from the system.
            _ => unsafe { System.realloc(ptr, layout, size) },
        }
    }
}
