// Multiplies one row: x [k] with weight [n, k], as fast as the weight can be read from memory.
#pragma once
#include "pointwise/gelu.cuh"
#include "vector.cuh"

struct RowArgs {
    const void* x;            // [k]
    const void* weight;       // [n, k]
    void* out;                // [n]
    const void* bias;         // [n] or null, of x's type
    const void* residual;     // [n] or null: added to the result
    const void* before_gelu;  // [n] or null: the result is multiplied by gelu'(this)
    void* activated;          // [n] or null: receives gelu(out)
    u32 n, k;
    u32 accumulate;           // add to the content of out
    u32 wide;                 // whether rows begin at multiples of 16 bytes
};

// The terms to add to the sum of row `at`; the bias is of type B.
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

// This thread's share of the sums of ROWS neighbouring rows, without those after the last row; `thread` of `threads`.
// If the weight is read only ONCE, L2 is left to data that is used again.
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
