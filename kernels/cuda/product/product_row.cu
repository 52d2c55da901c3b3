// Multiplies one row in a separate kernel.
#include "../row.cuh"

template <class X, class Out>
__device__ inline void finish(const RowArgs& a, u32 at, float sum) {
    sum += added_to_row<X, Out>(a, at);
    if (a.before_gelu) sum *= gelu_derivative<Out>(load(((const Out*)a.before_gelu)[at]));
    write_row<Out>(a, at, sum);
}

// One warp for ROWS rows.
template <class X, class W, class Out, int ROWS, int AT_ONCE>
__device__ void by_warps(const RowArgs& a) {
    u32 row = (blockIdx.x * 8 + threadIdx.x / 32) * ROWS, lane = threadIdx.x % 32;
    if (row >= a.n) return;
    float sums[ROWS] = {};
    a.wide ? share<X, W, WIDE<W>, ROWS, AT_ONCE, true>(a, (const X*)a.x, row, lane, 32, sums)
           : share<X, W, 1, ROWS, AT_ONCE, true>(a, (const X*)a.x, row, lane, 32, sums);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_sum(sums[r]);
        if (lane == 0 && row + r < a.n) finish<X, Out>(a, row + r, sum);
    }
}

// One block for each row: for few and long rows.
template <class X, class W, class Out>
__device__ void by_block(const RowArgs& a) {
    float sums[1] = {};
    a.wide ? share<X, W, WIDE<W>, 1, 4, true>(a, (const X*)a.x, blockIdx.x, threadIdx.x, 256, sums)
           : share<X, W, 1, 1, 4, true>(a, (const X*)a.x, blockIdx.x, threadIdx.x, 256, sums);
    float sum = block_sum(sums[0]);
    if (threadIdx.x == 0) finish<X, Out>(a, blockIdx.x, sum);
}

#define EXPORT_ROW(types, X, W, Out) \
    EXPORT(product_row_block_##types, RowArgs, 256, by_block<X, W, Out>) \
    EXPORT(product_row_1_##types, RowArgs, 256, by_warps<X, W, Out, 1, 4>) \
    EXPORT(product_row_2_##types, RowArgs, 256, by_warps<X, W, Out, 2, 4>)

EXPORT_ROW(f32_f32, float, float, float)
EXPORT_ROW(bf16_f32, bf16, bf16, float)
EXPORT_ROW(bf16_bf16, bf16, bf16, bf16)
// A row in f32 with a weight in bf16.
EXPORT_ROW(f32_bf16_f32, float, bf16, float)
