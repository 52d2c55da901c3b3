//! A model on a device: its arena, and the few ways a command talks to it.

use capful_core::device::{Meter, OperationError};
use capful_core::memory::{Init, Region, Role};
use capful_core::model::{Batch, Family, Optimizer, Stage, Steps};
use capful_core::ops::{Pattern, Rotary};
use capful_core::random::{Random, stream};
use capful_core::train::{results, settings};

use super::bench::Profiler;
use crate::device::{AnyDevice, AnyProfile, DeviceError, Storage};
use crate::plan::Laid;

/// A family that can be planned and run here.
pub trait HostFamily:
    Family + Steps<AnyDevice> + for<'p> Steps<Profiler<'p>> + for<'p> Steps<Meter<'p, AnyProfile>>
{
}

impl<F> HostFamily for F where
    F: Family + Steps<AnyDevice> + for<'p> Steps<Profiler<'p>> + for<'p> Steps<Meter<'p, AnyProfile>>
{
}

impl From<OperationError> for DeviceError {
    fn from(error: OperationError) -> Self {
        DeviceError(error.to_string())
    }
}

/// A model, its memory and the device that runs it.
pub struct Session<F: HostFamily> {
    /// The model.
    pub family: F,
    /// Where everything lies.
    pub laid: Laid<F>,
    /// What runs it.
    pub device: AnyDevice,
    /// Logits on their way out of the device, [vocabulary].
    logits: Vec<f32>,
}

/// Bytes that initialisation writes at once.
const PIECE: usize = 64 << 10;

impl<F: HostFamily> Session<F> {
    /// Allocates the arena, fills its tables, and sets the weights as `seed` says; without a seed they stay
    /// zero, to be loaded.
    ///
    /// # Errors
    /// The system refuses memory or threads.
    pub fn start(
        family: F,
        laid: Laid<F>,
        profile: &AnyProfile,
        seed: Option<u64>,
        vocab_size: u32,
    ) -> Result<Self, DeviceError> {
        let device = AnyDevice::start(profile, laid.bytes, laid.scratch)?;
        let mut session = Session { family, laid, device, logits: vec![0.0; vocab_size as usize] };
        session.initialise(seed)?;
        Ok(session)
    }

    fn initialise(&mut self, seed: Option<u64>) -> Result<(), DeviceError> {
        let mut piece = vec![0.0f32; PIECE / 4];
        for entry in &self.laid.lasting {
            let slot = &entry.slot;
            // Fresh storage is zero; gradients and moments begin there.
            let wanted = slot.role == Role::Constant || slot.role == Role::Weight && seed.is_some();
            if slot.init == Init::Zero || !wanted {
                continue;
            }
            for layer in 0..slot.layers {
                let region = entry.place.at(layer);
                let random = Random::new(seed.unwrap_or(0), stream(slot.name).wrapping_add(u64::from(layer)));
                let mut done = 0;
                while done < region.elements() {
                    let count = (region.elements() - done).min(piece.len() as u64) as usize;
                    for (i, x) in (done..).zip(&mut piece[..count]) {
                        *x = first_value(slot.init, &random, slot.shape, i);
                    }
                    let place = Region { offset: region.offset + 4 * done, shape: [1, 1, 1, count as u32], ..region };
                    self.device.write(place, bytemuck::cast_slice(&piece[..count]))?;
                    done += count as u64;
                }
            }
        }
        Ok(())
    }

    /// Writes what changes from step to step: see [`settings`].
    ///
    /// # Errors
    /// A lost device.
    pub fn set(&mut self, values: [f32; settings::LEN as usize]) -> Result<(), DeviceError> {
        let place = F::control(&self.laid.state).settings;
        self.device.write(place, bytemuck::cast_slice(&values))
    }

    /// Waits for the device and reads its results: see [`results`].
    ///
    /// # Errors
    /// A lost device.
    pub fn results(&mut self) -> Result<[f32; results::LEN as usize], DeviceError> {
        let mut values = [0.0; results::LEN as usize];
        let place = F::control(&self.laid.state).results;
        self.device.read(place, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    fn write_batch(&mut self, place: Batch, ids: &[u32], targets: &[u32]) -> Result<(), DeviceError> {
        self.device.write(place.ids, bytemuck::cast_slice(ids))?;
        self.device.write(place.targets, bytemuck::cast_slice(targets))
    }

    /// Forward and backward of one micro-batch: ids and targets [batch · seq_len].
    ///
    /// # Errors
    /// A session without a training section, a lost device.
    pub fn micro_batch(&mut self, ids: &[u32], targets: &[u32], first: bool) -> Result<(), DeviceError> {
        let (Some(training), Some(stage)) = (self.laid.training, self.laid.sections.training) else {
            return Err(missing("training"));
        };
        self.write_batch(F::training_batch(&training), ids, targets)?;
        Ok(self.family.micro_batch(&mut self.device, &self.laid.state, &training, &stage, first)?)
    }

    /// Moves the parameters.
    ///
    /// # Errors
    /// A lost device.
    pub fn update(&mut self, optimizer: &Optimizer) -> Result<(), DeviceError> {
        Ok(self.family.update(&mut self.device, &self.laid.state, optimizer)?)
    }

    /// The sum of the losses of one batch, in nats; padded rows have the target `IGNORE`.
    ///
    /// # Errors
    /// A session without an evaluation section, a lost device.
    pub fn evaluate(&mut self, ids: &[u32], targets: &[u32]) -> Result<f64, DeviceError> {
        let (Some(evaluation), Some(stage)) = (self.laid.evaluation, self.laid.sections.evaluation) else {
            return Err(missing("evaluation"));
        };
        let mut values = [0.0; settings::LEN as usize];
        values[settings::LOSS_SCALE] = 1.0;
        self.set(values)?;
        self.write_batch(F::evaluation_batch(&evaluation), ids, targets)?;
        self.family.evaluate(&mut self.device, &self.laid.state, &evaluation, &stage)?;
        Ok(f64::from(self.results()?[results::LOSS]))
    }

    /// The logits of rows `first` … of the batch last evaluated, handed to `visit` row by row.
    ///
    /// # Errors
    /// A session without an evaluation section, a lost device.
    pub fn logits(&mut self, rows: u32, visit: &mut dyn FnMut(&[f32])) -> Result<(), DeviceError> {
        let (Some(evaluation), Some(stage)) = (self.laid.evaluation, self.laid.sections.evaluation) else {
            return Err(missing("evaluation"));
        };
        let (place, chunk) = (F::evaluation_logits(&evaluation), stage.chunk.min(stage.tokens()));
        for first in (0..rows).step_by(chunk as usize) {
            let count = chunk.min(rows - first);
            self.family.logits(&mut self.device, &self.laid.state, &evaluation, first, count)?;
            for row in 0..count {
                self.device.read(place.slice_rows(row, 1), bytemuck::cast_slice_mut(&mut self.logits))?;
                visit(&self.logits);
            }
        }
        Ok(())
    }

    /// Feeds one token at `position` and gives the next one's logits, [vocabulary], to change at will.
    ///
    /// # Errors
    /// A session without a decoding section, a position beyond its context, a lost device.
    pub fn decode(&mut self, id: u32, position: u32, pattern: Pattern) -> Result<&mut [f32], DeviceError> {
        let Some(decoding) = self.laid.decoding else { return Err(missing("decoding")) };
        let (place, cursor, logits) = F::decoding_io(&decoding);
        self.device.write(place, &id.to_le_bytes())?;
        self.device.write(cursor, &position.to_le_bytes())?;
        self.family.decode(&mut self.device, &self.laid.state, &decoding, pattern)?;
        self.device.read(logits, bytemuck::cast_slice_mut(&mut self.logits))?;
        Ok(&mut self.logits)
    }

    /// The shape of an evaluation.
    ///
    /// # Errors
    /// A session without an evaluation section.
    pub fn evaluation_stage(&self) -> Result<Stage, DeviceError> {
        self.laid.sections.evaluation.ok_or_else(|| missing("evaluation"))
    }
}

fn missing(section: &str) -> DeviceError {
    DeviceError(format!("this session has no {section} section"))
}

/// Element `i` of a region that begins as `init` says.
fn first_value(init: Init, random: &Random, shape: [u32; 4], i: u64) -> f32 {
    match init {
        Init::Zero => 0.0,
        Init::One => 1.0,
        Init::Normal(deviation) => random.normal(i) * deviation,
        Init::Rotary { base } => {
            let pairs = u64::from(shape[2]);
            let (position, pair) = (i / 2 / pairs, i / 2 % pairs);
            Rotary::angle(base, 2 * shape[2], position as u32, pair as u32)[(i % 2) as usize]
        }
    }
}
