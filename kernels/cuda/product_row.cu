// The product of one row: x [k] with weight [n, k], as fast as memory gives the weight. A token at a time is made of
// these.
#include "gelu.cuh"
#include "vector.cuh"

struct RowArgs {
    const void* x;            // [k]
    const void* weight;       // [n, k]
    void* out;                // [n]
    const void* bias;         // [n] or null, as x
    const void* residual;     // [n] or null: added
    const void* before_gelu;  // [n] or null: the result is multiplied by gelu'(this)
    void* activated;          // [n] or null: takes gelu(out)
    u32 n, k;
    u32 accumulate;           // add to what is in out
    u32 wide;                 // whether rows begin at multiples of 16 bytes
};

template <class X, class Out>
__device__ inline void finish(const RowArgs& a, u32 at, float value) {
    Out* out = (Out*)a.out;
    if (a.bias) value += load(((const X*)a.bias)[at]);
    if (a.residual) value += load(((const Out*)a.residual)[at]);
    if (a.accumulate) value += load(out[at]);
    if (a.before_gelu) value *= gelu_derivative<Out>(load(((const Out*)a.before_gelu)[at]));
    Out rounded = store<Out>(value);
    out[at] = rounded;
    if (a.activated) ((Out*)a.activated)[at] = store<Out>(gelu<Out>(load(rounded)));
}

// This thread's share of the sums of ROWS neighbouring rows, those behind the last left out; `thread` of `THREADS`.
// The weight leaves L2 to what is used again.
template <class X, class W, int N, int ROWS, int THREADS, int AT_ONCE>
__device__ inline void share(const RowArgs& a, u32 row, u32 thread, float (&sums)[ROWS]) {
    const X* x = (const X*)a.x;
    const W* weight = (const W*)a.weight;
    u32 rows = min((u32)ROWS, a.n - row);
    for (u32 k0 = thread * N; k0 < a.k; k0 += AT_ONCE * THREADS * N) {
        Vector<W, N> held[AT_ONCE][ROWS];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (k0 + i * THREADS * N < a.k && (u32)r < rows)
                    held[i][r] = fetch_once<W, N>(weight + (u64)(row + r) * a.k + k0 + i * THREADS * N);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (k0 + i * THREADS * N >= a.k) break;
            float from[N], by[N];
            read(from, x + k0 + i * THREADS * N);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if ((u32)r >= rows) break;
                unpack(by, held[i][r]);
#pragma unroll
                for (int j = 0; j < N; j++) sums[r] += from[j] * by[j];
            }
        }
    }
}

// A warp ROWS rows.
template <class X, class W, class Out, int ROWS, int AT_ONCE>
__device__ void by_warps(const RowArgs& a) {
    u32 row = (blockIdx.x * 8 + threadIdx.x / 32) * ROWS, lane = threadIdx.x % 32;
    if (row >= a.n) return;
    float sums[ROWS] = {};
    a.wide ? share<X, W, WIDE<W>, ROWS, 32, AT_ONCE>(a, row, lane, sums)
           : share<X, W, 1, ROWS, 32, AT_ONCE>(a, row, lane, sums);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_sum(sums[r]);
        if (lane == 0 && row + r < a.n) finish<X, Out>(a, row + r, sum);
    }
}

// A block a row: where rows are few and long.
template <class X, class W, class Out>
__device__ void by_block(const RowArgs& a) {
    float sums[1] = {};
    a.wide ? share<X, W, WIDE<W>, 1, 256, 4>(a, blockIdx.x, threadIdx.x, sums)
           : share<X, W, 1, 1, 256, 4>(a, blockIdx.x, threadIdx.x, sums);
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
