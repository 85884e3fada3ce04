//! Allocates the module's memory through the server, so that maxmemory, INFO memory and MEMORY DOCTOR count it.

use redis_module::raw;
use std::alloc::{GlobalAlloc, Layout, System};

/// The server's allocator. In a process that is no server (unit tests, benchmarks) it is the system's.
#[derive(Debug)]
pub struct ServerAlloc;

/// The alignment that jemalloc and libc give on 64-bit machines, whatever is asked for. Types of a greater alignment,
/// of which this module has none, go to the system and back to it.
const ALIGN: usize = 16;

// SAFETY: the server's functions are those of malloc: they return null, or memory of at least the size and of alignment
// 16. Before the load all of them are absent, and the module allocates nothing then. So the choice between server and
// system is the same for all calls about one piece of memory.
unsafe impl GlobalAlloc for ServerAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: reads a pointer to a function, written once, at load, on this thread.
        match unsafe { raw::RedisModule_Alloc } {
            // SAFETY: the server's function takes any size.
            Some(alloc) if layout.align() <= ALIGN => unsafe { alloc(layout.size()).cast() },
            // SAFETY: the layout is the caller's, which keeps the contract of GlobalAlloc.
            _ => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        match unsafe { raw::RedisModule_Calloc } {
            // SAFETY: as in `alloc`.
            Some(calloc) if layout.align() <= ALIGN => unsafe { calloc(1, layout.size()).cast() },
            // SAFETY: the layout is the caller's, which keeps the contract of GlobalAlloc.
            _ => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        match unsafe { raw::RedisModule_Free } {
            // SAFETY: `ptr` came from the server, by the same test, and the caller gives it up.
            Some(free) if layout.align() <= ALIGN => unsafe { free(ptr.cast()) },
            // SAFETY: `ptr` came from the system, by the same test, and the caller gives it up.
            _ => unsafe { System.dealloc(ptr, layout) },
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`.
        match unsafe { raw::RedisModule_Realloc } {
            // SAFETY: as in `dealloc`.
            Some(realloc) if layout.align() <= ALIGN => unsafe { realloc(ptr.cast(), size).cast() },
            // SAFETY: `ptr` came from the system, by the same test, and the caller gives it up.
            _ => unsafe { System.realloc(ptr, layout, size) },
        }
    }
}
