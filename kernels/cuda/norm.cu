// LayerNorm with one or two affine outputs of the same normalised rows.
#include "vector.cuh"

struct NormArgs {
    const void* x;         // [rows, columns]
    float* stats;          // [rows, 2]: mean and 1 / sqrt(variance + eps)
    const void* gain[2];   // [columns]
    const void* bias[2];   // [columns]
    void* out[2];          // [rows, columns]
    u32 rows, columns, outputs;
    u32 wide;              // whether rows begin at multiples of 16 bytes
    float eps;
};

// A warp a row.
template <class T, int N>
__device__ inline void norm_row(const NormArgs& a, u32 at) {
    u32 lane = threadIdx.x % 32;
    u64 start = (u64)at * a.columns;
    Row<T, N, 32, 4> row((const T*)a.x + start, a.columns, lane);
    float sum = 0;
    row.each([&](u32, const float(&x)[N]) {
        for (int i = 0; i < N; i++) sum += x[i];
    });
    float mean = warp_sum(sum) / a.columns;
    // Two passes: the variance of centred values keeps its digits where the mean is large.
    float squares = 0;
    row.each([&](u32, const float(&x)[N]) {
        for (int i = 0; i < N; i++) squares += (x[i] - mean) * (x[i] - mean);
    });
    float scale = 1.0f / sqrtf(warp_sum(squares) / a.columns + a.eps);
    if (lane == 0) {
        a.stats[2 * at] = mean;
        a.stats[2 * at + 1] = scale;
    }
    for (u32 o = 0; o < a.outputs; o++)
        row.each([&](u32 column, const float(&x)[N]) {
            float gain[N], bias[N], out[N];
            read(gain, (const T*)a.gain[o] + column);
            read(bias, (const T*)a.bias[o] + column);
            for (int i = 0; i < N; i++) out[i] = (x[i] - mean) * scale * gain[i] + bias[i];
            write((T*)a.out[o] + start + column, out);
        });
}

template <class T>
__device__ void norm(const NormArgs& a) {
    u32 at = blockIdx.x * 4 + threadIdx.x / 32;
    if (at < a.rows) a.wide ? norm_row<T, WIDE<T>>(a, at) : norm_row<T, 1>(a, at);
}

EXPORT_BOTH(norm, NormArgs, 128, norm)
