//! The memory that the control groups of Linux leave to this process: a container's limit is not in `/proc/meminfo`.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The files of a version of control groups.
struct Version {
    /// The name of the controller in `/proc/self/cgroup`; in version 2 all controllers are in one hierarchy without
    /// names.
    controller: &'static str,
    /// Files with limits; any of them may be missing or contain `max`.
    limits: &'static [&'static str],
    /// The file with the used memory, page cache included.
    used: &'static str,
    /// Fields of `memory.stat` with memory that the kernel reclaims before it refuses an allocation.
    reclaimable: &'static [&'static str],
}

/// Processes above `memory.high` are not killed but hardly make progress: so it counts as a limit too.
const V2: Version = Version {
    controller: "",
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    reclaimable: &["inactive_file", "active_file", "slab_reclaimable"],
};
const V1: Version = Version {
    controller: "memory",
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    reclaimable: &["total_inactive_file", "total_active_file"],
};

/// A mounted hierarchy of groups: the group at its top, and the directory of the mount.
struct Mount {
    version: &'static Version,
    top: String,
    directory: String,
}

/// Bytes that this process's groups leave to it: the minimum over its own group and all groups above it, if one of them
/// has a limit. `root` is `/`, or a directory with such files for tests.
pub(super) fn left(root: &Path) -> Option<u64> {
    let mounts = mounts(&read_to_string(root.join("proc/self/mountinfo")).ok()?);
    let groups = read_to_string(root.join("proc/self/cgroup")).ok()?;
    let left = mounts.iter().filter_map(|mount| {
        let path = path(&groups, mount.version)?;
        // For a group outside the mounted part only that part is visible.
        let below = Path::new(path).strip_prefix(&mount.top).unwrap_or(Path::new(""));
        let top = root.join(mount.directory.trim_start_matches('/'));
        let group = top.join(below);
        group.ancestors().take_while(|at| at.starts_with(&top)).filter_map(|at| left_by(at, mount.version)).min()
    });
    left.min()
}

/// The mounts of memory controllers, of either version.
fn mounts(mountinfo: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        // ID, parent, device, top, directory, options …, a dash, type, source, options of the file system.
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split_whitespace().skip(3);
        let (top, directory) = (place.next()?, place.next()?);
        let mut kind = kind.split_whitespace();
        let version = match (kind.next()?, kind.nth(1)) {
            ("cgroup2", _) => &V2,
            ("cgroup", Some(options)) if options.split(',').any(|option| option == "memory") => &V1,
            _ => return None,
        };
        Some(Mount { version, top: top.to_owned(), directory: directory.to_owned() })
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// The process's group in a hierarchy: lines have the form `number:controllers:path`.
fn path<'a>(groups: &'a str, version: &Version) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        controllers.split(',').any(|name| name == version.controller).then_some(path)
    })
}

/// Bytes that one group leaves, if it has a limit.
fn left_by(group: &Path, version: &Version) -> Option<u64> {
    let limit = version.limits.iter().filter_map(|name| number(group.join(name))).min()?;
    let used = number(group.join(version.used))?;
    let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
    let field = |line: &str| {
        let (name, bytes) = line.split_once(' ')?;
        version.reclaimable.contains(&name).then(|| bytes.trim().parse::<u64>().ok()).flatten()
    };
    let reclaimable: u64 = stat.lines().filter_map(field).sum();
    Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
}

/// The number in a file; `None` for `max`.
fn number(file: PathBuf) -> Option<u64> {
    read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A directory with these files, used as root.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        root
    }

    const MOUNTS_V2: &str = "\
        22 1 8:1 / / rw - ext4 /dev/root rw\n\
        29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_least_of_a_group_and_all_above_it_is_left_and_page_cache_is_taken_back() {
        let files = [
            ("proc/self/mountinfo", MOUNTS_V2),
            ("proc/self/cgroup", "0::/jobs.slice/job 7/step\n"),
            // The group itself has no limit.
            ("sys/fs/cgroup/jobs.slice/job 7/step/memory.max", "max\n"),
            ("sys/fs/cgroup/jobs.slice/job 7/step/memory.high", "max\n"),
            ("sys/fs/cgroup/jobs.slice/job 7/step/memory.current", "1000\n"),
            // 8000 − (5000 − 1000 − 500 − 250).
            ("sys/fs/cgroup/jobs.slice/job 7/memory.max", "8000\n"),
            ("sys/fs/cgroup/jobs.slice/job 7/memory.high", "max\n"),
            ("sys/fs/cgroup/jobs.slice/job 7/memory.current", "5000\n"),
            (
                "sys/fs/cgroup/jobs.slice/job 7/memory.stat",
                "anon 3000\nfile 2000\ninactive_file 1000\nactive_file 500\nslab_reclaimable 250\nslab 9\n",
            ),
            // 9000 − 6000.
            ("sys/fs/cgroup/jobs.slice/memory.max", "20000\n"),
            ("sys/fs/cgroup/jobs.slice/memory.high", "9000\n"),
            ("sys/fs/cgroup/jobs.slice/memory.current", "6000\n"),
        ];
        let root = root(&files);
        assert_eq!(left(root.path()), Some(3000));
        fs::remove_file(root.path().join("sys/fs/cgroup/jobs.slice/memory.high")).unwrap();
        assert_eq!(left(root.path()), Some(4750));
        // Use of other programs above the limit leaves 0 bytes, not a negative number.
        fs::write(root.path().join("sys/fs/cgroup/jobs.slice/job 7/memory.current"), "90000\n").unwrap();
        assert_eq!(left(root.path()), Some(0));
    }

    #[test]
    fn version_1_accounts_for_memory_in_a_hierarchy_of_its_own() {
        let files = [
            (
                "proc/self/mountinfo",
                "31 22 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                 32 22 0:28 /docker/f00 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                 33 22 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            ),
            ("proc/self/cgroup", "4:cpu:/\n3:cpuset,memory:/docker/f00/inner\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "3500\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 1000\ntotal_active_file 200\n"),
            ("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "100\n"),
        ];
        let root = root(&files);
        assert_eq!(left(root.path()), Some(4000 - (3500 - 1200)));
        // A group that the container cannot see: the visible part has the limit.
        fs::write(root.path().join("proc/self/cgroup"), "3:memory:/elsewhere\n").unwrap();
        assert_eq!(left(root.path()), Some(1700));
    }

    #[test]
    fn without_limits_or_groups_nothing_is_said() {
        let open = root(&[("proc/self/mountinfo", MOUNTS_V2), ("proc/self/cgroup", "0::/\n")]);
        assert_eq!(left(open.path()), None);
        assert_eq!(left(root(&[]).path()), None);
    }
}
