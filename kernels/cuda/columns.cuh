// Sums over the rows of a matrix, in two passes of fixed order: pieces of rows, then the pieces.
#pragma once
#include "vector.cuh"

struct FinishArgs {
    const float* partial;  // [pieces, sums, columns]
    float* out[4];         // [columns] each
    u32 pieces, sums, columns;
    u32 accumulate;
};

// Adds up what `ROWS` rows of 32 threads hold, `COUNT` values each: value v of lane x is `give(v, x, total)`.
template <int ROWS, int COUNT, class Give>
__device__ inline void add_rows(const float (&sums)[COUNT], Give give) {
    __shared__ float rows[COUNT][ROWS][33];
    u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (int v = 0; v < COUNT; v++) rows[v][y][x] = sums[v];
    __syncthreads();
    for (u32 v = y; v < COUNT; v += ROWS) {
        float total = 0;
        for (int r = 0; r < ROWS; r++) total += rows[v][r][x];
        give(v, x, total);
    }
}

// Blocks of 32 columns by 32 rows, over the pieces of one sum. Grid (columns / 32, sums).
__device__ inline void finish_columns(const FinishArgs& a) {
    u32 first = blockIdx.x * 32, column = first + threadIdx.x % 32, sum = blockIdx.y;
    float total[1] = {};
    if (column < a.columns)
#pragma unroll 8
        for (u32 p = threadIdx.x / 32; p < a.pieces; p += 32)
            total[0] += a.partial[((u64)p * a.sums + sum) * a.columns + column];
    add_rows<32>(total, [&](u32, u32 x, float value) {
        float* out = a.out[sum] + first + x;
        if (first + x < a.columns) *out = a.accumulate ? *out + value : value;
    });
}

// Writes a piece's sums: `N` neighbouring columns a lane, for each of `SUMS` sums, over 8 rows of threads.
template <int SUMS, int N>
__device__ inline void write_piece(const float (&sums)[SUMS * N], float* partial, u32 columns) {
    add_rows<8>(sums, [&](u32 v, u32 x, float total) {
        u32 column = (blockIdx.x * 32 + x) * N + v % N;
        if (column < columns) partial[((u64)blockIdx.y * SUMS + v / N) * columns + column] = total;
    });
}
