//! The disk that the servers write to: without it a figure with fsync says little.

use bench::ratio::Spread;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

const WRITES: usize = 50;
const BYTES: usize = 512;

/// Which file system the folder of temporary files is on, and how long it takes until a write is on the disk.
pub(crate) fn describe() -> io::Result<String> {
    let folder = fs::canonicalize(std::env::temp_dir())?;
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let kind = file_system(&mounts, &folder).unwrap_or("an unknown file system");
    Ok(format!("{kind}, {:.2} ms until {BYTES} bytes are on the disk", median_ms(&folder)?))
}

/// The kind of the mount with the longest path above a folder.
fn file_system<'a>(mounts: &'a str, folder: &Path) -> Option<&'a str> {
    let fields = |line: &'a str| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    };
    let above = mounts.lines().filter_map(fields).filter(|(path, _)| folder.starts_with(path));
    above.max_by_key(|(path, _)| path.len()).map(|(_, kind)| kind)
}

fn median_ms(folder: &Path) -> io::Result<f64> {
    let mut file: File = tempfile::tempfile_in(folder)?;
    let mut times = Vec::new();
    for _ in 0..WRITES {
        let start = Instant::now();
        file.write_all(&[1; BYTES])?;
        file.sync_data()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(Spread::of(times).median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_on_the_nearest_mount_above_it() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\ntmpfs /tmpfiles btrfs rw 0 0\n";
        for (folder, kind) in [("/tmp/x", "tmpfs"), ("/home", "ext4"), ("/tmpfiles", "btrfs")] {
            assert_eq!(file_system(mounts, Path::new(folder)), Some(kind), "{folder}");
        }
    }
}
