//! Programs of ranks on two streams: every pair of operations that meets is ordered.

use capful_core::device::{Access, Op, Profile as _};
use capful_device::{Assignment, Overlap, Stream};

use crate::config::{Config, RawConfig};
use crate::device::AnyProfile;
use crate::device::cuda::{CudaProfile, Precision};
use crate::plan::{Machine, Plan, Sequence};

/// The programs of a step of rank 0 of two: a micro-batch, and the update.
fn step(preset: &str, more: &str) -> Vec<Op> {
    let text = format!("preset = '{preset}'\naccumulate = 2\n{more}");
    let raw: RawConfig = toml::from_str(&text).expect("TOML");
    let config = Config::resolve(RawConfig { ranks: Some(2), ..raw }).expect("a configuration");
    let (_, laid) = Plan::new(&config, &Machine::of(&config).expect("a machine")).expect("a plan");
    let laid = laid.recorded(&config.family(), &crate::plan::profile(&config).expect("a device")).expect("programs");
    let of = |sequence| laid.programs.get(sequence).expect("recorded").iter().copied();
    let micro_batch = of(Sequence::MicroBatch { stage: 0, first: true, warming: false });
    micro_batch.chain(of(Sequence::Update)).collect()
}

/// Every pair that meets is ordered: by its stream, or by a wait of the later one's stream, at it or before it, for the
/// earlier one or one behind it. Pairs are found by bytes, each by itself.
#[test]
fn whatever_meets_is_ordered() {
    for (preset, more) in [("pythia-tiny", ""), ("pythia-tiny", "zero = 2"), ("yxanul-tiny", "exact_ranks = true")] {
        let ops = step(preset, more);
        // The scratch is the other stream's.
        let gpu = AnyProfile::Cuda { gpu: 0, profile: CudaProfile::new(Precision::Bf16) };
        assert!(ops.iter().all(|op| Stream::of(op) == Stream::Compute || gpu.scratch(op) == 0), "{preset}");
        let mut overlap = Overlap::default();
        let mut numbers = [0; 2];
        let places: Vec<(usize, Assignment)> = ops
            .iter()
            .map(|op| {
                let place = overlap.place(op);
                numbers[place.stream as usize] += 1;
                (numbers[place.stream as usize] - 1, place)
            })
            .collect();
        let uses = |op: &Op| {
            let mut uses = Vec::new();
            op.operands(&mut |o| uses.push((o.region.offset..o.region.end(), o.access != Access::Read)));
            uses
        };
        let mut across = 0;
        for (late, op) in ops.iter().enumerate() {
            for early in 0..late {
                let ([(number, a), (_, b)], later) = ([places[early], places[late]], uses(op));
                let meets = uses(&ops[early]).iter().any(|(x, written)| {
                    later.iter().any(|(y, also)| (*written || *also) && x.start.max(y.start) < x.end.min(y.end))
                });
                if !meets || a.stream == b.stream {
                    continue;
                }
                across += 1;
                let waits = places[..=late].iter().filter(|(_, place)| place.stream == b.stream);
                assert!(waits.filter_map(|(_, place)| place.behind).any(|i| i >= number), "{preset}: {op:?}");
            }
        }
        assert!(across > 10, "{preset}: {across}");
    }
}

/// What a section sends waits for its gradients, and for those of no section that is formed later.
#[test]
fn a_layers_gradients_are_sent_before_the_next_one_forms_its_own() {
    let ops = step("pythia-tiny", "");
    let mut overlap = Overlap::default();
    let places: Vec<Assignment> = ops.iter().map(|op| overlap.place(op)).collect();
    let computed: Vec<&Op> = ops.iter().filter(|op| Stream::of(op) == Stream::Compute).collect();
    let sections = ops.iter().zip(&places).filter_map(|(op, place)| match op {
        Op::AllToAll(exchange) => Some((exchange.from, place.behind?)),
        _ => None,
    });
    let mut found = 0;
    for (gradients, behind) in sections {
        let writes = |op: &&Op| {
            let mut writes = false;
            op.operands(&mut |o| writes |= o.access != Access::Read && o.region.overlaps(&gradients));
            writes
        };
        let last = computed.iter().rposition(writes).expect("its gradients are formed");
        assert_eq!(behind, last);
        found += 1;
    }
    // The head with the last norm, the layers, the embedding.
    let layers = computed.iter().filter(|op| matches!(op, Op::AttentionGrad(_))).count();
    assert_eq!(found, layers + 2);
}
