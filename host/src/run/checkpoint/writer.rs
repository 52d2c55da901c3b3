//! The writer of a run's checkpoints.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use capful_core::memory::{Entry, Role};

use super::found::{complete, name_of, remove, step_of_path};
use super::intact::mark;
use super::weights::averages;
use super::{
    AVERAGES, CheckpointError, MODEL, OPTIMIZER, STAGING, STATE, TEMPORARY, TrainerState, io_at, saved, sync_dir,
    write_file,
};
use crate::allocations::{self, Activity};
use crate::data::tokenizer::Tokenizer;
use crate::device::Storage;
use crate::format::safetensors;
use crate::ranks::{SharedPeers, together};
use crate::run::evaluations::Evaluations;

/// Writes checkpoints of one run, with storage allocated beforehand.
pub struct Writer {
    dir: PathBuf,
    keep: usize,
    /// Whether the checkpoint of the lowest validation loss is preserved in addition.
    keep_best: bool,
    weights: Vec<Entry>,
    optimizer: Vec<Entry>,
    /// The averages under the names of their weights, and the weights without an average; empty if there are no
    /// averages.
    averages: Vec<Entry>,
    config: Vec<u8>,
    tokenizer: Arc<dyn Tokenizer>,
    staging: Vec<u8>,
    /// Complete checkpoints, oldest first.
    there: Vec<PathBuf>,
    /// The last checkpoint, if it is not yet known to be sound.
    unsure: Option<PathBuf>,
    /// The state of the evaluations in the last checkpoint.
    said: Option<Evaluations>,
    /// The ranks that write checkpoints together, if there are several.
    peers: Option<SharedPeers>,
    rank: u32,
}

/// Whether a part of the work succeeded on all ranks.
fn together(peers: Option<&SharedPeers>, done: Result<(), CheckpointError>) -> Result<(), CheckpointError> {
    together::together(peers, done, ToString::to_string, |elsewhere| CheckpointError::Elsewhere(elsewhere.what))
}

impl Writer {
    /// A writer into the run's directory `dir` that preserves the last `keep` checkpoints, and in addition the one of
    /// the lowest validation loss if requested; `config` is the model's config.json. The ranks of `peers` write
    /// together.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn new(
        dir: &Path,
        (keep, keep_best): (u32, bool),
        lasting: &[Entry],
        config: Vec<u8>,
        tokenizer: Arc<dyn Tokenizer>,
        peers: Option<SharedPeers>,
    ) -> Result<Writer, CheckpointError> {
        let rank = peers.as_ref().map_or(0, |peers| peers.borrow().rank());
        // The constant parts of the tokenizer's file are built now, and not during a save. A tokenizer that cannot be
        // saved reports that error there.
        let _ = tokenizer.write(&mut io::sink());
        Ok(Writer {
            dir: dir.to_owned(),
            keep: keep.max(1) as usize,
            keep_best,
            weights: saved(lasting, &[Role::Weight]),
            optimizer: saved(lasting, &[Role::Master, Role::Moment, Role::State]),
            averages: averages(lasting),
            config,
            tokenizer,
            staging: vec![0; STAGING],
            there: complete(dir)?,
            unsure: None,
            said: None,
            peers,
            rank,
        })
    }

    /// The run's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The last complete checkpoint.
    pub fn last(&self) -> Option<&Path> {
        self.there.last().map(PathBuf::as_path)
    }

    /// Continues after the last checkpoint, which has this state of the evaluations.
    pub fn go_on(&mut self, said: Option<Evaluations>) {
        self.said = said;
    }

    /// Whether the checkpoint of a step exists.
    pub fn has(&self, step: u64) -> bool {
        self.there.contains(&self.dir.join(name_of(step)))
    }

    /// Writes the checkpoint of `state`; if it exists already, only a later state of the evaluations is written. If it
    /// is `sound`, the oldest checkpoints beyond the preserved ones are then removed; else this checkpoint can be
    /// withdrawn.
    ///
    /// # Errors
    /// The file system or the device; a partial checkpoint is removed, existing checkpoints stay.
    pub fn save(&mut self, device: &mut dyn Storage, state: &TrainerState, sound: bool) -> Result<(), CheckpointError> {
        allocations::during(Activity::Save, || {
            let name = name_of(state.step);
            let (temporary, last) = (self.dir.join(format!("{name}{TEMPORARY}")), self.dir.join(name));
            if self.there.contains(&last) {
                if let Some(evaluations) = state.evaluations.filter(|_| state.evaluations != self.said) {
                    let written = if self.rank == 0 { evaluations.keep(&last) } else { Ok(()) };
                    together(self.peers.as_ref(), written)?;
                    self.said = state.evaluations;
                }
                if sound {
                    // The checkpoint may have become sound only now, and a run that was killed may have left too many
                    // checkpoints.
                    self.unsure = None;
                    self.remove_oldest(state);
                }
                return Ok(());
            }
            let written = self.write(&temporary, &last, device, state);
            if written.is_err() {
                if self.rank == 0 {
                    let _ = fs::remove_dir_all(&temporary);
                    let _ = remove(&last);
                }
                return written;
            }
            self.unsure = (!sound).then(|| last.clone());
            self.said = state.evaluations;
            self.there.push(last);
            if sound {
                self.remove_oldest(state);
            }
            Ok(())
        })
    }

    /// Removes the last checkpoint, if it is not known to be sound.
    pub fn withdraw(&mut self) {
        if let Some(last) = self.unsure.take() {
            self.there.retain(|path| *path != last);
            if self.rank == 0 {
                let _ = remove(&last);
            }
        }
    }

    /// Writes the checkpoint under a temporary name and renames it. Each rank writes its part of the tensors, between
    /// the first and the last part of rank 0's work.
    fn write(
        &mut self,
        temporary: &Path,
        last: &Path,
        device: &mut dyn Storage,
        state: &TrainerState,
    ) -> Result<(), CheckpointError> {
        let peers = self.peers.clone();
        let together = |done| together(peers.as_ref(), done);
        together(if self.rank == 0 { self.begin(temporary, state) } else { Ok(()) })?;
        let part = [self.rank, peers.as_ref().map_or(1, |peers| peers.borrow().count())];
        let files = self.files(state).map(|file| file.map(|(name, _)| name));
        let Writer { weights, optimizer, averages, staging, .. } = self;
        let mut digests = [MODEL, OPTIMIZER, AVERAGES].map(|name| (name, None));
        let written = files.into_iter().flatten().zip(&mut digests).try_for_each(|(name, (_, digest))| {
            let entries = match name {
                MODEL => &*weights,
                OPTIMIZER => &*optimizer,
                _ => &*averages,
            };
            *digest = safetensors::write_part(&temporary.join(name), [entries, weights], device, staging, part)?;
            Ok(())
        });
        together(written.map_err(CheckpointError::Tensors))?;
        together(if self.rank == 0 { self.finish(temporary, last, &digests) } else { Ok(()) })
    }

    /// Marks a written checkpoint as complete and gives it its final name. `digests` are those of the tensor files,
    /// where they are known.
    fn finish(
        &mut self,
        temporary: &Path,
        last: &Path,
        digests: &[(&str, Option<u64>)],
    ) -> Result<(), CheckpointError> {
        mark(temporary, digests, &mut self.staging)?;
        if last.exists() {
            fs::remove_dir_all(last).map_err(io_at(last))?;
        }
        fs::rename(temporary, last).map_err(io_at(last))?;
        sync_dir(&self.dir)
    }

    /// Removes the oldest checkpoints beyond the preserved ones, of a run in `state`. A checkpoint that cannot be
    /// removed does not stop the run: the next save tries again.
    fn remove_oldest(&mut self, state: &TrainerState) {
        let best = state.best_step().filter(|_| self.keep_best);
        let stable = state.timed.and_then(|timed| Some(timed.fall?.begun));
        let kept = [best, stable].map(|step| step.map(|step| self.dir.join(name_of(step))));
        // A run that resumed from before its last checkpoint has left later checkpoints.
        let is_left = |path: &Path| step_of_path(path).is_some_and(|step| step > state.step);
        let left = self.there.iter().filter(|path| is_left(path)).count();
        let mut beyond = self.there.len().saturating_sub(self.keep + left);
        self.there.retain(|path| {
            let old = beyond > 0 || is_left(path);
            beyond = beyond.saturating_sub(1);
            !old || kept.contains(&Some(path.clone())) || self.rank == 0 && remove(path).is_err()
        });
    }

    /// The tensor files of a checkpoint of `state`, and their entries.
    fn files(&self, state: &TrainerState) -> [Option<(&'static str, &[Entry])>; 3] {
        let averages = state.averaged.filter(|_| !self.averages.is_empty()).map(|_| (AVERAGES, &self.averages[..]));
        [Some((MODEL, &self.weights)), Some((OPTIMIZER, &self.optimizer)), averages]
    }

    /// Writes everything except the tensors' data.
    fn begin(&self, dir: &Path, state: &TrainerState) -> Result<(), CheckpointError> {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir(dir).map_err(io_at(dir))?;
        let mut files = self.files(state).into_iter().flatten();
        files.try_for_each(|(name, entries)| safetensors::begin(&dir.join(name), entries))?;
        write_file(&dir.join("config.json"), &self.config)?;
        write_state(&dir.join(STATE), state)?;
        // Written from memory: the run's own file may have been damaged since it was read.
        Ok(self.tokenizer.save(dir)?)
    }
}

/// Through a buffer of fixed size: with a GPU's algorithms the text is long.
fn write_state(path: &Path, state: &TrainerState) -> Result<(), CheckpointError> {
    let write = || {
        let mut file = BufWriter::with_capacity(8 << 10, File::create(path)?);
        serde_json::to_writer_pretty(&mut file, state)?;
        file.into_inner()?.sync_all()
    };
    write().map_err(io_at(path))
}

#[cfg(test)]
mod tests {
    use std::mem::take;

    use capful_core::memory::{Dtype, Layout, Ledger as _, Region, Slot, Space};
    use capful_core::random::Random;
    use capful_core::remainder;

    use super::super::*;
    use super::*;
    use crate::data::tokenizer;
    use crate::device::Allocation;

    /// A device that is never read: the checkpoints have no tensors.
    struct Nothing;

    impl Storage for Nothing {
        fn write(&mut self, _: Region, _: &[u8]) -> Result<(), DeviceError> {
            Ok(())
        }

        fn read(&mut self, _: Region, _: &mut [u8]) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    fn writer(dir: &Path, keep: u32, lasting: &[Entry]) -> Writer {
        let tokenizer = tokenizer::build("byte", None, true, &mut std::iter::empty()).unwrap().tokenizer;
        Writer::new(dir, (keep, true), lasting, b"{}".to_vec(), tokenizer.into(), None).unwrap()
    }

    fn state(step: u64) -> TrainerState {
        TrainerState {
            step,
            tokens: 0,
            position: Position::default(),
            tokenizer: 0,
            data: 0,
            source: None,
            validation: None,
            beside: Vec::new(),
            device: "cpu".to_owned(),
            version: String::new(),
            algorithms: Vec::new(),
            skipped: 0,
            evaluations: None,
            averaged: None,
            base: None,
            timed: None,
        }
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn an_old_checkpoint_that_is_gone_or_cannot_be_removed_ends_no_run() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path(), 1, &[]);
        writer.save(&mut Nothing, &state(1), true).unwrap();
        fs::remove_dir_all(dir.path().join(name_of(1))).unwrap();
        writer.save(&mut Nothing, &state(2), true).unwrap();
        assert_eq!(names(dir.path()), [name_of(2)]);
        assert_eq!(writer.there, [dir.path().join(name_of(2))]);

        // A file in a checkpoint's place cannot be removed as a directory.
        fs::remove_dir_all(dir.path().join(name_of(2))).unwrap();
        fs::write(dir.path().join(name_of(2)), "").unwrap();
        writer.save(&mut Nothing, &state(3), true).unwrap();
        assert_eq!(names(dir.path()), [name_of(2), name_of(3)]);
        fs::remove_file(dir.path().join(name_of(2))).unwrap();
        writer.save(&mut Nothing, &state(4), true).unwrap();
        assert_eq!(names(dir.path()), [name_of(4)]);
        assert_eq!(take(&mut writer.there), [dir.path().join(name_of(4))]);
    }

    #[test]
    fn the_best_stays_beside_the_last_ones_until_another_is() {
        let dir = tempfile::tempdir().unwrap();
        let mut evaluations = Evaluations::default();
        let mut at = |step, loss: Option<f64>| {
            loss.into_iter().for_each(|loss| evaluations.add(step, loss, true));
            TrainerState { evaluations: Some(evaluations), ..state(step) }
        };
        let mut writer = writer(dir.path(), 2, &[]);
        for (step, loss, there) in [
            (1, None, &[1][..]),
            (2, Some(5.0), &[1, 2]),
            (3, Some(6.0), &[2, 3]),
            (4, None, &[2, 3, 4]),
            (5, None, &[2, 4, 5]),
            (6, Some(4.0), &[5, 6]),
            (7, Some(4.5), &[6, 7]),
            (8, Some(4.5), &[6, 7, 8]),
        ] {
            writer.save(&mut Nothing, &at(step, loss), true).unwrap();
            assert_eq!(names(dir.path()), there.iter().map(|step| name_of(*step)).collect::<Vec<_>>(), "{step}");
            assert!(there.iter().all(|step| writer.has(*step)) && !writer.has(99));
        }
        assert_eq!(best(dir.path()).unwrap(), dir.path().join(name_of(6)));
        // An evaluation after its checkpoint is written into that checkpoint, once.
        writer.save(&mut Nothing, &at(9, None), false).unwrap();
        assert_eq!(names(dir.path()), [6, 7, 8, 9].map(name_of));
        let after = at(9, Some(1.0));
        writer.save(&mut Nothing, &after, true).unwrap();
        assert_eq!(names(dir.path()), [8, 9].map(name_of));
        let last = dir.path().join(name_of(9));
        assert_eq!(read_state(&last).unwrap(), after);
        check(&last, |_| true).unwrap();
        assert_eq!(best(dir.path()).unwrap(), last);
        let refused = best(&last).unwrap_err().to_string();
        assert!(refused.contains("is one checkpoint"), "{refused}");
        // A missing checkpoint is named in the error.
        writer.save(&mut Nothing, &at(10, Some(2.0)), true).unwrap();
        fs::remove_dir_all(&last).unwrap();
        let refused = best(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("step 9") && refused.contains("--keep-best"), "{refused}");
        writer.save(&mut Nothing, &state(11), true).unwrap();
        assert!(best(dir.path()).unwrap_err().to_string().contains("--eval-every"));
    }

    /// A weight in bf16 and its remainders, each with two layers of two tensors: longer than a piece of the staging
    /// buffer. And the number of bytes that contain them all.
    fn split_parameter() -> (Vec<Entry>, u64) {
        let mut entries = Vec::new();
        let mut visit = |entry: &Entry| entries.push(*entry);
        let mut layout = Layout::new(&mut visit);
        let weight = Slot::new("l.*.{a,b}.w", Role::Weight, Dtype::Bf16, [1, 1, 410, 401]).layers(2);
        let weight = Slot { parts: [397, 7, 0], ..weight };
        layout.region(weight);
        layout.region(Slot { prefix: MASTER, role: Role::Master, dtype: Dtype::Remainder, ..weight });
        let bytes = layout.high_water().unwrap();
        (entries, bytes)
    }

    /// Fills the tensors of a weight and its remainders with the halves of `masters`.
    fn put(entries: &[Entry], masters: &[f32], memory: &mut Allocation) {
        let halves: Vec<_> = masters.iter().map(|x| remainder::split(*x)).collect();
        let upper = halves.iter().flat_map(|(weight, _)| weight.to_le_bytes()).collect::<Vec<_>>();
        let lower = halves.iter().flat_map(|(_, remainder)| remainder.to_le_bytes()).collect::<Vec<_>>();
        for (entry, bytes) in entries.iter().zip([upper, lower]) {
            let mut rest = &bytes[..];
            for (_, region) in entry.tensors() {
                let (own, behind) = rest.split_at(region.bytes() as usize);
                memory.write(region, own).unwrap();
                rest = behind;
            }
            assert!(rest.is_empty());
        }
    }

    /// All bytes of `memory`.
    fn bytes_of(memory: &mut Allocation, bytes: u64) -> Vec<u8> {
        let all = Region { space: Space::Arena, dtype: Dtype::E4m3, offset: 0, shape: [1, 1, 1, bytes as u32] };
        let mut found = vec![0; bytes as usize];
        memory.read(all, &mut found).unwrap();
        found
    }

    #[test]
    fn masters_are_f32_in_files_and_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let (entries, bytes) = split_parameter();
        let random = Random::new(3, 0);
        let count = entries[0].tensors().map(|(_, region)| region.elements()).sum::<u64>();
        // Two masters are halfway between two bf16: one is rounded up and restored exactly, one is rounded down and
        // changes by one unit.
        let mut masters: Vec<f32> = (0..count).map(|i| random.normal(i) * 1e3f32.powi(i as i32 % 13 - 6)).collect();
        (masters[1], masters[200_000]) = (f32::from_bits(0x3f81_8000), f32::from_bits(0x3f80_8000));
        let kept = masters.iter().map(|x| remainder::split(*x)).map(|(w, r)| remainder::join(w, r));
        let kept: Vec<f32> = kept.collect();
        assert_eq!(kept[200_000].to_bits(), 0x3f80_7fff);
        let mut memory = Allocation::new(bytes).unwrap();
        put(&entries, &masters, &mut memory);
        writer(dir.path(), 1, &entries).save(&mut memory, &state(1), true).unwrap();

        // As another implementation reads it.
        let checkpoint = dir.path().join(name_of(1));
        let path = checkpoint.join(OPTIMIZER);
        let mut file = fs::read(&path).unwrap();
        let tensors = ::safetensors::SafeTensors::deserialize(&file).unwrap();
        let mut rest = &kept[..];
        for name in ["master.l.0.a.w", "master.l.0.b.w", "master.l.1.a.w", "master.l.1.b.w"] {
            let tensor = tensors.tensor(name).unwrap();
            let rows = if name.ends_with("a.w") { 397 } else { 7 };
            assert_eq!((tensor.dtype(), tensor.shape()), (::safetensors::Dtype::F32, &[rows, 401][..]), "{name}");
            let (own, behind) = rest.split_at(rows * 401);
            assert!(tensor.data() == own.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>(), "{name}");
            rest = behind;
        }
        assert!(rest.is_empty());

        let restored = || {
            let mut fresh = Allocation::new(bytes).unwrap();
            restore(&checkpoint, &entries, Wanted::Run { averages: false }, &mut fresh).unwrap();
            bytes_of(&mut fresh, bytes)
        };
        let before = bytes_of(&mut memory, bytes);
        assert!(restored() == before);
        // An f32 master halfway between two bf16, in a file of another program.
        let place = file.len() - 4 * (count as usize - 200_000);
        assert_eq!(file[place..place + 4], 0x3f80_7fff_u32.to_le_bytes());
        file[place..place + 4].copy_from_slice(&0x3f80_8000_u32.to_le_bytes());
        fs::write(&path, &file).unwrap();
        fs::write(checkpoint.join(DONE), "").unwrap();
        assert!(restored() == before);
    }

    #[test]
    fn a_run_in_f32_goes_on_in_bf16_from_the_same_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let (entries, bytes) = split_parameter();
        let weight = Slot { dtype: Dtype::F32, ..entries[0].slot };
        let mut precise = Vec::new();
        let mut visit = |entry: &Entry| precise.push(*entry);
        Layout::new(&mut visit).region(weight);
        let random = Random::new(4, 0);
        let regions: Vec<Region> = precise[0].tensors().map(|(_, region)| region).collect();
        let count = regions.iter().map(Region::elements).sum::<u64>();
        let numbers: Vec<f32> = (0..count).map(|i| random.normal(i)).collect();
        let mut memory = Allocation::new(precise[0].bytes + precise[0].padding).unwrap();
        let mut rest = &numbers[..];
        for region in &regions {
            let (own, behind) = rest.split_at(region.elements() as usize);
            memory.write(*region, bytemuck::cast_slice(own)).unwrap();
            rest = behind;
        }
        writer(dir.path(), 1, &precise).save(&mut memory, &state(1), true).unwrap();
        let (mut expected, mut found) = (Allocation::new(bytes).unwrap(), Allocation::new(bytes).unwrap());
        put(&entries, &numbers, &mut expected);
        restore(&dir.path().join(name_of(1)), &entries, Wanted::Run { averages: false }, &mut found).unwrap();
        assert!(bytes_of(&mut found, bytes) == bytes_of(&mut expected, bytes));
    }
}
