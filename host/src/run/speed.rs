//! The speed of a run, and its share of the machine.

use std::fs::File;
use std::time::Instant;

/// The speed between two readings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Tokens a second.
    pub tokens_per_s: f64,
    /// Processor seconds of all threads together, for each second; where the system tells.
    pub cpu: Option<f64>,
    /// Seconds with a step under way on the GPU, for each second; where there is a GPU.
    pub gpu: Option<f64>,
    /// Seconds in which steps waited for text, in the whole interval.
    pub waited: f64,
}

/// Stores the last reading. Reading allocates nothing.
#[derive(Debug)]
pub struct Speedometer {
    stat: Option<File>,
    at: Instant,
    tokens: u64,
    cpu: Option<f64>,
    gpu: f64,
    waited: f64,
    lost: f64,
}

impl Speedometer {
    /// Starts at a run that has processed `tokens` and whose GPU was busy for `gpu` seconds.
    pub fn start(tokens: u64, gpu: Option<f64>) -> Speedometer {
        let stat = File::open("/proc/self/stat").ok();
        Speedometer {
            cpu: processor_seconds(stat.as_ref()),
            stat,
            at: Instant::now(),
            tokens,
            gpu: gpu.unwrap_or(0.0),
            waited: 0.0,
            lost: 0.0,
        }
    }

    /// Takes a reading at a run that has processed `tokens`, whose GPU was busy for `gpu` seconds and whose steps
    /// waited for `waited` seconds, all since the beginning.
    pub fn read(&mut self, tokens: u64, gpu: Option<f64>, waited: f64) -> Speed {
        let now = Instant::now();
        let seconds = (now - self.at).as_secs_f64().max(1e-9);
        let cpu = processor_seconds(self.stat.as_ref());
        let speed = Speed {
            tokens_per_s: (tokens - self.tokens) as f64 / seconds,
            cpu: cpu.zip(self.cpu).map(|(now, before)| (now - before) / seconds),
            gpu: gpu.map(|now| (now - self.gpu) / seconds),
            waited: waited - self.waited,
        };
        // The GPU may have run the previous step at the same time: at most its idle time was lost.
        self.lost += speed.waited.min(speed.gpu.map_or(f64::INFINITY, |gpu| (1.0 - gpu).max(0.0) * seconds));
        (self.at, self.tokens, self.cpu, self.gpu) = (now, tokens, cpu, gpu.unwrap_or(0.0));
        self.waited = waited;
        speed
    }

    /// Seconds lost by waiting for text, up to the last reading.
    pub fn lost(&self) -> f64 {
        self.lost
    }
}

/// Ticks a second in /proc: a constant of the kernel's interface to programs.
const TICKS: f64 = 100.0;

/// User and system time of this process.
#[cfg(unix)]
fn processor_seconds(stat: Option<&File>) -> Option<f64> {
    use std::os::unix::fs::FileExt;
    let mut buffer = [0; 512];
    let len = stat?.read_at(&mut buffer, 0).ok()?;
    let text = std::str::from_utf8(&buffer[..len]).ok()?;
    // The name in parentheses may contain anything; fields 14 and 15 are counted from before it.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

#[cfg(not(unix))]
fn processor_seconds(_: Option<&File>) -> Option<f64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_is_one_processor() {
        let mut meter = Speedometer::start(100, Some(0.1));
        let start = Instant::now();
        while start.elapsed().as_millis() < 300 {
            std::hint::black_box(start);
        }
        let speed = meter.read(400, Some(0.25), 0.2);
        assert!((500.0..=1000.1).contains(&speed.tokens_per_s), "{speed:?}");
        assert!(speed.gpu.is_some_and(|g| (0.25..=0.51).contains(&g)), "{speed:?}");
        // The GPU was idle for about half of 0.3 seconds, of which steps waited 0.2: the idle part counts as lost.
        assert_eq!(speed.waited, 0.2);
        assert!((0.149..0.2).contains(&meter.lost()), "{}", meter.lost());
        #[cfg(target_os = "linux")]
        assert!(speed.cpu.is_some_and(|c| c > 0.1), "{speed:?}");
    }
}
