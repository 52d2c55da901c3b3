// The gradient of LayerNorm, and of RMSNorm without biases, of one or two affine outputs at once.
#include "columns.cuh"
#include "fp8.cuh"

struct NormGradArgs {
    const void* x;            // [rows, columns]
    const float* stats;       // [rows, 2]; RMS: [rows, 1]
    void* x_grad;             // [rows, columns]
    const void* gain[2];      // [columns]
    const void* out_grad[2];  // [rows, columns]
    CopyArgs copy;            // of x_grad
    float* partial;           // [pieces, 2 outputs, columns]: of gain and bias; RMS: [pieces, outputs, columns]
    u32 rows, columns, outputs;
    u32 add, piece;
    u32 wide;                 // whether rows begin at multiples of 16 bytes
};

// Mean and scale of a row; what RMSNorm subtracts is 0.
template <bool RMS>
__device__ inline float mean_of(const NormGradArgs& a, u32 row) {
    return RMS ? 0.0f : a.stats[2 * row];
}

template <bool RMS>
__device__ inline float scale_of(const NormGradArgs& a, u32 row) {
    return a.stats[RMS ? row : 2 * row + 1];
}

// A warp a row: x_grad.
template <class T, int N, bool RMS, int OUTPUTS, class F>
__device__ inline void norm_grad_row(const NormGradArgs& a, u32 at, Copier<F>& copier) {
    u64 start = (u64)at * a.columns;
    float mean = mean_of<RMS>(a, at), scale = scale_of<RMS>(a, at);
    Row<T, N, 32, RMS ? 3 : 2> x((const T*)a.x + start, a.columns, threadIdx.x % 32);
    auto each = [&](auto visit) {
        x.each([&](u32 column, const float(&x)[N]) {
            float g[N] = {}, out_grad[N], gain[N], normal[N];
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                read(out_grad, (const T*)a.out_grad[o] + start + column);
                read(gain, (const T*)a.gain[o] + column);
                for (int i = 0; i < N; i++) g[i] += out_grad[i] * gain[i];
            }
            for (int i = 0; i < N; i++) normal[i] = (x[i] - mean) * scale;
            visit(column, g, normal);
        });
    };
    float sum = 0, dot = 0;
    each([&](u32, const float(&g)[N], const float(&normal)[N]) {
        for (int i = 0; i < N; i++) {
            sum += g[i];
            dot += g[i] * normal[i];
        }
    });
    float mean_g = RMS ? 0.0f : warp_sum(sum) / a.columns, mean_gx = warp_sum(dot) / a.columns;
    each([&](u32 column, const float(&g)[N], const float(&normal)[N]) {
        float before[N] = {}, value[N];
        T* x_grad = (T*)a.x_grad + start + column;
        if (a.add) read(before, x_grad);
        for (int i = 0; i < N; i++) value[i] = before[i] + scale * (g[i] - mean_g - normal[i] * mean_gx);
        write_rounded(x_grad, value);
        copier.put(start + column, value);
    });
}

template <class T, bool RMS, int OUTPUTS, class F = Uncopied>
__device__ void norm_grad(const NormGradArgs& a) {
    Copier<F> copier(a.copy);
    u32 at = blockIdx.x * 4 + threadIdx.x / 32;
    if (at < a.rows)
        a.wide ? norm_grad_row<T, WIDE<T>, RMS, OUTPUTS>(a, at, copier) : norm_grad_row<T, 1, RMS, OUTPUTS>(a, at, copier);
    copier.finish(a.copy);
}

// Over `piece` rows, 32 N columns and 8 rows at a time: the sums of gains and, where there are any, biases.
template <class T, int N, bool RMS, int OUTPUTS>
__device__ inline void piece_sums(const NormGradArgs& a) {
    constexpr int EACH = RMS ? 1 : 2;
    u32 column = (blockIdx.x * 32 + threadIdx.x % 32) * N;
    u32 end = min(a.rows, (blockIdx.y + 1) * a.piece);
    float sums[EACH * OUTPUTS * N] = {};
    if (column < a.columns)
#pragma unroll 2
        for (u32 row = blockIdx.y * a.piece + threadIdx.x / 32; row < end; row += 8) {
            u64 at = (u64)row * a.columns + column;
            float x[N], g[N], mean = mean_of<RMS>(a, row), scale = scale_of<RMS>(a, row);
            read(x, (const T*)a.x + at);
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                read(g, (const T*)a.out_grad[o] + at);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    sums[EACH * o * N + i] += g[i] * ((x[i] - mean) * scale);
                    if (!RMS) sums[(EACH * o + 1) * N + i] += g[i];
                }
            }
        }
    write_piece<EACH * OUTPUTS, N>(sums, a.partial, a.columns);
}

// Grid (columns / 32 N, pieces).
template <class T, bool RMS, int OUTPUTS>
__device__ void norm_grad_piece(const NormGradArgs& a) {
    a.wide ? piece_sums<T, WIDE<T>, RMS, OUTPUTS>(a) : piece_sums<T, 1, RMS, OUTPUTS>(a);
}

#define EXPORT_OUTPUTS(name, threads, body, rms)                  \
    EXPORT(name##1_f32, NormGradArgs, threads, body<float, rms, 1>) \
    EXPORT(name##2_f32, NormGradArgs, threads, body<float, rms, 2>) \
    EXPORT(name##1_bf16, NormGradArgs, threads, body<bf16, rms, 1>) \
    EXPORT(name##2_bf16, NormGradArgs, threads, body<bf16, rms, 2>)

EXPORT_OUTPUTS(norm_grad_layer, 128, norm_grad, false)
EXPORT_OUTPUTS(norm_grad_rms, 128, norm_grad, true)
EXPORT(norm_grad_rms1_e5m2_f32, NormGradArgs, 128, norm_grad<float, true, 1, E5m2>)
EXPORT(norm_grad_rms1_e5m2_bf16, NormGradArgs, 128, norm_grad<bf16, true, 1, E5m2>)
EXPORT_OUTPUTS(norm_grad_piece_layer, 256, norm_grad_piece, false)
EXPORT_OUTPUTS(norm_grad_piece_rms, 256, norm_grad_piece, true)
EXPORT(norm_grad_finish, FinishArgs, 1024, finish_columns)
