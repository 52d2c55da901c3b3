//! The energy of a run, where it is counted: on a GPU the energy of its board, from the driver's management library; on
//! a CPU the energy of all the machine's processors, from the kernel's power capping interface (RAPL). Both include the
//! energy of other programs at the same time.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use super::Session;

/// Where Linux provides the processors' counters.
const POWERCAP: &str = "/sys/class/powercap";
/// Minimum seconds between two readings: they take time. A processor's counter overflows after some minutes.
const OFTEN: f64 = 0.2;

/// The counter of one processor.
#[derive(Debug)]
struct Package {
    file: File,
    /// Joules at which the counter overflows to 0.
    range: f64,
    last: f64,
}

impl Package {
    fn read(&self) -> Option<f64> {
        let mut text = [0; 32];
        let read = self.file.read_at(&mut text, 0).ok()?;
        let micro: f64 = std::str::from_utf8(&text[..read]).ok()?.trim().parse().ok()?;
        Some(micro / 1e6)
    }

    /// Joules since the last reading.
    fn since(&mut self) -> Option<f64> {
        let now = self.read()?;
        let more = now - self.last;
        self.last = now;
        Some(if more < 0.0 { more + self.range } else { more })
    }
}

/// The processors' counters that this user may read.
fn packages(at: &Path) -> Vec<Package> {
    let package = |folder: &Path| {
        let text = |name| fs::read_to_string(folder.join(name)).ok();
        // The parts of a package have counters of their own, which are included in the package's counter.
        if !text("name")?.starts_with("package") {
            return None;
        }
        let range = text("max_energy_range_uj")?.trim().parse::<f64>().ok()? / 1e6;
        let mut package = Package { file: File::open(folder.join("energy_uj")).ok()?, range, last: 0.0 };
        package.last = package.read()?;
        Some(package)
    };
    let folders = fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path());
    folders.filter_map(|folder| package(&folder)).collect()
}

/// The source of the energy count.
enum Counters {
    /// The GPU, with its counter at the last reading.
    Gpu(f64),
    Processors(Vec<Package>),
    /// No counter, or several GPUs of several ranks.
    None,
}

/// The energy of a run so far. Reading allocates nothing.
pub struct Energy {
    counters: Counters,
    begun: Instant,
    read: Instant,
    joules: f64,
    predicted: Option<f64>,
}

impl Energy {
    /// The energy of a run with one rank, from now on.
    pub fn start(session: &mut Session) -> Energy {
        let counters = match (session.peers(), session.device.gpu()) {
            (Some(_), _) => Counters::None,
            (None, Some(gpu)) => gpu.joules().map_or(Counters::None, Counters::Gpu),
            (None, None) => Counters::of_processors(Path::new(POWERCAP)),
        };
        let now = Instant::now();
        Energy { counters, begun: now, read: now, joules: 0.0, predicted: None }
    }

    /// Restarts the count.
    pub fn restart(&mut self, session: &mut Session) {
        self.joules(session);
        (self.begun, self.joules) = (self.read, 0.0);
    }

    /// Reads the counters, unless they were read a moment ago. If the run is `expected` to take a number of seconds,
    /// its energy is predicted from the power until now.
    pub fn pass(&mut self, expected: Option<f64>, session: &mut Session) {
        if self.read.elapsed().as_secs_f64() < OFTEN {
            return;
        }
        let (joules, elapsed) = (self.joules(session), self.begun.elapsed().as_secs_f64());
        let predicted = expected.zip(joules).map(|(seconds, joules)| joules * (seconds / elapsed).max(1.0));
        self.predicted = predicted.or(self.predicted);
    }

    /// Joules so far; `None` without a counter.
    pub fn joules(&mut self, session: &mut Session) -> Option<f64> {
        self.read = Instant::now();
        let more = match &mut self.counters {
            Counters::Gpu(last) => session.device.gpu().and_then(|gpu| gpu.joules()).map(|now| {
                let more = now - *last;
                *last = now;
                more
            }),
            Counters::Processors(packages) => packages.iter_mut().map(Package::since).sum(),
            Counters::None => None,
        };
        self.joules += more?;
        Some(self.joules)
    }

    /// The last prediction.
    pub fn predicted(&self) -> Option<f64> {
        self.predicted
    }
}

impl Counters {
    fn of_processors(at: &Path) -> Counters {
        match packages(at) {
            packages if packages.is_empty() => Counters::None,
            packages => Counters::Processors(packages),
        }
    }
}

/// Joules for people: 950 J, 12.3 kJ, 4.56 MJ.
pub fn shown(joules: f64) -> String {
    match joules {
        j if j < 1e3 => format!("{j:.0} J"),
        j if j < 1e6 => format!("{:.1} kJ", j / 1e3),
        j => format!("{:.2} MJ", j / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_added_and_their_counters_begin_again() {
        let at = tempfile::tempdir().unwrap();
        let write = |name: &str, key: &str, value: &str| {
            let folder = at.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(key), value).unwrap();
        };
        for (folder, name, joules) in [("a:0", "package-0\n", 5), ("a:1", "package-1\n", 90), ("a:0:0", "core\n", 3)] {
            write(folder, "name", name);
            write(folder, "max_energy_range_uj", "100000000\n");
            write(folder, "energy_uj", &format!("{}\n", joules * 1_000_000));
        }
        write("none", "name", "package-9\n");
        let mut found = packages(at.path());
        assert_eq!(found.len(), 2);
        write("a:0", "energy_uj", "25500000\n");
        write("a:1", "energy_uj", "10000000\n");
        let joules: Option<f64> = found.iter_mut().map(Package::since).sum();
        // The second counter went from 90 to 100, and then from 0 to 10.
        approx::assert_relative_eq!(joules.unwrap(), 20.5 + 20.0);
        fs::write(at.path().join("a:1/energy_uj"), "lost\n").unwrap();
        assert_eq!(found.iter_mut().map(Package::since).sum::<Option<f64>>(), None);
    }

    #[test]
    fn joules_are_written_for_people() {
        assert_eq!([950.0, 12_345.0, 4.56e6].map(shown), ["950 J", "12.3 kJ", "4.56 MJ"]);
    }
}
