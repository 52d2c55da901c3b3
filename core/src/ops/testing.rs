//! A small arena with operands, for the tests at the bottom of each operation's file.

use crate::device::{Device as _, Meter, Operation, OperationError, Profile, Rates, Reference, Single};
use crate::memory::{Arena, Dtype, Region, Space};
use crate::random::Random;
use crate::train::{Results, Settings};

/// An arena of `WORDS` eight-byte words, filled from the front.
pub struct Bench<const WORDS: usize> {
    storage: [u64; WORDS],
    used: u64,
}

impl<const WORDS: usize> Bench<WORDS> {
    pub fn new() -> Self {
        Self { storage: [0; WORDS], used: 0 }
    }

    fn region(&mut self, dtype: Dtype, shape: [u32; 4]) -> Region {
        let region = Region { space: Space::Arena, dtype, offset: self.used, shape };
        self.used = region.end().next_multiple_of(8);
        assert!(self.used <= WORDS as u64 * 8, "the bench is too small");
        region
    }

    pub fn values(&mut self, shape: [u32; 4], values: &[f32]) -> Region {
        let region = self.region(Dtype::F32, shape);
        self.set(region, values);
        region
    }

    pub fn set(&mut self, region: Region, values: &[f32]) {
        let mut arena = Arena::new(&mut self.storage);
        let [mut view] = arena.views([Some(region)]).unwrap();
        view.f32_mut().expect("a region of this type").copy_from_slice(values);
    }

    pub fn settings(&mut self, settings: Settings) -> Region {
        self.values([1, 1, 1, Settings::LEN as u32], &<[f32; 16]>::from(settings))
    }

    pub fn results(&mut self, results: Results) -> Region {
        self.values([1, 1, 1, Results::LEN as u32], &<[f32; 2]>::from(results))
    }

    /// Normal numbers times `scale`.
    pub fn normal(&mut self, shape: [u32; 4], stream: u64, scale: f32) -> Region {
        let region = self.region(Dtype::F32, shape);
        let random = Random::new(11, stream);
        let mut arena = Arena::new(&mut self.storage);
        let [mut view] = arena.views([Some(region)]).unwrap();
        for (i, x) in view.f32_mut().expect("a region of this type").iter_mut().enumerate() {
            *x = random.normal(i as u64) * scale;
        }
        region
    }

    /// A region of NaN, for outputs that the operation must write before they are read.
    pub fn poison(&mut self, shape: [u32; 4]) -> Region {
        let region = self.region(Dtype::F32, shape);
        let mut arena = Arena::new(&mut self.storage);
        let [mut view] = arena.views([Some(region)]).unwrap();
        view.f32_mut().expect("a region of this type").fill(f32::NAN);
        region
    }

    pub fn ids(&mut self, ids: &[u32]) -> Region {
        let region = self.region(Dtype::U32, [1, 1, 1, ids.len() as u32]);
        let mut arena = Arena::new(&mut self.storage);
        let [mut view] = arena.views([Some(region)]).unwrap();
        view.u32_mut().expect("a region of this type").copy_from_slice(ids);
        region
    }

    /// The error of `operation` when it runs without a check of its shapes.
    pub fn fails(&mut self, operation: impl Operation) -> Option<OperationError> {
        operation.reference(&mut Arena::new(&mut self.storage)).err()
    }

    /// A region of codes that nothing has written: NaN.
    pub fn codes(&mut self, dtype: Dtype, shape: [u32; 4]) -> Region {
        let region = self.region(dtype, shape);
        let mut arena = Arena::new(&mut self.storage);
        let [mut view] = arena.views([Some(region)]).unwrap();
        view.bytes_mut().expect("a region of this type").fill(0xff);
        region
    }

    pub fn set_bytes(&mut self, region: Region, at: usize, bytes: &[u8]) {
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.storage);
        all[region.offset as usize + at..][..bytes.len()].copy_from_slice(bytes);
    }

    pub fn bytes(&self, region: Region) -> &[u8] {
        let bytes: &[u8] = bytemuck::cast_slice(&self.storage);
        &bytes[region.offset as usize..region.end() as usize]
    }

    pub fn run<O: Operation>(&mut self, operation: O) {
        self.run_in(operation, &Single);
    }

    /// As [`Bench::run`], with operands of the types that `profile` computes in.
    pub fn run_in<O: Operation>(&mut self, operation: O, profile: &dyn Profile) {
        let op = operation.into();
        Meter::new(profile, Rates::ONE).run(&op).unwrap();
        Reference { arena: Arena::new(&mut self.storage) }.run(&op).unwrap();
    }

    pub fn get(&mut self, region: Region) -> &[f32] {
        let bytes: &[u8] = bytemuck::cast_slice(&self.storage);
        bytemuck::cast_slice(&bytes[region.offset as usize..region.end() as usize])
    }

    /// Σ output ∘ weights: a scalar whose gradient with respect to the output is `weights`.
    pub fn project(&mut self, output: Region, weights: Region) -> f64 {
        let arena = Arena::new(&mut self.storage);
        let (out, weights) = (arena.f32(output).unwrap(), arena.f32(weights).unwrap());
        out.iter().zip(weights).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    }

    /// Compares `gradient` with central differences of Σ output ∘ weights for each element of `input`: they differ by
    /// at most 0.2 % of the element and 0.2 % of the largest element, or of 1 where that is smaller.
    pub fn check_gradient<O: Operation>(
        &mut self,
        forward: O,
        input: Region,
        gradient: Region,
        output: Region,
        weights: Region,
    ) {
        const STEP: f32 = 1.0 / 128.0;
        let largest = self.get(gradient).iter().fold(0.0, |a: f64, &g| a.max(f64::from(g).abs())).min(1.0);
        for i in 0..input.elements() as usize {
            let at = Region { offset: input.offset + 4 * i as u64, shape: [1, 1, 1, 1], ..input };
            let x = self.get(at)[0];
            self.set(at, &[x + STEP]);
            self.run(forward);
            let above = self.project(output, weights);
            self.set(at, &[x - STEP]);
            self.run(forward);
            let below = self.project(output, weights);
            self.set(at, &[x]);
            let slope = (above - below) / (2.0 * f64::from(STEP));
            let found = f64::from(self.get(gradient)[i]);
            assert!(
                (found - slope).abs() <= 2e-3 * (largest + slope.abs()),
                "{}: element {i}: {found} against {slope}",
                O::NAME
            );
        }
        self.run(forward);
    }
}
