//! The system's information about memory: how much is free for this process, and how much it uses.

use std::path::Path;

use super::cgroup;

/// Memory that is free for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Free {
    /// Bytes.
    pub bytes: u64,
    /// Whether a control group leaves less than the machine has free.
    pub limited: bool,
}

impl Free {
    /// The free memory, if the system tells. An unknown amount is `None`, not a large number.
    pub fn here() -> Option<Free> {
        Free::under(Path::new("/"), machine)
    }

    fn under(root: &Path, machine: impl Fn(&Path) -> Option<u64>) -> Option<Free> {
        match (machine(root), cgroup::left(root)) {
            (Some(bytes), Some(left)) => Some(Free { bytes: bytes.min(left), limited: left < bytes }),
            (None, Some(bytes)) => Some(Free { bytes, limited: true }),
            (machine, None) => machine.map(|bytes| Free { bytes, limited: false }),
        }
    }

    /// A description of the limit's origin.
    pub fn source(self) -> &'static str {
        if self.limited { "memory free under this control group's limit" } else { "memory free here" }
    }
}

/// The machine's free memory: the kernel's own estimate, including page cache that it can reclaim.
#[cfg(target_os = "linux")]
fn machine(root: &Path) -> Option<u64> {
    kib(&root.join("proc/meminfo"), "MemAvailable:")
}

/// The machine's free memory.
#[cfg(not(target_os = "linux"))]
fn machine(_: &Path) -> Option<u64> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    // On an unknown system the library returns 0.
    Some(system.available_memory()).filter(|bytes| *bytes > 0)
}

/// Bytes of this process in main memory now.
pub fn resident() -> Option<u64> {
    kib(Path::new("/proc/self/status"), "VmRSS:")
}

/// Resets the record of the most bytes in main memory to the current number, if the system can: afterwards only later
/// use counts.
pub fn forget_most() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The most bytes of this process in main memory at any time.
pub fn most_resident() -> Option<u64> {
    kib(Path::new("/proc/self/status"), "VmHWM:")
}

/// Bytes of code and constants that are mapped from files, including libraries: how many of them are in memory depends
/// on the moment, the mapped size does not. If the system does not tell, the size of the program's file.
pub fn mapped() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps");
    let file = || std::env::current_exe().and_then(|path| path.metadata()).map_or(0, |file| file.len());
    maps.map_or_else(|_| file(), |maps| maps.lines().filter_map(mapping).sum())
}

/// Bytes of a line of `/proc/self/maps` that maps a file: `from-to permissions offset device inode path`.
fn mapping(line: &str) -> Option<u64> {
    let mut fields = line.split_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    // Named memory is not a file.
    fields.nth(4).filter(|path| path.starts_with('/') && !path.starts_with("/memfd:"))?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    address(to)?.checked_sub(address(from)?)
}

/// A field such as `MemAvailable: 123 kB` in a file of the kernel, in bytes.
fn kib(file: &Path, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(field))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_smaller_of_machine_and_control_group_is_free_and_unknown_stays_unknown() {
        let root = tempfile::tempdir().unwrap();
        let free = |machine: Option<u64>| Free::under(root.path(), |_| machine);
        assert_eq!(free(None), None);
        assert_eq!(free(Some(70)), Some(Free { bytes: 70, limited: false }));
        let write = |name: &str, text: &str| {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("proc/self/mountinfo", "29 22 0:26 / /groups rw - cgroup2 cgroup2 rw\n");
        write("proc/self/cgroup", "0::/mine\n");
        write("groups/mine/memory.max", "100\n");
        write("groups/mine/memory.current", "40\n");
        assert_eq!(free(Some(70)), Some(Free { bytes: 60, limited: true }));
        assert_eq!(free(Some(50)), Some(Free { bytes: 50, limited: false }));
        assert_eq!(free(None), Some(Free { bytes: 60, limited: true }));
    }

    #[test]
    fn a_mapping_counts_where_a_file_is_behind_it() {
        let lines = [
            ("55d0c0a00000-55d0c0a21000 r-xp 00000000 08:01 1311 /usr/bin/a program", Some(0x21000)),
            ("7ffd1c2e0000-7ffd1c301000 rw-p 00000000 00:00 0    [stack]", None),
            ("7f0000000000-7f0000021000 rw-p 00000000 00:00 0", None),
            ("7f0000000000-7f0000021000 rw-p 00000000 00:01 8203 /memfd:poison (deleted)", None),
        ];
        for (line, bytes) in lines {
            assert_eq!(mapping(line), bytes, "{line}");
        }
        assert_eq!(mapped(), mapped());
    }
}
