//! The operations of a Yxanul 197M in bf16 on a GPU, each by itself beside its roofline: `cuda_operations [ROWS]`,
//! 65,536 if ROWS is not given. Runs without cargo.

use std::error::Error;

use capful_core::device::{Device as _, Meter, Operation, Rates};
use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::{
    Affine, AffineGrad, Attention, AttentionGrad, Embed, EmbedGrad, HeadGrad, HeadLoss, Heads, Linear, LinearGrad,
    Norm, NormGrad, NormKind, Pattern, QkNorm, QkNormGrad, Quantise, Quantised, Rotary, Rotate, Scaling, SwiGlu,
    SwiGluGrad,
};
use capful_core::train::{Results, Settings};
use capful_host::device::cuda::{Cuda, CudaProfile, Precision, Products, Room, describe};

const D: u32 = 768;
const FF: u32 = 2048;
const HEADS: Heads = Heads::grouped(12, 2, 64);
const RANK: u32 = 128;
const IDS: u32 = 200_005;
const VOCABULARY: u32 = 200_064;
const CHUNK: u32 = 4096;
const PROFILE: CudaProfile = CudaProfile::new(Precision::Bf16);
/// What an H200 reaches.
const RATES: Rates = Rates { flops_per_s: 700e12, flops_8bit_per_s: 1100e12, bytes_per_s: 4.2e12 };

/// Regions one after the other.
#[derive(Default)]
struct Layout {
    end: u64,
}

impl Layout {
    fn lay(&mut self, dtype: Dtype, shape: [u32; 4]) -> Region {
        let region = Region { space: Space::Arena, dtype, offset: self.end.next_multiple_of(256), shape };
        self.end = region.end();
        region
    }

    fn bf16(&mut self, rows: u32, columns: u32) -> Region {
        self.lay(Dtype::Bf16, [1, 1, rows, columns])
    }

    fn f32(&mut self, rows: u32, columns: u32) -> Region {
        self.lay(Dtype::F32, [1, 1, rows, columns])
    }
}

/// Numbers between -1 and 1, times `scale`.
fn fill(cuda: &mut Cuda, region: Region, scale: f32) -> Result<(), Box<dyn Error>> {
    let count = region.elements();
    let value = |i: u64| ((i * 7919 % 251) as f32 / 125.0 - 1.0) * scale;
    let bytes: Vec<u8> = match region.dtype {
        Dtype::Bf16 => (0..count).flat_map(|i| half::bf16::from_f32(value(i)).to_le_bytes()).collect(),
        _ => (0..count).flat_map(|i| value(i).to_le_bytes()).collect(),
    };
    Ok(cuda.write(region, &bytes)?)
}

/// One line; `traffic` in bytes where it is more than every operand once. Gives the seconds.
fn time<O: Operation + Copy>(cuda: &mut Cuda, what: &str, o: O, traffic: Option<u64>) -> Result<f64, Box<dyn Error>> {
    let mut meter = Meter::new(&PROFILE, RATES);
    meter.run(&o.into())?;
    let seconds = cuda.time(10, |c| c.run(&o.into()))?;
    let bytes = traffic.unwrap_or(meter.bytes);
    let bound = RATES.seconds(meter.flops, o.flops_8bit(), bytes);
    println!(
        "  {what:<34} {:>9.1} {:>9.1} {:>6.0}% {:>9.0} {:>9.1}",
        seconds * 1e6,
        bound * 1e6,
        100.0 * bound / seconds,
        bytes as f64 / seconds / 1e9,
        meter.flops as f64 / seconds / 1e12
    );
    Ok(seconds)
}

fn report(rows: u32) -> Result<(), Box<dyn Error>> {
    let description = describe();
    description.driver?;
    let names: Vec<_> = description.gpus.iter().take(1).map(|gpu| gpu.name.as_str()).collect();

    let mut l = Layout::default();
    let (x, normal, x_grad, narrow) = (l.bf16(rows, D), l.bf16(rows, D), l.bf16(rows, D), l.bf16(rows, D));
    let (gain, gain_grad, stats) = (l.bf16(1, D), l.f32(1, D), l.f32(rows, 1));
    let (gate_up, activated) = (l.bf16(rows, 2 * FF), l.bf16(rows, FF));
    let (qkv, qkv_grad) = (l.bf16(rows, HEADS.width()), l.bf16(rows, HEADS.width()));
    let log_sum = l.f32(rows, HEADS.queries);
    let (raw, head_stats) = (l.bf16(rows, HEADS.normed() * HEADS.size), l.f32(rows, HEADS.normed()));
    let table = l.lay(Dtype::F32, [1, 4096, HEADS.size / 2, 2]);
    let weights = [[HEADS.width(), D], [D, D], [2 * FF, D], [D, FF], [D, RANK]].map(|[out, from]| l.bf16(out, from));
    let [qkv_weight, out_weight, gate_up_weight, down_weight, project] = weights;
    let (embed, low, low_grad) = (l.bf16(VOCABULARY, RANK), l.bf16(rows, RANK), l.bf16(rows, RANK));
    let (weight_grad, logits) = (l.f32(VOCABULARY, RANK), l.bf16(CHUNK.min(rows), VOCABULARY));
    let (ids, losses) = (l.lay(Dtype::U32, [1, 1, 1, rows]), l.f32(1, rows));
    let (settings, results) = (l.f32(1, Settings::LEN as u32), l.f32(1, Results::LEN as u32));
    let (codes, numbers) = (l.lay(Dtype::E5m2, [1, 1, rows, 2 * FF]), [l.f32(1, 1), l.f32(1, 1), l.f32(1, 1)]);
    let scratch = l.f32(1, 16 << 20);
    let mut cuda = Cuda::open(0, Room { arena: l.end, scratch, staging: 0 }, Products::Library)?;
    cuda.warnings().iter().for_each(|w| eprintln!("{w}"));

    let linear = Linear::new;
    let linear_grad = |x, weight: Region, out_grad, x_grad| LinearGrad {
        x,
        weight,
        transposed: false,
        out_grad,
        x_grad: Some(x_grad),
        before_gelu: None,
        weight_grad: Some(Region { dtype: Dtype::F32, ..weight_grad }.reshaped([
            1,
            1,
            weight.rows(),
            weight.columns(),
        ])),
        bias_grad: None,
        x_bias_grad: None,
        accumulate: true,
        quantised: None,
    };
    let head = HeadLoss {
        x: low,
        weight: embed,
        bias: None,
        ids: IDS,
        targets: ids,
        logits,
        losses,
        settings,
        results,
        add_loss: false,
        integer: None,
        gradient: Some(HeadGrad { x_grad: low_grad, weight_grad: Some(weight_grad), accumulate: true }),
    };
    let forward = [
        ("linear qkv", linear(x, qkv_weight, None, qkv)),
        ("linear out", linear(x, out_weight, None, normal)),
        ("linear gate, up", linear(x, gate_up_weight, None, gate_up)),
        ("linear down", linear(activated, down_weight, None, normal)),
        ("linear project", linear(low, project, None, normal)),
    ];
    let activated_grad = gate_up.reshaped([1, 1, 2 * rows, FF]).slice_rows(0, rows);
    let backward = [
        ("linear_grad qkv", linear_grad(x, qkv_weight, qkv, normal)),
        ("linear_grad out", linear_grad(x, out_weight, narrow, normal)),
        ("linear_grad gate, up", linear_grad(x, gate_up_weight, gate_up, normal)),
        ("linear_grad down", linear_grad(activated, down_weight, narrow, activated_grad)),
        ("linear_grad project", linear_grad(low, project, narrow, low_grad)),
    ];
    let (low_chunk, grad_chunk) = (low.slice_rows(0, logits.rows()), low_grad.slice_rows(0, logits.rows()));
    let logits_of = linear(low_chunk, embed, None, logits);
    let logits_grad = linear_grad(low_chunk, embed, logits, grad_chunk);
    cuda.tune(|c| {
        forward.iter().try_for_each(|(_, o)| c.run(&(*o).into()))?;
        backward.iter().try_for_each(|(_, o)| c.run(&(*o).into()))?;
        c.run(&logits_of.into())?;
        c.run(&logits_grad.into())?;
        c.run(&head.into())
    })?;
    for region in [x, narrow, gate_up, activated, qkv, low, gain, embed].into_iter().chain(weights) {
        fill(&mut cuda, region, 0.5)?;
    }
    let spread: Vec<u8> = (0..rows).flat_map(|i| (i.wrapping_mul(2_654_435_761) % IDS).to_le_bytes()).collect();
    cuda.write(ids, &spread)?;
    cuda.write(numbers[1], bytes_of(&[1.0]).as_slice())?;
    let still = Settings { learning_rate: 0.0, correction1: 1.0, correction2: 1.0, clip: 1.0, loss_scale: 1e-5 };
    cuda.write(settings, bytemuck::bytes_of(&still))?;

    println!("Yxanul 197M, {rows} rows, bf16, on {}", names.concat());
    println!("  {:<34} {:>9} {:>9} {:>7} {:>9} {:>9}", "", "us", "roofline", "", "GB/s", "TFLOP/s");
    let c = &mut cuda;
    let scaling = Scaling::at(numbers[0].offset, numbers[1].offset, numbers[2].offset);
    let copy =
        |dtype, columns| Some(Quantised { codes: Region { dtype, shape: [1, 1, rows, columns], ..codes }, scaling });
    let alone =
        |x: Region, dtype| Quantise::new(x, Quantised { codes: Region { dtype, shape: x.shape, ..codes }, scaling });
    let first = Affine { gain, bias: None, out: normal };
    let norm = Norm { kind: NormKind::Rms, x, eps: 1e-5, stats, first, second: None, copy: None };
    time(c, "norm", norm, None)?;
    time(c, "norm, copied", Norm { copy: copy(Dtype::E4m3, D), ..norm }, None)?;
    time(c, "quantise of its output", alone(normal, Dtype::E4m3), None)?;
    let first = AffineGrad { gain, out_grad: narrow, gain_grad, bias_grad: None };
    let norm_grad = NormGrad {
        kind: NormKind::Rms,
        x,
        stats,
        x_grad,
        first,
        second: None,
        add: true,
        accumulate: true,
        copy: None,
    };
    time(c, "norm_grad", norm_grad, None)?;
    time(c, "norm_grad, copied", NormGrad { copy: copy(Dtype::E5m2, D), ..norm_grad }, None)?;
    time(c, "quantise of its output", alone(x_grad, Dtype::E5m2), None)?;
    let swiglu = SwiGlu { gate_up, out: activated, copy: None, kept: None };
    time(c, "swiglu", swiglu, None)?;
    time(c, "swiglu, copied", SwiGlu { copy: copy(Dtype::E4m3, FF), ..swiglu }, None)?;
    time(c, "quantise of its output", alone(activated, Dtype::E4m3), None)?;
    let swiglu_grad = SwiGluGrad { gate_up, out_grad: activated, out: None, copy: None, transposed: None, kept: None };
    time(c, "swiglu_grad", swiglu_grad, None)?;
    fill(c, gate_up, 0.5)?;
    time(c, "swiglu_grad, copied", SwiGluGrad { copy: copy(Dtype::E5m2, 2 * FF), ..swiglu_grad }, None)?;
    time(c, "quantise of its output", alone(gate_up, Dtype::E5m2), None)?;
    fill(c, gate_up, 0.5)?;
    time(c, "embed", Embed { ids, table: embed, scales: None, out: low }, None)?;
    time(c, "embed_grad", EmbedGrad { ids, out_grad: low, table_grad: weight_grad, accumulate: true }, None)?;
    for t in [8, 16, 32, 64, 128, 512, 2048].into_iter().filter(|t| rows.is_multiple_of(*t)) {
        let shaped = |r: Region| r.reshaped([1, rows / t, t, r.columns()]);
        let (qkv, out, log_sum) = (shaped(qkv), shaped(normal), log_sum.reshaped([1, rows / t, HEADS.queries, t]));
        let (heads, pattern) = (HEADS, Pattern::DENSE);
        time(c, &format!("attention T {t}"), Attention { qkv, out, log_sum, heads, pattern }, None)?;
        let rotary = Rotary { table, heads, positions: t };
        let (out_grad, qkv_grad) = (shaped(narrow), shaped(qkv_grad));
        let grad = AttentionGrad { qkv, out, log_sum, out_grad, qkv_grad, heads, pattern, rotary };
        time(c, &format!("attention_grad T {t}"), grad, None)?;
    }
    for (what, o) in forward {
        time(c, what, o, None)?;
    }
    time(c, "rotate", Rotate { qkv, rotary: Rotary { table, heads: HEADS, positions: 8 } }, None)?;
    fill(c, qkv, 0.5)?;
    let gains = |of: Region| [0, HEADS.size].map(|first| of.slice_columns(first, HEADS.size));
    let ([query_gain, key_gain], [query_gain_grad, key_gain_grad]) = (gains(gain), gains(gain_grad));
    let (heads, accumulate) = (HEADS, true);
    let (stats, eps) = (head_stats, 1e-5);
    let qk_norm = QkNorm { qkv, raw: Some(raw), stats: Some(stats), query_gain, key_gain, eps, heads };
    time(c, "qk_norm", QkNorm { raw: None, stats: None, ..qk_norm }, None)?;
    time(c, "qk_norm, kept for the gradient", qk_norm, None)?;
    let qk_norm_grad =
        QkNormGrad { qkv_grad, raw, stats, query_gain, key_gain, query_gain_grad, key_gain_grad, heads, accumulate };
    time(c, "qk_norm_grad", qk_norm_grad, None)?;
    for (what, o) in backward {
        time(c, what, o, None)?;
    }
    // The head writes the logits, reads and writes them for the softmax, and reads them for each gradient.
    let once = u64::from(rows) * u64::from(VOCABULARY) * 2;
    let whole = time(c, "head_loss", head, Some(5 * once))?;
    let products = time(c, "  logits of a chunk", logits_of, None)? + time(c, "  their gradients", logits_grad, None)?;
    let softmax = whole - products * f64::from(rows.div_ceil(CHUNK));
    println!("  the head without its products: {:.1} us, {:.0} GB/s", softmax * 1e6, 2.0 * once as f64 / softmax / 1e9);
    Ok(())
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn main() -> std::process::ExitCode {
    let rows = std::env::args().nth(1).map_or(Ok(65_536), |n| n.parse());
    let done = rows.map_err(Into::into).and_then(report);
    let Err(error) = done else { return std::process::ExitCode::SUCCESS };
    eprintln!("cuda_operations: {error}");
    std::process::ExitCode::FAILURE
}
