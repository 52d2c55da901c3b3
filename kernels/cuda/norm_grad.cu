// The gradient of LayerNorm, of one or two affine outputs at once.
#include "columns.cuh"

struct NormGradArgs {
    const void* x;            // [rows, columns]
    const float* stats;       // [rows, 2]
    void* x_grad;             // [rows, columns]
    const void* gain[2];      // [columns]
    const void* out_grad[2];  // [rows, columns]
    float* partial;           // [pieces, 2 outputs, columns]: of gain and bias
    u32 rows, columns, outputs;
    u32 add, piece;
    u32 wide;                 // whether rows begin at multiples of 16 bytes
};

// A warp a row: x_grad.
template <class T, int N, int OUTPUTS>
__device__ inline void norm_grad_row(const NormGradArgs& a, u32 at) {
    u64 start = (u64)at * a.columns;
    float mean = a.stats[2 * at], scale = a.stats[2 * at + 1];
    Row<T, N, 32, 2> x((const T*)a.x + start, a.columns, threadIdx.x % 32);
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
    float mean_g = warp_sum(sum) / a.columns, mean_gx = warp_sum(dot) / a.columns;
    each([&](u32 column, const float(&g)[N], const float(&normal)[N]) {
        float before[N] = {}, value[N];
        T* x_grad = (T*)a.x_grad + start + column;
        if (a.add) read(before, x_grad);
        for (int i = 0; i < N; i++) value[i] = before[i] + scale * (g[i] - mean_g - normal[i] * mean_gx);
        write(x_grad, value);
    });
}

template <class T, int OUTPUTS>
__device__ void norm_grad(const NormGradArgs& a) {
    u32 at = blockIdx.x * 4 + threadIdx.x / 32;
    if (at < a.rows) a.wide ? norm_grad_row<T, WIDE<T>, OUTPUTS>(a, at) : norm_grad_row<T, 1, OUTPUTS>(a, at);
}

// Over `piece` rows, 32 N columns and 8 rows at a time: the sums of gains and biases.
template <class T, int N, int OUTPUTS>
__device__ inline void piece_sums(const NormGradArgs& a) {
    u32 column = (blockIdx.x * 32 + threadIdx.x % 32) * N;
    u32 end = min(a.rows, (blockIdx.y + 1) * a.piece);
    float sums[2 * OUTPUTS * N] = {};
    if (column < a.columns)
#pragma unroll 2
        for (u32 row = blockIdx.y * a.piece + threadIdx.x / 32; row < end; row += 8) {
            u64 at = (u64)row * a.columns + column;
            float x[N], g[N], mean = a.stats[2 * row], scale = a.stats[2 * row + 1];
            read(x, (const T*)a.x + at);
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                read(g, (const T*)a.out_grad[o] + at);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    sums[2 * o * N + i] += g[i] * ((x[i] - mean) * scale);
                    sums[(2 * o + 1) * N + i] += g[i];
                }
            }
        }
    write_piece<2 * OUTPUTS, N>(sums, a.partial, a.columns);
}

// Grid (columns / 32 N, pieces).
template <class T, int OUTPUTS>
__device__ void norm_grad_piece(const NormGradArgs& a) {
    a.wide ? piece_sums<T, WIDE<T>, OUTPUTS>(a) : piece_sums<T, 1, OUTPUTS>(a);
}

#define EXPORT_OUTPUTS(name, threads, body)                      \
    EXPORT(name##1_f32, NormGradArgs, threads, body<float, 1>) \
    EXPORT(name##2_f32, NormGradArgs, threads, body<float, 2>) \
    EXPORT(name##1_bf16, NormGradArgs, threads, body<bf16, 1>) \
    EXPORT(name##2_bf16, NormGradArgs, threads, body<bf16, 2>)

EXPORT_OUTPUTS(norm_grad, 128, norm_grad)
EXPORT_OUTPUTS(norm_grad_piece, 256, norm_grad_piece)
EXPORT(norm_grad_finish, FinishArgs, 1024, finish_columns)
