// The gradients of LayerNorm, and of RMSNorm without biases, for one or two affine outputs at once.
#include "../product/columns.cuh"
#include "norm_grad.cuh"
#include "../ptx.cuh"

// The number of sums that fit in a block's shared memory.
#define NORM_SUMS 12288

// Mean and scale of a row; for RMSNorm the mean is 0.
template <bool RMS>
__device__ inline float mean_of(const NormGradArgs& a, u32 row) {
    return RMS ? 0.0f : a.stats[2 * row];
}

template <bool RMS>
__device__ inline float scale_of(const NormGradArgs& a, u32 row) {
    return a.stats[RMS ? row : 2 * row + 1];
}

// Four neighbouring sums.
struct alignas(16) Four {
    float x[4];
};

template <int N>
__device__ inline void add(float* to, const float (&x)[N]) {
    if constexpr (N == 1) {
        *to += x[0];
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            Four four = *(Four*)(to + i);
            for (int j = 0; j < 4; j++) four.x[j] += x[i + j];
            *(Four*)(to + i) = four;
        }
    }
}

// One warp for each row: computes x_grad, and adds the row's contribution to this warp's `sums` [outputs, columns] for
// the gains, where they learn and the norm is RMSNorm.
template <class T, int N, bool RMS, int OUTPUTS, class F>
__device__ inline void norm_grad_row(const NormGradArgs& a, u32 at, float* sums, Copier<F>& copier) {
    u64 start = (u64)at * a.columns;
    float mean = mean_of<RMS>(a, at), scale = scale_of<RMS>(a, at);
    Row<T, N, 32, RMS ? 3 : 2> x((const T*)a.x + start, a.columns, threadIdx.x % 32);
    auto each = [&](auto visit) {
        x.each([&](u32 column, const float(&x)[N]) {
            float g[N] = {}, out_grad[OUTPUTS][N], gain[N], normal[N];
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                read(out_grad[o], (const T*)a.out_grad[o] + start + column);
                read(gain, (const T*)a.gain[o] + column);
                for (int i = 0; i < N; i++) g[i] += out_grad[o][i] * gain[i];
            }
            for (int i = 0; i < N; i++) normal[i] = (x[i] - mean) * scale;
            visit(column, out_grad, g, normal);
        });
    };
    float sum = 0, dot = 0;
    each([&](u32 column, const float(&out_grad)[OUTPUTS][N], const float(&g)[N], const float(&normal)[N]) {
        for (int i = 0; i < N; i++) {
            sum += g[i];
            dot += g[i] * normal[i];
        }
        if (RMS && a.sums > 0) {
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                float part[N];
                for (int i = 0; i < N; i++) part[i] = out_grad[o][i] * normal[i];
                add(sums + (u64)o * a.columns + column, part);
            }
        }
    });
    float mean_g = RMS ? 0.0f : warp_sum(sum) / a.columns, mean_gx = warp_sum(dot) / a.columns;
    each([&](u32 column, const float(&)[OUTPUTS][N], const float(&g)[N], const float(&normal)[N]) {
        float before[N] = {}, value[N];
        T* x_grad = (T*)a.x_grad + start + column;
        if (a.add) read(before, x_grad);
        for (int i = 0; i < N; i++) value[i] = before[i] + scale * (g[i] - mean_g - normal[i] * mean_gx);
        write_rounded(x_grad, value);
        copier.put(start + column, value);
    });
}

// RMSNorm, in one pass. A block takes `piece` rows, which its warps take in turn. Each warp has its own sums for the
// gains, which are added at the end in the order of the warps. Where rows are too wide for sums in shared memory, one
// warp has all of a piece's rows and sums in global memory.
template <class T, int OUTPUTS, class F = Uncopied>
__device__ void norm_grad_rms(const NormGradArgs& a) {
    LAUNCH_SHARED(pool, NORM_SUMS * sizeof(float));
    Copier<F> copier(a.copy);
    u32 count = a.sums * a.columns, warps = blockDim.x / 32, warp = threadIdx.x / 32;
    float* partial = a.partial + (u64)blockIdx.x * count;
    float* sums = a.shared ? (float*)pool + warp * count : partial;
    for (u32 i = threadIdx.x % 32; i < count; i += 32) sums[i] = 0;
    __syncwarp();
    u32 end = min(a.rows, (blockIdx.x + 1) * a.piece);
    for (u32 at = blockIdx.x * a.piece + warp; at < end; at += warps)
        a.wide ? norm_grad_row<T, WIDE<T>, true, OUTPUTS>(a, at, sums, copier)
               : norm_grad_row<T, 1, true, OUTPUTS>(a, at, sums, copier);
    __syncthreads();
    if (a.shared)
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            float total = 0;
            for (u32 w = 0; w < warps; w++) total += ((float*)pool)[w * count + i];
            partial[i] = total;
        }
    copier.finish(a.copy);
}

// LayerNorm: one warp for each row. The sums are a separate pass: for two outputs there are four in each column, and
// the partial sums of so many blocks would be more data than the operands of a small batch.
template <class T, int OUTPUTS>
__device__ void norm_grad_layer(const NormGradArgs& a) {
    Copier<Uncopied> copier(a.copy);
    u32 at = blockIdx.x * 4 + threadIdx.x / 32;
    if (at < a.rows)
        a.wide ? norm_grad_row<T, WIDE<T>, false, OUTPUTS>(a, at, nullptr, copier)
               : norm_grad_row<T, 1, false, OUTPUTS>(a, at, nullptr, copier);
}

// The sums for gains and biases over `piece` rows, 32 N columns and 8 rows at a time.
template <class T, int N, int OUTPUTS>
__device__ inline void piece_sums(const NormGradArgs& a) {
    u32 column = (blockIdx.x * 32 + threadIdx.x % 32) * N;
    u32 end = min(a.rows, (blockIdx.y + 1) * a.piece);
    float sums[2 * OUTPUTS * N] = {};
    if (column < a.columns)
#pragma unroll 2
        for (u32 row = blockIdx.y * a.piece + threadIdx.x / 32; row < end; row += 8) {
            u64 at = (u64)row * a.columns + column;
            float x[N], g[N], mean = mean_of<false>(a, row), scale = scale_of<false>(a, row);
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

#define EXPORT_OUTPUTS(name, threads, body)                  \
    EXPORT(name##1_f32, NormGradArgs, threads, body<float, 1>) \
    EXPORT(name##2_f32, NormGradArgs, threads, body<float, 2>) \
    EXPORT(name##1_bf16, NormGradArgs, threads, body<bf16, 1>) \
    EXPORT(name##2_bf16, NormGradArgs, threads, body<bf16, 2>)

EXPORT_OUTPUTS(norm_grad_layer, 128, norm_grad_layer)
EXPORT_OUTPUTS(norm_grad_piece_layer, 256, norm_grad_piece)
EXPORT_OUTPUTS(norm_grad_rms, 256, norm_grad_rms)
EXPORT(norm_grad_rms1_e5m2_f32, NormGradArgs, 256, norm_grad_rms<float, 1, E5m2>)
EXPORT(norm_grad_rms1_e5m2_bf16, NormGradArgs, 256, norm_grad_rms<bf16, 1, E5m2>)
