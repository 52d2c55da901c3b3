// Sums over the rows of a matrix, in two passes of fixed order: pieces of rows, then the pieces (columns.cu).
#pragma once
#include "../vector.cuh"

// Adds the values of `ROWS` rows of 32 threads, `COUNT` values for each thread: value v of lane x goes to `give(v, x,
// total)`.
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

// Writes a piece's sums: `N` neighbouring columns for each lane, for each of `SUMS` sums, over 8 rows of threads.
template <int SUMS, int N>
__device__ inline void write_piece(const float (&sums)[SUMS * N], float* partial, u32 columns) {
    add_rows<8>(sums, [&](u32 v, u32 x, float total) {
        u32 column = (blockIdx.x * 32 + x) * N + v % N;
        if (column < columns) partial[((u64)blockIdx.y * SUMS + v / N) * columns + column] = total;
    });
}
