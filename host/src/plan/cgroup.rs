//! What the control groups of Linux leave this process: a container's limit is not in `/proc/meminfo`.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The files of a version of control groups.
struct Version {
    /// Which controller `/proc/self/cgroup` names; all of version 2 are in one hierarchy without names.
    controller: &'static str,
    /// The limits; any of them may be missing or say `max`.
    limits: &'static [&'static str],
    /// What is used, page cache included.
    used: &'static str,
    /// Fields of `memory.stat` that the kernel takes back before it refuses memory.
    reclaimable: &'static [&'static str],
}

/// Processes above `memory.high` are not killed and hardly run any more: a limit as well.
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

/// A hierarchy of groups that is mounted: the group shown at its top, and the directory where.
struct Mount {
    version: &'static Version,
    top: String,
    directory: String,
}

/// Bytes that this process's groups leave it: the least of its own and all above it, where one has a limit. `root` is
/// `/`, or a directory with such files for tests.
pub(super) fn left(root: &Path) -> Option<u64> {
    let mounts = mounts(&read_to_string(root.join("proc/self/mountinfo")).ok()?);
    let groups = read_to_string(root.join("proc/self/cgroup")).ok()?;
    let left = mounts.iter().filter_map(|mount| {
        let path = path(&groups, mount.version)?;
        // Of a group outside the mounted part only the part can be seen.
        let below = Path::new(path).strip_prefix(&mount.top).unwrap_or(Path::new(""));
        let top = root.join(mount.directory.trim_start_matches('/'));
        let group = top.join(below);
        group.ancestors().take_while(|at| at.starts_with(&top)).filter_map(|at| left_by(at, mount.version)).min()
    });
    left.min()
}

/// Where memory is accounted for, by either version.
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

/// The process's group in a hierarchy: lines are `number:controllers:path`.
fn path<'a>(groups: &'a str, version: &Version) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        controllers.split(',').any(|name| name == version.controller).then_some(path)
    })
}

/// What one group leaves, where it has a limit.
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

/// The number that a file holds; `max` is none.
fn number(file: PathBuf) -> Option<u64> {
    read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A directory with these files, as a root.
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
            // Of its own the group has no limit.
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
        // Another program's use above the limit leaves nothing, and not less.
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
        // A group that the container does not see: the part that it does see has the limit.
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
