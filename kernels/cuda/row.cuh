// The product of one row: x [k] with weight [n, k], as fast as memory gives the weight.
#pragma once
#include "pointwise/gelu.cuh"
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

// What is added to the sum of row `at`; the bias is of type B.
template <class B, class Out>
__device__ inline float added_to_row(const RowArgs& a, u32 at) {
    float sum = a.bias ? load(((const B*)a.bias)[at]) : 0.0f;
    if (a.residual) sum += load(((const Out*)a.residual)[at]);
    return a.accumulate ? sum + load(((const Out*)a.out)[at]) : sum;
}

// Writes the result of row `at`.
template <class Out>
__device__ inline void write_row(const RowArgs& a, u32 at, float value) {
    Out rounded = store<Out>(value);
    ((Out*)a.out)[at] = rounded;
    if (a.activated) ((Out*)a.activated)[at] = store<Out>(gelu<Out>(load(rounded)));
}

// This thread's share of the sums of ROWS neighbouring rows, those behind the last left out; `thread` of `threads`. The
// weight leaves L2 to what is used again where it is read ONCE.
template <class X, class W, int N, int ROWS, int AT_ONCE, bool ONCE>
__device__ inline void share(const RowArgs& a, const X* x, u32 row, u32 thread, u32 threads, float (&sums)[ROWS]) {
    const W* weight = (const W*)a.weight;
    u32 rows = min((u32)ROWS, a.n - row);
#pragma unroll 1
    for (u32 k0 = thread * N; k0 < a.k; k0 += AT_ONCE * threads * N) {
        Vector<W, N> held[AT_ONCE][ROWS];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (k0 + i * threads * N < a.k && (u32)r < rows) {
                    const W* from = weight + (u64)(row + r) * a.k + k0 + i * threads * N;
                    held[i][r] = ONCE ? fetch_once<W, N>(from) : fetch<W, N>(from);
                }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (k0 + i * threads * N >= a.k) break;
            float from[N], by[N];
            read(from, x + k0 + i * threads * N);
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
