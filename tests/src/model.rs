//! A model on a device of the host, with the oracle's weights in it and its gradients read back by name.

use capful_core::device::{Rates, Single};
use capful_core::float16;
use capful_core::integer::{Integer, quantise_row};
use capful_core::memory::{Entry, Region, Role};
use capful_core::model::transformer::{self, Adapters, BaseType, Biases, Dialect};
use capful_core::model::{MicroBatch, Products, Recompute, Transformer};
use capful_core::ops::{self, Chance, Dropout, NormKind, PatternKind, RotaryScaling};
use capful_core::optimizer::Optimizer;
use capful_core::train::Settings;
use capful_host::config::AnyFamily;
use capful_host::device::cpu::CpuProfile;
use capful_host::device::{AnyProfile, Storage as _};
use capful_host::format::quantise;
use capful_host::format::safetensors::VisitRow;
use capful_host::plan::{Constants, Laid, Sections};
use capful_host::run::{Rows, Session};

use crate::oracle::attention::Pattern;
use crate::oracle::tensor::{Tensor, Tensors};
use crate::oracle::train::Recipe;
use crate::oracle::transformer::{Config, Feed, Names, Norm, Residual, Scaling};
use crate::oracle::{Batch, IGNORE, Oracle};

/// Every level of recomputation.
pub const LEVELS: [Recompute; 3] = [Recompute::NONE, Recompute::CHEAP, Recompute::FULL];

/// The sets whose index among all 128 is `part` modulo `parts`.
pub fn sets(part: usize, parts: usize) -> impl Iterator<Item = Recompute> {
    Recompute::FULL.subsets().skip(part % parts).step_by(parts)
}

/// Patterns in blocks of 16, and the dense one.
pub const PATTERNS: [Pattern; 5] = [
    Pattern::Dense,
    Pattern::Local { block: 16, window: 0 },
    Pattern::Local { block: 16, window: 1 },
    Pattern::Global { block: 16, stride: 2 },
    Pattern::Mixed { block: 16 },
];

/// Every device, by name.
pub fn devices() -> [(&'static str, AnyProfile); 3] {
    let cpu = |threads| AnyProfile::Cpu(CpuProfile { threads });
    [("reference", AnyProfile::Reference(Single)), ("cpu, 1 thread", cpu(1)), ("cpu, 2 threads", cpu(2))]
}

/// Ids and targets of `rows` tokens under `vocab` ids; some targets are ignored.
pub fn tokens(rows: usize, vocab: u32) -> (Vec<u32>, Vec<u32>) {
    let inputs = (0..rows as u32).map(|t| (t * t * 7 + t * 11 + 3) % vocab).collect();
    let targets = (0..rows as u32).map(|t| if t % 13 == 5 { IGNORE } else { (t * t * 5 + 2 * t) % vocab }).collect();
    (inputs, targets)
}

/// ‖got − expected‖ / ‖expected‖ of every tensor is at most `tolerance`.
#[track_caller]
pub fn assert_gradients(what: &str, got: &Tensors, expected: &Tensors, tolerance: f64) {
    assert_eq!(got.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    for (name, expected) in expected {
        let got = &got[name];
        assert_eq!(got.data.len(), expected.data.len(), "{what}: {name}");
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let difference = norm(&mut got.data.iter().zip(&expected.data).map(|(a, b)| a - b));
        let size = norm(&mut expected.data.iter().copied());
        assert!(size > 0.0 && difference <= tolerance * size, "{what}: {name}: {:e}", difference / size);
    }
}

/// Every matrix is off by at most `tolerance` times the distance from its value `before`. Vectors are not checked: key
/// biases have a gradient of rounding errors only, from which AdamW makes a full step.
#[track_caller]
pub fn assert_moved(what: &str, before: &Tensors, got: &Tensors, expected: &Tensors, tolerance: f64) {
    for (name, got) in got.iter().filter(|(name, _)| expected[*name].is_matrix()) {
        let (before, expected) = (&before[name].data, &expected[name].data);
        let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
        let (off, moved) = (distance(&got.data, expected), distance(expected, before));
        assert!(off <= tolerance * moved, "{what}, {name}: off by {off:e} of {moved:e}");
    }
}

/// An oracle with a corresponding family in the core.
pub trait Peer: Oracle {
    /// The core's model of the oracle's sizes, over `context` positions.
    fn family(&self, context: u32) -> AnyFamily;

    /// The dropout of its training steps.
    fn dropout(&self) -> Chance {
        Chance::NONE
    }

    /// The number of tokens of its document before each position of a row, where its training steps consider documents.
    fn offset(&self, _position: usize) -> Option<u32> {
        None
    }
}

impl Peer for Config {
    fn family(&self, context: u32) -> AnyFamily {
        let [layers, d_model, heads, kv_heads, d_ff, vocab_size, rotary_dims] =
            [self.layers, self.d, self.heads, self.kv_heads, self.d_ff, self.vocab, self.rotary].map(|n| n as u32);
        AnyFamily::Transformer(Transformer {
            layers,
            d_model,
            heads,
            kv_heads,
            head_size: self.head_size as u32,
            d_ff,
            vocab_size,
            context,
            rank: self.rank.map(|rank| rank as u32),
            tied: self.tied,
            norm: match self.norm {
                Norm::Layer => NormKind::Layer,
                Norm::Rms => NormKind::Rms,
            },
            residual: match self.residual {
                Residual::Parallel => transformer::Residual::Parallel,
                Residual::Sequential => transformer::Residual::Sequential,
            },
            feed: match self.feed {
                Feed::Gelu => transformer::Feed::Gelu,
                Feed::SwiGlu => transformer::Feed::SwiGlu,
            },
            bias: Biases { qkv: self.bias.qkv, out: self.bias.output, feed: self.bias.feed },
            norm_gains: self.norm_gains,
            qk_norm: self.qk_norm,
            value_tables: self.value_tables as u32,
            stream_scalars: self.stream_scalars,
            softcap: self.softcap.unwrap_or(0.0) as f32,
            rotary_dims,
            rotary_base: self.rotary_base as f32,
            rotary_scaling: match self.scaling {
                Scaling::None => RotaryScaling::None,
                Scaling::Linear(factor) => RotaryScaling::Linear { factor: factor as f32 },
                Scaling::Llama3 { factor, low, high, original } => RotaryScaling::Llama3 {
                    factor: factor as f32,
                    low: low as f32,
                    high: high as f32,
                    original: original as u32,
                },
            },
            norm_eps: self.eps as f32,
            dialect: match self.names {
                Names::GptNeox => Dialect::GptNeox,
                Names::Llama => Dialect::Llama,
            },
            first: transformer::FirstValues::Published,
            adapters: self.adapters.map(|(rank, alpha)| Adapters {
                rank: rank as u32,
                alpha: alpha as f32,
                qkv: true,
                out: true,
                up: true,
                down: true,
                base: if self.eight_bits { BaseType::Int8 } else { BaseType::Same },
            }),
        })
    }

    fn dropout(&self) -> Chance {
        self.dropout.map_or(Chance::NONE, |p| Chance::nearest(p).expect("a probability"))
    }

    fn offset(&self, position: usize) -> Option<u32> {
        self.documents.map(|_| Config::offset(self, position) as u32)
    }
}

/// The core's pattern that is equivalent to the oracle's.
pub fn pattern(of: Pattern) -> ops::Pattern {
    let (kind, block, window, stride) = match of {
        Pattern::Dense => return ops::Pattern::DENSE,
        Pattern::Local { block, window } => (PatternKind::Local, block, window, 2),
        Pattern::Global { block, stride } => (PatternKind::Global, block, 1, stride),
        Pattern::Mixed { block } => (PatternKind::Mixed, block, 1, 4),
    };
    ops::Pattern { kind, block: block as u32, window: window as u32, stride: stride as u32 }
}

/// These weights rounded to 8 bits with a scale for each row, except those of adapters and tensors that are no
/// matrices.
pub fn in_eight_bits(weights: &Tensors) -> Tensors {
    let rounded = |row: &[f64]| -> Vec<f64> {
        let x: Vec<f32> = row.iter().map(|x| *x as f32).collect();
        let (mut codes, mut scale) = (vec![0; x.len()], [0; 1]);
        quantise_row(Integer::Int8, &x, Integer::LONGEST, &mut codes, &mut scale);
        codes.iter().map(|code| f64::from(code.cast_signed()) * f64::from(float16::decode(scale[0]))).collect()
    };
    let all = weights.iter().map(|(name, tensor)| match tensor.shape[..] {
        [_, columns] if !name.contains("lora") => {
            let data = tensor.data.chunks(columns).flat_map(rounded).collect();
            (name.clone(), Tensor::new(&tensor.shape, data))
        }
        _ => (name.clone(), tensor.clone()),
    });
    all.collect()
}

/// AdamW by Pythia's recipe.
pub fn optimizer() -> Optimizer {
    let Recipe { beta1, beta2, eps, weight_decay, .. } = Recipe::pythia();
    let [beta1, beta2, eps, decay] = [beta1, beta2, eps, weight_decay].map(|x| x as f32);
    Optimizer::adamw([beta1, beta2], eps, decay)
}

/// A session that is laid for training, evaluation and decoding.
pub struct Model {
    /// The session.
    pub session: Session,
    /// The shape of its micro-batches.
    pub stage: MicroBatch,
    /// The offsets of a row's positions, or zeros.
    offsets: Vec<u32>,
    optimizer: Optimizer,
}

impl Model {
    /// A model with `weights`, for micro-batches of `sequences` of `length` tokens; its logits exist in chunks of 5
    /// rows, a number that divides no size here.
    pub fn new(
        profile: &AnyProfile,
        config: &impl Peer,
        weights: &Tensors,
        sequences: usize,
        length: usize,
        recompute: Recompute,
    ) -> Model {
        Model::moved_by(optimizer(), profile, config, weights, [sequences, length], recompute)
    }

    /// As [`Model::new`], with another optimizer.
    pub fn moved_by(
        optimizer: Optimizer,
        profile: &AnyProfile,
        config: &impl Peer,
        weights: &Tensors,
        [sequences, length]: [usize; 2],
        recompute: Recompute,
    ) -> Model {
        let (batch, seq_len) = (sequences as u32, length as u32);
        let stage = MicroBatch {
            batch,
            seq_len,
            chunk: 5,
            recompute,
            pattern: pattern(config.attention()),
            products: Products::Wide,
            dropout: config.dropout(),
            documents: config.offset(0).is_some(),
        };
        let evaluation = MicroBatch { recompute: Recompute::NONE, ..stage };
        let sections = Sections {
            training: vec![stage],
            accumulate: vec![2],
            ranks: capful_core::train::Ranks::ALONE,
            evaluation: Some(evaluation),
            decoding: Some(stage.seq_len),
            constants: Constants { optimizer, pattern: stage.pattern },
            weights: None,
        };
        let family = config.family(seq_len);
        let laid = Laid::new(&family, profile, Rates::ONE, &sections).and_then(|laid| laid.recorded(&family, profile));
        let laid = laid.expect("the step is sound");
        let session = Session::start(laid, profile, None, config.vocab() as u32).expect("a session");
        let offsets = (0..length).map(|i| config.offset(i).unwrap_or(0)).collect();
        let mut model = Model { session, stage, offsets, optimizer };
        let in_integers = |region: &Region| Integer::of(region.dtype).is_some();
        let mut rows = |name: &str, of: &Region, visit: VisitRow<'_>| {
            let rows = weights[name].data.chunks(of.columns() as usize).map(|row| row.iter().map(|x| *x as f32));
            (0..).zip(rows).try_for_each(|(r, row)| visit(r, &row.collect::<Vec<f32>>()))
        };
        let lasting = model.session.laid.lasting.clone();
        let (integers, scales): (Vec<Entry>, Vec<Entry>) = lasting
            .into_iter()
            .filter(|e| e.slot.role == Role::Scale || e.slot.role == Role::Weight && in_integers(&e.place.first))
            .partition(|e| e.slot.role == Role::Weight);
        quantise::read_into(&mut rows, &integers, &scales, &mut model.session.device).expect("weights are written");
        for (name, region) in model.regions("").into_iter().filter(|(_, region)| !in_integers(region)) {
            let data: Vec<u8> = weights[&name].data.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
            model.session.device.write(region, &data).expect("weights are written");
        }
        model
    }

    /// Name and region of every tensor of the weights (`prefix` empty) or of the tensors that belong to them.
    fn regions(&self, prefix: &str) -> Vec<(String, Region)> {
        let entries = self.session.laid.lasting.iter();
        let of = entries
            .filter(|e| e.slot.prefix == prefix && [Role::Weight, Role::Gradient, Role::Moment].contains(&e.slot.role));
        let name = |e: &Entry, name: String| name[e.slot.prefix.len()..].to_owned();
        of.flat_map(|e| e.tensors().map(move |(full, region)| (name(e, full.to_string()), region))).collect()
    }

    /// The bits of every tensor under `prefix`: empty for the weights, `gradient.` for their gradients.
    pub fn bits(&mut self, prefix: &str) -> Vec<(String, Vec<u32>)> {
        let regions = self.regions(prefix).into_iter();
        regions
            .map(|(name, region)| {
                let mut bytes = vec![0; region.bytes() as usize];
                self.session.device.read(region, &mut bytes).expect("regions are read");
                let (words, _) = bytes.as_chunks::<4>();
                (name, words.iter().map(|&w| u32::from_le_bytes(w)).collect())
            })
            .collect()
    }

    /// The tensors under `prefix`.
    pub fn tensors(&mut self, prefix: &str) -> Tensors {
        let bits = self.bits(prefix).into_iter();
        bits.map(|(name, bits)| {
            let data: Vec<f64> = bits.iter().map(|&b| f64::from(f32::from_bits(b))).collect();
            (name, Tensor::new(&[data.len()], data))
        })
        .collect()
    }

    /// Writes the settings of update number `update` (from 1) over `targets` targets.
    pub fn set(&mut self, update: i32, lr: f64, targets: usize) {
        let clip = Recipe::pythia().clip as f32;
        let settings = Settings::of(update as u64 - 1, lr, &self.optimizer, clip, targets as u64);
        self.session.begin(settings).expect("settings are written");
    }

    /// The mean loss of one batch; the gradients stay in their regions.
    pub fn loss(&mut self, batch: Batch<'_>) -> f64 {
        self.losses(&[batch])
    }

    /// The mean loss over `batches`, accumulated as the micro-batches of one step.
    pub fn losses(&mut self, batches: &[Batch<'_>]) -> f64 {
        let targets = batches.iter().flat_map(|b| b.targets).filter(|&&t| t != IGNORE).count();
        self.set(1, 0.0, targets);
        self.accumulate(batches)
    }

    fn accumulate(&mut self, batches: &[Batch<'_>]) -> f64 {
        for (i, batch) in batches.iter().enumerate() {
            let offsets = self.offsets.repeat(batch.inputs.len() / batch.length);
            let rows = Rows { ids: batch.inputs, targets: batch.targets, offsets: &offsets };
            self.session.mask(0, Dropout::key(0, i as u64)).expect("a key");
            self.session.micro_batch(0, rows, i == 0).expect("a micro-batch");
        }
        let ticket = self.session.finish().expect("results are asked for");
        f64::from(self.session.results(ticket).expect("results").loss)
    }

    /// One whole step by Pythia's recipe; the loss before its update.
    pub fn step(&mut self, update: i32, lr: f64, batch: Batch<'_>) -> f64 {
        let targets = batch.targets.iter().filter(|&&t| t != IGNORE).count();
        self.set(update, lr, targets);
        let loss = self.accumulate(&[batch]);
        self.session.update().expect("an update");
        loss
    }

    /// The logits of `inputs`, as many ids as the stage has tokens, row after row.
    pub fn logits(&mut self, inputs: &[u32]) -> Vec<f32> {
        let targets = vec![IGNORE; inputs.len()];
        self.session.evaluate(Rows { ids: inputs, targets: &targets, offsets: &[] }).expect("an evaluation");
        let mut all = Vec::new();
        self.session.logits(inputs.len() as u32, &mut |row| all.extend_from_slice(row)).expect("logits");
        all
    }

    /// The logits of one sequence, fed token by token.
    pub fn decoded(&mut self, inputs: &[u32]) -> Vec<f32> {
        let mut all = Vec::new();
        for (position, &id) in inputs.iter().enumerate() {
            let row = self.session.decode(id, position as u32).expect("decoding");
            all.extend_from_slice(row);
        }
        all
    }
}
