//! Runs the operations of one token in a single launch, which `token.cu` describes. A pass over a program's operations
//! finds such tokens.

use capful_core::device::{Access, Device as _, Op, OperationError};
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{CachedAttention, Embed, Epilogue, Linear, MostLikely, Norm, NormKind, SwiGlu};

use crate::OnCuda;
use crate::arguments::{
    AnyStepArgs, MostLikelyArgs, RowArgs, StepArgs, TokenArgs, TokenChoiceArgs, TokenEmbedArgs, TokenNormArgs,
    TokenSwiGluArgs,
};
use crate::attention::cached_attention::LARGEST_SIZE;
use crate::device::{Cuda, width};
use crate::error::CudaError;
use crate::room::attention::TokenRoom;

/// The values of StepKind in token.cu.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StepKind {
    Embed,
    Norm,
    Product,
    Turned,
    Attention,
    SwiGlu,
    MostLikely,
}

// The same constants as in token.cu.
const MOST_STEPS: usize = 192;
const NORMED: u32 = 4096;
const WIDEST: u32 = 7168;
const THREADS: u32 = 512;
const NOWHERE: u32 = 3;
/// The slot for SwiGLU's output; attention uses it for its sums.
const WIDE_SLOT: usize = 2;

/// A region that an operation reads or writes.
struct Use {
    region: Region,
    written: bool,
    /// For a matrix multiplication: its number of rows, each read and written by the thread that finishes it, and
    /// whether rows begin at multiples of 16 bytes. Multiplications with equal values assign the same rows to the same
    /// threads.
    rows: Option<(u32, bool)>,
    /// Whether every block writes the whole region.
    by_all: bool,
}

impl Use {
    /// The regions that `op` uses, without an input that is in a slot.
    fn of(op: &Op, slot: Option<usize>) -> Vec<Use> {
        let product = match op {
            Op::Linear(o) if !o.transposed => {
                let whole =
                    |r: &Region| r.offset.is_multiple_of(16) && r.dtype.row_bytes(r.columns()).is_multiple_of(16);
                Some((o.out.columns(), whole(&o.x) && whole(&o.weight)))
            }
            _ => None,
        };
        let mut uses = Vec::new();
        op.operands(&mut |o| {
            let rows = product.filter(|_| matches!(o.name, "out" | "residual" | "activated"));
            let held = slot.is_some() && matches!(op, Op::Linear(_)) && o.name == "x";
            let of = |written| Use { region: o.region, written, rows, by_all: written && matches!(op, Op::Embed(_)) };
            if o.access != Access::Write && !held {
                uses.push(of(false));
            }
            if o.access != Access::Read {
                uses.push(of(true));
            }
        });
        uses
    }

    /// Whether all blocks have to synchronise between this use and a later one.
    fn waits(&self, later: &Use) -> bool {
        let own = self.region == later.region && self.rows.is_some() && self.rows == later.rows
            || self.by_all && !later.written;
        (self.written || later.written) && self.region.overlaps(&later.region) && !own
    }
}

/// The output to which two matrix multiplications add, in either order: parallel branches of a layer.
fn sum_of_both(a: &Op, b: &Op) -> Option<Region> {
    match (a, b) {
        (Op::Linear(a), Op::Linear(b)) if a.epilogue.adds() && b.epilogue.adds() && a.out == b.out => Some(a.out),
        _ => None,
    }
}

/// The operations in an order with fewer synchronisations: each operation as early as its operands permit, otherwise in
/// the original order.
pub(crate) fn ordered(ops: &[Op]) -> Vec<&Op> {
    // Each operation with its level, the number of synchronisations before it.
    let mut done: Vec<(usize, Vec<Use>, &Op)> = Vec::with_capacity(ops.len());
    for op in ops {
        let uses = Use::of(op, None);
        let level = done.iter().map(|(level, before, earlier)| {
            let sum = sum_of_both(earlier, op);
            let meets = |(a, b): (&Use, &Use)| {
                let added = sum.is_some() && sum == Some(a.region) && a.region == b.region;
                (a.written || b.written) && a.region.overlaps(&b.region) && !added
            };
            let pairs = || before.iter().flat_map(|a| uses.iter().map(move |b| (a, b)));
            // The output of a norm or SwiGLU is in a slot of every block.
            let local = matches!(earlier, Op::Norm(_) | Op::SwiGlu(_)) && matches!(op, Op::Linear(_));
            let waits = |(a, b): (&Use, &Use)| a.waits(b) && !(local && a.written && !b.written);
            match (pairs().any(meets), pairs().any(waits)) {
                (false, _) => 0,
                (true, waits) => level + usize::from(waits),
            }
        });
        done.push((level.max().unwrap_or(0), uses, op));
    }
    done.sort_by_key(|(level, ..)| *level);
    done.into_iter().map(|(.., op)| op).collect()
}

/// The steps so far, and their state.
#[derive(Default)]
struct Steps {
    made: Vec<StepArgs>,
    /// Regions used since the last synchronisation of all blocks.
    used: Vec<Use>,
    /// The regions whose values are in the slots.
    slots: [Option<Region>; 3],
}

impl Steps {
    /// Adds a step, with a synchronisation before it where it reads regions that other blocks wrote, or writes regions
    /// that other blocks used.
    fn add(&mut self, op: &Op, kind: StepKind, slot: Option<usize>, exact: bool, of: AnyStepArgs) {
        let mut uses = Use::of(op, slot);
        let wait = self.used.iter().any(|before| uses.iter().any(|now| before.waits(now)));
        if wait {
            self.used.clear();
        }
        for held in &mut self.slots {
            if held.is_some_and(|held| uses.iter().any(|u| u.written && u.region.overlaps(&held))) {
                *held = None;
            }
        }
        self.used.append(&mut uses);
        let slot = slot.map_or(NOWHERE, |slot| slot as u32);
        let (kind, wait, exact) = (kind as u32, wait.into(), exact.into());
        self.made.push(StepArgs { of, kind, wait, slot, exact, beside: 0, softcap: 0.0 });
    }

    /// Tells multiplications that run at the same time as attention how many heads keep blocks busy. A group of steps
    /// that chooses a token is excluded: every block must have logits there.
    fn keep_apart(&mut self, heads: u32) {
        let attends = |s: &StepArgs| s.kind == StepKind::Attention as u32;
        let chooses = |s: &StepArgs| s.kind == StepKind::MostLikely as u32;
        let mut rest = &mut self.made[..];
        while !rest.is_empty() {
            let end = rest.iter().skip(1).position(|s| s.wait != 0).map_or(rest.len(), |i| i + 1);
            let (steps, behind) = rest.split_at_mut(end);
            if steps.iter().any(attends) && !steps.iter().any(chooses) {
                steps.iter_mut().filter(|s| s.kind == StepKind::Product as u32).for_each(|s| s.beside = heads);
            }
            rest = behind;
        }
    }

    /// Adds the choice of the most likely token. If each logit is read by the thread that wrote it, no synchronisation
    /// is needed.
    fn choose(&mut self, o: &MostLikely) {
        let written = self.used.iter().find(|u| u.written && u.region.overlaps(&o.logits));
        let rows = written.filter(|u| u.region == o.logits).and_then(|u| u.rows);
        let (wait, wide) = (written.is_some() && rows.is_none(), rows.is_some_and(|(_, whole)| whole));
        let of = AnyStepArgs { choice: TokenChoiceArgs { wide: wide.into() } };
        let kind = StepKind::MostLikely as u32;
        self.made.push(StepArgs { of, kind, wait: wait.into(), slot: NOWHERE, exact: 0, beside: 0, softcap: 0.0 });
    }

    /// The slot that contains the value of a region.
    fn holding(&self, x: Region) -> Option<usize> {
        self.slots.iter().position(|held| *held == Some(x))
    }
}

/// The dtype of an operation that can be a step; `None` for other operations.
fn kept(op: &Op) -> Option<Dtype> {
    let same = |dtype: Dtype, others: &[Region]| others.iter().all(|r| r.dtype == dtype).then_some(dtype);
    let dtype = match op {
        Op::Embed(Embed { ids, table, scales: None, out }) if ids.elements() == 1 => same(table.dtype, &[*out]),
        Op::Norm(o) if o.x.rows() == 1 && o.x.columns() <= NORMED && o.copy.is_none() => {
            let affines = || [Some(o.first), o.second].into_iter().flatten();
            let whole = affines().all(|a| a.bias.is_some() == o.kind.centres());
            let regions: Vec<Region> = affines().flat_map(|a| a.bias.into_iter().chain([a.gain, a.out])).collect();
            if whole { same(o.x.dtype, &regions) } else { None }
        }
        Op::Linear(o) if o.x.rows() == 1 && o.quantised.is_none() && o.integer.is_none() => {
            let inputs: Vec<Region> = o.bias.into_iter().chain([o.weight]).collect();
            let outputs = [o.epilogue.residual(), o.epilogue.activated()];
            let outputs: Vec<Region> = outputs.into_iter().flatten().collect();
            let out = o.out.dtype == o.x.dtype || o.out.dtype == Dtype::F32 && !o.transposed;
            if out && same(o.out.dtype, &outputs).is_some() { same(o.x.dtype, &inputs) } else { None }
        }
        Op::CachedAttention(o) if o.rotary.heads.size <= LARGEST_SIZE => same(o.qkv.dtype, &[o.cache, o.out]),
        Op::SwiGlu(o) if o.out.rows() == 1 && o.out.columns() <= WIDEST && o.copy.is_none() && o.kept.is_none() => {
            same(o.gate_up.dtype, &[o.out])
        }
        _ => None,
    };
    dtype.filter(|dtype| matches!(dtype, Dtype::F32 | Dtype::Bf16))
}

/// The cap that is applied to a multiplication's results, if the operation after it is such a cap.
fn cap(product: &Op, behind: &Op) -> Option<f32> {
    match (product, behind) {
        (Op::Linear(o), Op::Softcap(cap)) if !o.transposed && o.epilogue == Epilogue::Store && o.out == cap.x => {
            Some(cap.cap)
        }
        _ => None,
    }
}

/// The region of the token's position; all attention operations must use the same one.
fn cursor(ops: &[Op]) -> Option<Region> {
    let cursors = ops.iter().filter_map(|op| if let Op::CachedAttention(o) = op { Some(o.cursor) } else { None });
    let mut cursors = cursors.peekable();
    let first = *cursors.peek()?;
    cursors.all(|cursor| cursor == first).then_some(first)
}

/// The work of one launch.
pub(crate) struct Launch<'a> {
    /// The operations of a token.
    ops: &'a [Op],
    /// The operation after them that chooses the next token.
    choice: Option<&'a MostLikely>,
    /// How often all of this is repeated, each time with the token chosen before.
    tokens: usize,
}

impl<'a> Launch<'a> {
    /// The launch of the first operations of `ops`; `None` if the first operation is launched by itself.
    pub(crate) fn of(ops: &'a [Op]) -> Option<Launch<'a>> {
        let dtype = ops.first().and_then(kept)?;
        let step = |&i: &usize| kept(&ops[i]) == Some(dtype) || i > 0 && cap(&ops[i - 1], &ops[i]).is_some();
        let count = (0..ops.len().min(MOST_STEPS - 1)).take_while(step).count();
        let (token, rest) = ops.split_at(count);
        // Operations without attention are no token, and have no room for counters.
        let cursor = cursor(token)?;
        let alone = Launch { ops: token, choice: None, tokens: 1 };
        let Some(Op::MostLikely(choice)) = rest.first() else { return Some(alone) };
        // A choice with a different cursor is launched by itself.
        if choice.cursor != cursor {
            return Some(alone);
        }
        let own = |op: &Op| !matches!(op, Op::Embed(embed) if embed.ids != choice.id);
        let again = || ops.chunks_exact(count + 1).take_while(|other| other[..] == ops[..=count]).count();
        // Each chosen token needs a slot of its own.
        let most = TokenRoom::TOKENS.min(choice.chosen.columns() as usize).max(1);
        let tokens = if token.iter().all(own) { again().clamp(1, most) } else { 1 };
        Some(Launch { ops: token, choice: Some(choice), tokens })
    }

    /// The number of operations in the launch.
    fn count(&self) -> usize {
        (self.ops.len() + usize::from(self.choice.is_some())) * self.tokens
    }
}

impl OnCuda for CachedAttention {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let op = Op::CachedAttention(self);
        if kept(&op).is_none() {
            let why = "its queries, cache and result are of different types, or a head is larger than 256";
            return Err(cuda.fail(CudaError::Unsupported { operation: "cached_attention", why }));
        }
        cuda.token(&Launch { ops: &[op], choice: None, tokens: 1 }).map(drop)
    }
}

impl Cuda {
    /// Queues a launch; returns the number of its operations.
    pub(crate) fn token(&mut self, launch: &Launch<'_>) -> Result<usize, OperationError> {
        let (mut steps, mut counters, mut heads, mut dtype) = (Steps::default(), 1, 0, Dtype::F32);
        let Some(cursor) = cursor(launch.ops) else { return Ok(launch.count()) };
        for op in ordered(launch.ops) {
            dtype = kept(op).unwrap_or(dtype);
            match op {
                Op::Embed(o) => {
                    let embed = self.token_embed(o)?;
                    steps.add(op, StepKind::Embed, None, false, AnyStepArgs { embed });
                }
                Op::Norm(o) => {
                    let norm = self.token_norm(o)?;
                    steps.add(op, StepKind::Norm, Some(0), false, AnyStepArgs { norm });
                    let [first, second] = [Some(o.first), o.second].map(|a| a.map(|a| a.out));
                    steps.slots = [first, second.or(steps.slots[1]), steps.slots[WIDE_SLOT]];
                }
                Op::SwiGlu(o) => {
                    let swiglu = self.token_swiglu(o)?;
                    steps.add(op, StepKind::SwiGlu, Some(WIDE_SLOT), false, AnyStepArgs { swiglu });
                    steps.slots[WIDE_SLOT] = Some(o.out);
                }
                Op::CachedAttention(o) => {
                    let attention = self.cached_attention(o)?;
                    steps.add(op, StepKind::Attention, None, false, AnyStepArgs { attention });
                    steps.slots[WIDE_SLOT] = None;
                    counters = counters.max(TokenRoom::of(o).counters);
                    heads = heads.max(o.rotary.heads.queries);
                }
                Op::Linear(o) => {
                    let product = self.token_product(o)?;
                    let kind = if o.transposed { StepKind::Turned } else { StepKind::Product };
                    let exact = o.out.dtype == Dtype::F32;
                    steps.add(op, kind, steps.holding(o.x), exact, AnyStepArgs { product });
                    if let Some((step, cap)) = steps.made.last_mut().zip(launch.ops.iter().find_map(|o| cap(op, o))) {
                        step.softcap = cap;
                    }
                }
                // The multiplication before it applies the cap.
                Op::Softcap(_) => {}
                other => self.run(other)?,
            }
        }
        let Some(&first) = steps.made.first() else { return Ok(launch.count()) };
        let arrivals = self.scratch_at(0, 4 * counters)?;
        self.fill(arrivals, 0, counters)?;
        let (mut best, mut choice) = (0, MostLikelyArgs::default());
        if let Some(o) = launch.choice {
            steps.choose(o);
            best = self.scratch_at(TokenRoom::BEST, 8 * TokenRoom::TOKENS as u64)?;
            choice = self.most_likely(o)?;
        }
        steps.keep_apart(heads);
        let (cursor, steps) = (self.address(cursor)?, steps.made);
        let (count, tokens) = (steps.len() as u32, launch.tokens as u32);
        let mut arguments =
            TokenArgs { step: [first; MOST_STEPS], cursor, arrivals, best, choice, steps: count, tokens };
        arguments.step[..steps.len()].copy_from_slice(&steps);
        let shared = 4 * (2 * NORMED + WIDEST);
        self.launch_together("token", &format!("token_{}", dtype.name()), THREADS, shared, &arguments)?;
        Ok(launch.count())
    }

    fn token_embed(&mut self, o: &Embed) -> Result<TokenEmbedArgs, OperationError> {
        Ok(TokenEmbedArgs {
            id: self.address(o.ids)?,
            table: self.address(o.table)?,
            out: self.address(o.out)?,
            columns: o.table.columns(),
            vocabulary: o.table.rows(),
        })
    }

    fn token_norm(&mut self, o: &Norm) -> Result<TokenNormArgs, OperationError> {
        let mut arguments = TokenNormArgs {
            x: self.address(o.x)?,
            stats: self.address(o.stats)?,
            gain: [0; 2],
            bias: [0; 2],
            out: [0; 2],
            columns: o.x.columns(),
            outputs: 1 + u32::from(o.second.is_some()),
            rms: match o.kind {
                NormKind::Layer => 0,
                NormKind::Rms => 1,
            },
            eps: o.eps,
        };
        for (i, affine) in [Some(o.first), o.second].into_iter().flatten().enumerate() {
            arguments.gain[i] = self.address(affine.gain)?;
            arguments.bias[i] = self.address_or_null(affine.bias)?;
            arguments.out[i] = self.address(affine.out)?;
        }
        Ok(arguments)
    }

    fn token_swiglu(&mut self, o: &SwiGlu) -> Result<TokenSwiGluArgs, OperationError> {
        Ok(TokenSwiGluArgs { gate_up: self.address(o.gate_up)?, out: self.address(o.out)?, d: o.out.columns() })
    }

    fn token_product(&mut self, o: &Linear) -> Result<RowArgs, OperationError> {
        let (x, weight, k) = (self.address(o.x)?, self.address(o.weight)?, o.x.columns());
        Ok(RowArgs {
            x,
            weight,
            out: self.address(o.out)?,
            bias: self.address_or_null(o.bias)?,
            residual: self.address_or_null(o.epilogue.residual())?,
            before_gelu: 0,
            activated: self.address_or_null(o.epilogue.activated())?,
            n: o.out.columns(),
            k,
            accumulate: o.epilogue.adds().into(),
            wide: (width(o.weight.dtype, k.into(), &[x, weight]) > 1).into(),
        })
    }
}
