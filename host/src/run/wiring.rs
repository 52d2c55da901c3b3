//! The tables of a sparse wiring, drawn at the start. Core draws single rows; whole tables are built here, because they
//! have many rows, which are drawn on several threads, and because sorting the synapses by source needs additional
//! memory.

use std::thread;

use capful_core::memory::WiringPart;
use capful_core::wiring::Wiring;

/// A table of the wiring of `neurons` rows with `fan_in` sources. `threads` threads draw the rows; their number does
/// not affect the result: each row is a function of its number.
pub fn table(wiring: &Wiring, part: WiringPart, [neurons, fan_in]: [u32; 2], len: usize, threads: usize) -> Vec<u32> {
    let sources = sources(wiring, neurons, fan_in, threads);
    if part == WiringPart::Sources {
        return sources;
    }
    let highest = sources.iter().max().map_or(0, |&s| s as usize + 1);
    // As many entries as the region has, one more than the number of sources.
    let entries = if part == WiringPart::Starts { len } else { highest + 1 };
    let mut starts = vec![0u32; entries];
    sources.iter().for_each(|&s| starts[s as usize + 1] += 1);
    (1..entries).for_each(|s| starts[s] += starts[s - 1]);
    if part == WiringPart::Starts {
        return starts;
    }
    let mut by_source = vec![0u32; sources.len()];
    for (synapse, &s) in sources.iter().enumerate() {
        let at = &mut starts[s as usize];
        by_source[*at as usize] = synapse as u32;
        *at += 1;
    }
    by_source
}

fn sources(wiring: &Wiring, neurons: u32, fan_in: u32, threads: usize) -> Vec<u32> {
    let (neurons, fan_in) = (neurons as usize, fan_in as usize);
    let mut sources = vec![0u32; neurons * fan_in];
    let band = neurons.div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        for (i, rows) in sources.chunks_mut(band * fan_in).enumerate() {
            scope.spawn(move || {
                for (row, sources) in rows.chunks_exact_mut(fan_in).enumerate() {
                    wiring.draw((i * band + row) as u32, sources);
                }
            });
        }
    });
    sources
}

#[cfg(test)]
mod tests {
    use super::*;
    use capful_core::wiring::{POOLS, Pool};

    #[test]
    fn every_synapse_stands_once_under_its_source() {
        let mut pools = [Pool { first: 0, count: 0 }; POOLS];
        pools[0] = Pool { first: 9, count: 30 };
        let front = Pool { first: 0, count: 7 };
        let wiring = Wiring { seed: 3, stream: 2, front, reserved: 3, pools, own: 19 };
        let make = |part, threads| table(&wiring, part, [20, 8], 41, threads);
        let sources = make(WiringPart::Sources, 1);
        assert_eq!(sources, make(WiringPart::Sources, 3));
        let (starts, synapses) = (make(WiringPart::Starts, 2), make(WiringPart::Synapses, 2));
        assert_eq!((starts.len(), starts[40], synapses.len()), (41, 160, 160));
        for s in 0..40 {
            let own = &synapses[starts[s] as usize..starts[s + 1] as usize];
            assert!(own.windows(2).all(|w| w[0] < w[1]));
            let expected: Vec<u32> = (0..160).filter(|&i| sources[i as usize] == s as u32).collect();
            assert_eq!(own, expected);
        }
    }
}
