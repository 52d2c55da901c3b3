//! Numbers worth watching, read from a step's results: firing rates, gate openings, the expected reward.

use capful_core::memory::{Dtype, Region};
use capful_core::model::{GAUGES, Gauge, Measure};
use capful_core::ops::math::gate;

use crate::device::{DeviceError, Storage};

/// Each gauge's name and value.
pub type Readings = heapless::Vec<(&'static str, f64), GAUGES>;

/// Reads gauges, with storage allocated beforehand.
#[derive(Debug)]
pub struct Gauges {
    gauges: Vec<Gauge>,
    words: Vec<u32>,
    more: [Vec<f32>; 3],
}

/// Elements read at once.
const PIECE: usize = 16 << 10;

impl Gauges {
    /// A reader of these gauges.
    pub fn new(gauges: Vec<Gauge>) -> Gauges {
        let longest = |pick: fn(&Measure) -> u64| gauges.iter().map(|g| pick(&g.measure)).max().unwrap_or(0) as usize;
        let signals = longest(|m| if let Measure::Gate { signals, .. } = m { signals.elements() } else { 0 });
        let dims = longest(|m| if let Measure::Gate { weight, .. } = m { weight.elements() } else { 0 });
        Gauges { words: vec![0; PIECE], more: [vec![0.0; signals], vec![0.0; dims], vec![0.0; dims]], gauges }
    }

    /// Reads all gauges. Allocates nothing.
    ///
    /// # Errors
    /// A lost device.
    pub fn read(&mut self, device: &mut dyn Storage) -> Result<Readings, DeviceError> {
        let mut readings = Readings::new();
        let Gauges { gauges, words, more } = self;
        for Gauge { name, measure } in &*gauges {
            let value = match *measure {
                Measure::Mean(region) => {
                    let mut sum = 0.0;
                    each(device, region, words, &mut |x| sum += f64::from(x))?;
                    sum / region.elements().max(1) as f64
                }
                Measure::Gate { signals, weight, bias } => {
                    for (region, to) in [signals, weight, bias].into_iter().zip(&mut *more) {
                        let mut to = to.iter_mut();
                        each(device, region, words, &mut |x| {
                            if let Some(place) = to.next() {
                                *place = x;
                            }
                        })?;
                    }
                    let [rates, weight, bias] = more;
                    let streams = signals.columns() as usize;
                    let outputs = signals.rows().max(1) as usize;
                    let opening = |d: usize, b: usize| gate(weight[d] * rates[d % outputs * streams + b] + bias[d]);
                    let all = (0..weight.len()).flat_map(|d| (0..streams).map(move |b| (d, b)));
                    let sum: f64 = all.map(|(d, b)| f64::from(opening(d, b))).sum();
                    sum / (weight.len() * streams).max(1) as f64
                }
            };
            // As many as the list has room for: the family guarantees that this suffices.
            let _ = readings.push((name, value));
        }
        Ok(readings)
    }
}

/// Passes every element of a region to a function, piece by piece.
fn each(
    device: &mut dyn Storage,
    region: Region,
    words: &mut [u32],
    visit: &mut dyn FnMut(f32),
) -> Result<(), DeviceError> {
    let (mut done, elements) = (0, region.elements());
    while done < elements {
        let count = (elements - done).min(words.len() as u64);
        let place =
            Region { offset: region.offset + done * region.dtype.size(), shape: [1, 1, 1, count as u32], ..region };
        let bytes = &mut bytemuck::cast_slice_mut(words)[..place.bytes() as usize];
        device.read(place, bytes)?;
        if region.dtype == Dtype::Bf16 {
            bytes.chunks_exact(2).for_each(|b| visit(half::bf16::from_le_bytes([b[0], b[1]]).to_f32()));
        } else {
            bytes.chunks_exact(4).for_each(|b| visit(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        }
        done += count;
    }
    Ok(())
}
