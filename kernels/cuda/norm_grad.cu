// The gradient of LayerNorm, and of RMSNorm without biases, of one or two affine outputs at once, in one pass over its
// operands.
#include "columns.cuh"
#include "fp8.cuh"
#include "ptx.cuh"

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
    u32 shared;               // whether the sums of all warps are in shared memory
};

// Sums that a block has room for.
#define NORM_SUMS 12288

// Mean and scale of a row; what RMSNorm subtracts is 0.
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

// A warp a row: x_grad, and what the row adds to this warp's `sums` [gain and bias of each output, columns].
template <class T, int N, bool RMS, int OUTPUTS, class F>
__device__ inline void norm_grad_row(const NormGradArgs& a, u32 at, float* sums, Copier<F>& copier) {
    constexpr int EACH = RMS ? 1 : 2;
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
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            float part[N];
            for (int i = 0; i < N; i++) part[i] = out_grad[o][i] * normal[i];
            add(sums + (u64)EACH * o * a.columns + column, part);
            if (!RMS) add(sums + (u64)(EACH * o + 1) * a.columns + column, out_grad[o]);
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

// A block takes `piece` rows, a warp every so many of them. What they add to the gains' and biases' sums is kept apart, a warp
// each, and added up at the end in the warps' order. Rows whose sums no shared memory holds are one warp's, in place.
template <class T, bool RMS, int OUTPUTS, class F = Uncopied>
__device__ void norm_grad(const NormGradArgs& a) {
    LAUNCH_SHARED(pool, NORM_SUMS * sizeof(float));
    Copier<F> copier(a.copy);
    u32 count = (RMS ? 1 : 2) * OUTPUTS * a.columns, warps = blockDim.x / 32, warp = threadIdx.x / 32;
    float* partial = a.partial + (u64)blockIdx.x * count;
    float* sums = a.shared ? (float*)pool + warp * count : partial;
    for (u32 i = threadIdx.x % 32; i < count; i += 32) sums[i] = 0;
    __syncwarp();
    u32 end = min(a.rows, (blockIdx.x + 1) * a.piece);
    for (u32 at = blockIdx.x * a.piece + warp; at < end; at += warps)
        a.wide ? norm_grad_row<T, WIDE<T>, RMS, OUTPUTS>(a, at, sums, copier)
               : norm_grad_row<T, 1, RMS, OUTPUTS>(a, at, sums, copier);
    __syncthreads();
    if (a.shared)
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            float total = 0;
            for (u32 w = 0; w < warps; w++) total += ((float*)pool)[w * count + i];
            partial[i] = total;
        }
    copier.finish(a.copy);
}

#define EXPORT_OUTPUTS(name, threads, body, rms)                  \
    EXPORT(name##1_f32, NormGradArgs, threads, body<float, rms, 1>) \
    EXPORT(name##2_f32, NormGradArgs, threads, body<float, rms, 2>) \
    EXPORT(name##1_bf16, NormGradArgs, threads, body<bf16, rms, 1>) \
    EXPORT(name##2_bf16, NormGradArgs, threads, body<bf16, rms, 2>)

EXPORT_OUTPUTS(norm_grad_layer, 256, norm_grad, false)
EXPORT_OUTPUTS(norm_grad_rms, 256, norm_grad, true)
EXPORT(norm_grad_rms1_e5m2_f32, NormGradArgs, 256, norm_grad<float, true, 1, E5m2>)
EXPORT(norm_grad_rms1_e5m2_bf16, NormGradArgs, 256, norm_grad<bf16, true, 1, E5m2>)
EXPORT(norm_grad_finish, FinishArgs, 1024, finish_columns)
