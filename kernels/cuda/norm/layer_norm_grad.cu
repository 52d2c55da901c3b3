// The gradient of LayerNorm in bf16, for one or two affine outputs at once, in one pass: every operand is read once.
//
// A block takes `piece` rows, which its warps take in turn. A lane has the same columns of each row, and keeps in
// registers its rows' sums for the gradients of gains and biases. Operands are copied to shared memory two rows ahead;
// a lane reads only operands that it copied itself, so that no lane waits for another. Moments are read for many rows
// at once.
//
//   copies    | row 2 | row 3 | row 4 | ...        a row: x, the outputs' gradients, and the previous x_grad
//   warp      | row 0 | row 1 | row 2 | ...
//
// All lanes wait only for a row's two means, by shuffles. At the end a block adds its warps' sums in their order: those
// of gains and biases, and of x's gradient itself, which is the gradient of the preceding bias.
#include "norm_grad.cuh"
#include "../vector.cuh"

struct alignas(8) Moments {
    float mean, scale;
};

// HELD: the vectors of a row that a lane has. For wide rows, of at most 256 HELD columns.
template <int HELD, int OUTPUTS>
__device__ inline void layer_norm_grad(const NormGradArgs& a) {
#ifdef TENSOR_CORES
    constexpr int N = WIDE<bf16>;
    constexpr u32 WARPS = 8, STAGES = 3, MANY = 16, OPERANDS = 2 + OUTPUTS, SUMS = 2 * OUTPUTS + 1;
    LAUNCH_SHARED(pool, (OUTPUTS + WARPS * STAGES * OPERANDS) * HELD * 32 * N * sizeof(bf16));
    __shared__ Moments moments[WARPS][MANY];
    u32 columns = a.columns, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    bf16 *gains = (bf16*)pool, *ring = gains + (OUTPUTS + warp * STAGES * OPERANDS) * columns;
    const bf16* x_rows = (const bf16*)a.x;
    bf16* x_grad = (bf16*)a.x_grad;
    u32 end = min(a.rows, (blockIdx.x + 1) * a.piece), row = blockIdx.x * a.piece + warp;
    // Calls `visit(h, column)` for the lane's vectors.
    auto each = [&](auto visit) {
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            u32 column = (h * 32 + lane) * N;
            if (column < columns) visit(h, column);
        }
    };
    auto ask = [&](u32 row, u32 stage) {
        u64 start = (u64)row * columns;
        bf16* to = ring + stage * OPERANDS * columns;
        if (row < end)
            each([&](int, u32 column) {
                copy_piece(to + column, x_rows + start + column, true);
#pragma unroll
                for (int o = 0; o < OUTPUTS; o++)
                    copy_piece(to + (1 + o) * columns + column, (const bf16*)a.out_grad[o] + start + column, true);
                if (a.add) copy_piece(to + (1 + OUTPUTS) * columns + column, x_grad + start + column, true);
            });
        end_copies();
    };
    ask(row, 0);
    ask(row + WARPS, 1);
    for (u32 i = threadIdx.x * N; i < OUTPUTS * columns; i += blockDim.x * N)
        *(Vector<bf16, N>*)(gains + i) = fetch<bf16, N>((const bf16*)a.gain[i / columns] + i % columns);
    __syncthreads();
    float sums[HELD][SUMS][N] = {};
    u32 stage = 0, from = 0;
    for (; row < end; row += WARPS, from = (from + 1) % MANY) {
        ask(row + 2 * WARPS, (stage + 2) % STAGES);
        if (from == 0) {
            u32 next = row + WARPS * lane;
            __syncwarp();
            if (lane < MANY && next < end) moments[warp][lane] = *(const Moments*)(a.stats + 2 * next);
            __syncwarp();
        }
        wait_for_earlier_copies<2>();
        Moments own = moments[warp][from];
        float mean = own.mean, scale = own.scale, g[HELD][N], sum = 0, dot = 0;
        const bf16* at = ring + stage * OPERANDS * columns;
        each([&](int h, u32 column) {
            float normal[N];
            read(normal, at + column);
#pragma unroll
            for (int i = 0; i < N; i++) normal[i] = (normal[i] - mean) * scale, g[h][i] = 0;
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                float out_grad[N], gain[N];
                read(out_grad, at + (1 + o) * columns + column);
                read(gain, gains + o * columns + column);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    g[h][i] += out_grad[i] * gain[i];
                    sums[h][2 * o][i] += out_grad[i] * normal[i];
                    sums[h][2 * o + 1][i] += out_grad[i];
                }
            }
#pragma unroll
            for (int i = 0; i < N; i++) sum += g[h][i], dot += g[h][i] * normal[i];
        });
        float mean_g = warp_sum(sum) / columns, mean_gx = warp_sum(dot) / columns;
        each([&](int h, u32 column) {
            float x[N], value[N] = {};
            read(x, at + column);
            if (a.add) read(value, at + (1 + OUTPUTS) * columns + column);
#pragma unroll
            for (int i = 0; i < N; i++) value[i] += scale * (g[h][i] - mean_g - (x[i] - mean) * scale * mean_gx);
            write_rounded(x_grad + (u64)row * columns + column, value);
#pragma unroll
            for (int i = 0; i < N; i++) sums[h][2 * OUTPUTS][i] += value[i];
        });
        stage = (stage + 1) % STAGES;
    }

    wait_for_copies();
    __syncthreads();
    float *all = (float*)pool, *own = all + warp * SUMS * columns;
    each([&](int h, u32 column) {
#pragma unroll
        for (u32 s = 0; s < SUMS; s++) write(own + s * columns + column, sums[h][s]);
    });
    __syncthreads();
    for (u32 i = threadIdx.x; i < a.sums * columns; i += blockDim.x) {
        float total = 0;
        for (u32 w = 0; w < WARPS; w++) total += all[w * SUMS * columns + i];
        a.partial[(u64)blockIdx.x * a.sums * columns + i] = total;
    }
#else
    __trap();
#endif
}

#define EXPORT_HELD(held, blocks)                                                              \
    EXPORT_MANY(layer_norm_grad_1_##held, NormGradArgs, 256, blocks, layer_norm_grad<held, 1>) \
    EXPORT_MANY(layer_norm_grad_2_##held, NormGradArgs, 256, blocks, layer_norm_grad<held, 2>)

EXPORT_HELD(1, 2)
EXPORT_HELD(2, 2)
EXPORT_HELD(3, 1)
EXPORT_HELD(4, 1)
