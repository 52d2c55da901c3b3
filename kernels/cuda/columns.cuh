// Sums over the rows of a matrix, in two passes of fixed order: pieces of rows, then the pieces.
#pragma once
#include "common.cuh"

struct FinishArgs {
    const float* partial;  // [pieces, sums, columns]
    float* out[4];         // [columns] each
    u32 pieces, sums, columns;
    u32 accumulate;
};

// A thread a column of one sum: adds the pieces in order. Grid (columns / 128, sums).
__device__ inline void finish_columns(const FinishArgs& a) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x, sum = blockIdx.y;
    if (column >= a.columns) return;
    float total = 0;
    for (u32 p = 0; p < a.pieces; p++) total += a.partial[((u64)p * a.sums + sum) * a.columns + column];
    float* out = a.out[sum];
    out[column] = a.accumulate ? out[column] + total : total;
}

// Adds up `SUMS` values a thread over the 8 rows of threads of a block of 32 x 8; the first row writes them.
template <int SUMS>
__device__ inline void write_piece(const float (&sums)[SUMS], float* partial, u32 columns, u32 column) {
    __shared__ float rows[SUMS][8][33];
    u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (int s = 0; s < SUMS; s++) rows[s][y][x] = sums[s];
    __syncthreads();
    if (y != 0 || column >= columns) return;
    for (int s = 0; s < SUMS; s++) {
        float total = 0;
        for (int r = 0; r < 8; r++) total += rows[s][r][x];
        partial[((u64)blockIdx.y * SUMS + s) * columns + column] = total;
    }
}
