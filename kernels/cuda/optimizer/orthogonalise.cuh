// Definitions that both kinds of kernels of the Newton-Schulz iteration share: multiplications of many matrices at
// once. The symmetric ones compute only the tiles on and below the diagonal, and write each twice.
//
//   gram        S = s^2 X X^T                      X [m, n]
//   polynomial  P = b S + c S S^T                  S [m, m]
//   apply       out = s (a X + P X)
//
// s is 1, except in the first iteration, where it is 1 / (|X| + eps): X is then not normalised yet.
#pragma once
#include "../vector.cuh"

struct OrthogonaliseArgs {
    const void* x;         // [matrices, m, n]: X, or S for the polynomial
    const void* p;         // [matrices, m, m]: P, for apply
    void* out;
    const float* partial;  // [matrices, NORM_PIECES]: squared norms of pieces of X, or null where s is 1
    u32 m, n;              // n is m for the polynomial
    float add, factor;     // b and c, or a and 1
    float eps;
};

// The number of pieces of a matrix whose squares are summed separately.
constexpr u32 NORM_PIECES = 64;

// s for this block's matrix.
__device__ inline float scale_of(const OrthogonaliseArgs& a) {
    if (!a.partial) return 1.0f;
    const float* pieces = a.partial + blockIdx.y * NORM_PIECES;
    u32 lane = threadIdx.x % 32;
    return 1.0f / (sqrtf(warp_sum(pieces[lane] + pieces[lane + 32])) + a.eps);
}

enum Kind { GRAM, POLYNOMIAL, APPLY };

// The rows and columns of this block's tile, in units of tiles. Grid (tiles, matrices).
template <Kind KIND>
__device__ inline void tile_of(u32& row, u32& column, u32 across) {
    if constexpr (KIND == APPLY) {
        row = blockIdx.x / across;
        column = blockIdx.x % across;
    } else {
        row = 0;
        for (u32 before = 0; before + row + 1 <= blockIdx.x; row++) before += row + 1;
        column = blockIdx.x - row * (row + 1) / 2;
    }
}

// The result for a sum; `added` is the element of X, or of S for the polynomial, at its position.
template <Kind KIND>
__device__ inline float combined(const OrthogonaliseArgs& a, float added, float sum, float scale) {
    if constexpr (KIND == GRAM) return scale * scale * sum;
    if constexpr (KIND == POLYNOMIAL) return a.add * added + a.factor * sum;
    return scale * (a.add * added + sum);
}

// Writes a sum of this block's matrix and, for a symmetric result, also its mirror image.
template <class T, Kind KIND>
__device__ inline void write_sum(const OrthogonaliseArgs& a, u32 row, u32 column, float sum, float scale) {
    u32 columns = KIND == APPLY ? a.n : a.m;
    if (row >= a.m || column >= columns) return;
    u64 start = (u64)blockIdx.y * a.m * columns, at = start + (u64)row * columns + column;
    float added = KIND == GRAM ? 0.0f : load(((const T*)a.x)[at]);
    T rounded = store<T>(combined<KIND>(a, added, sum, scale));
    ((T*)a.out)[at] = rounded;
    if constexpr (KIND != APPLY) ((T*)a.out)[start + (u64)column * columns + row] = rounded;
}
