// LayerNorm, and RMSNorm without biases, with one or two affine outputs of the same normalised rows.
#include "../fp8.cuh"
#include "../pointwise/dropout.cuh"

struct NormArgs {
    const void* x;         // [rows, columns]
    float* stats;          // [rows, 2]: mean and 1 / sqrt(variance + eps); RMS: [rows, 1], 1 / sqrt(mean square + eps)
    const void* gain[2];   // [columns]
    const void* bias[2];   // [columns]; RMS: none
    void* out[2];          // [rows, columns]
    CopyArgs copy;         // of the first output
    DropArgs drop[2];
    u32 rows, columns, outputs;
    u32 wide;              // whether rows begin at multiples of 16 bytes
    float eps;
};

// One warp for each row.
template <class T, int N, bool RMS, bool DROPS, class F>
__device__ inline void norm_row(const NormArgs& a, u32 at, Copier<F>& copier) {
    u32 lane = threadIdx.x % 32;
    u64 start = (u64)at * a.columns;
    Row<T, N, 32, 4> row((const T*)a.x + start, a.columns, lane);
    float mean = 0;
    if constexpr (!RMS) {
        float sum = 0;
        row.each([&](u32, const float(&x)[N]) {
            for (int i = 0; i < N; i++) sum += x[i];
        });
        mean = warp_sum(sum) / a.columns;
    }
    // Two passes: the variance of centred values stays accurate where the mean is large.
    float squares = 0;
    row.each([&](u32, const float(&x)[N]) {
        for (int i = 0; i < N; i++) squares += (x[i] - mean) * (x[i] - mean);
    });
    float scale = 1.0f / sqrtf(warp_sum(squares) / a.columns + a.eps);
    if (lane == 0) {
        if (!RMS) a.stats[2 * at] = mean;
        a.stats[RMS ? at : 2 * at + 1] = scale;
    }
    for (u32 o = 0; o < a.outputs; o++)
        row.each([&](u32 column, const float(&x)[N]) {
            float gain[N], bias[N] = {}, out[N];
            read(gain, (const T*)a.gain[o] + column);
            if constexpr (!RMS) read(bias, (const T*)a.bias[o] + column);
            for (int i = 0; i < N; i++) out[i] = (x[i] - mean) * scale * gain[i] + bias[i];
            if constexpr (DROPS)
                if (a.drop[o].key) {
                    // Dropout applies to the value as it is stored, as the separate operation does.
                    round_to<T>(out);
                    drop(a.drop[o], at, column, out);
                }
            write_rounded((T*)a.out[o] + start + column, out);
            if (o == 0) copier.put(start + column, out);
        });
}

template <class T, bool RMS, bool DROPS, class F>
__device__ void norm(const NormArgs& a) {
    Copier<F> copier(a.copy);
    u32 at = blockIdx.x * 4 + threadIdx.x / 32;
    if (at < a.rows) a.wide ? norm_row<T, WIDE<T>, RMS, DROPS>(a, at, copier) : norm_row<T, 1, RMS, DROPS>(a, at, copier);
    copier.finish(a.copy);
}

EXPORT(norm_layer_f32, NormArgs, 128, norm<float, false, false, Uncopied>)
EXPORT(norm_layer_bf16, NormArgs, 128, norm<bf16, false, false, Uncopied>)
EXPORT(norm_rms_f32, NormArgs, 128, norm<float, true, false, Uncopied>)
EXPORT(norm_rms_bf16, NormArgs, 128, norm<bf16, true, false, Uncopied>)
EXPORT(norm_layer_drop_f32, NormArgs, 128, norm<float, false, true, Uncopied>)
EXPORT(norm_layer_drop_bf16, NormArgs, 128, norm<bf16, false, true, Uncopied>)
EXPORT(norm_rms_drop_f32, NormArgs, 128, norm<float, true, true, Uncopied>)
EXPORT(norm_rms_drop_bf16, NormArgs, 128, norm<bf16, true, true, Uncopied>)
EXPORT(norm_rms_e4m3_f32, NormArgs, 128, norm<float, true, false, E4m3>)
EXPORT(norm_rms_e4m3_bf16, NormArgs, 128, norm<bf16, true, false, E4m3>)
