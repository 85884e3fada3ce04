//! What memory really costs. Allocates nothing itself.

/// Bytes that an allocation of this size takes: allocators hand out steps of their own.
///
/// The steps are those of jemalloc, which the servers are built with as a rule: multiples of 16 up to 128, then four to
/// each doubling. Other allocators are nearer to them than to the plain size.
#[must_use]
pub const fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        1..=8 => 8,
        9..=128 => bytes.next_multiple_of(16),
        _ => bytes.next_multiple_of(bytes.next_power_of_two() / 8),
    }
}

/// Bytes that a B-tree of the standard library takes, with entries of this size, not counting what these own elsewhere.
///
/// A node has room for 11 entries. One that overflows at its end, as when the entries come in order, is cut after the
/// sixth, and the seventh goes up: one leaf for each 7 entries, and as many inner nodes as a tree with 7 branches has.
/// Entries in any other order fill the nodes a little better, by less than a tenth
/// (tests/server/persistence/memory.rs).
#[must_use]
pub const fn of_tree(entries: usize, entry_bytes: usize) -> usize {
    const ROOM: usize = 11;
    // A pointer to the node above, the place in it and the length.
    let leaf_bytes = ROOM * entry_bytes + 16;
    let inner_bytes = leaf_bytes + (ROOM + 1) * size_of::<usize>();
    let (leaves, inner) = match entries {
        0 => (0, 0),
        1..=ROOM => (1, 0),
        // A 7th of the leaves, a 7th of that and so on: a 6th.
        _ => (entries.div_ceil(7), entries.div_ceil(7).div_ceil(6)),
    };
    leaves * allocated(leaf_bytes) + inner * allocated(inner_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_to_those_of_the_allocator() {
        // From the allocator's own table of small and large sizes.
        let sizes = [
            (0, 0),
            (1, 8),
            (9, 16),
            (36, 48),
            (128, 128),
            (129, 160),
            (161, 192),
            (225, 256),
            (257, 320),
            (1160, 1280),
            (1793, 2048),
            (16_384, 16_384),
            (16_385, 20_480),
        ];
        for (bytes, expected) in sizes {
            assert_eq!(allocated(bytes), expected, "{bytes}");
        }
    }
}
