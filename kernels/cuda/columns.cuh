// Sums over the rows of a matrix, in two passes of fixed order: pieces of rows, then the pieces.
#pragma once
#include "vector.cuh"

struct FinishArgs {
    const float* partial;  // [pieces, sums, columns]
    float* out[5];         // [columns] each
    float* copy;           // [columns]: of the last one, or null
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

// Blocks of 8 columns, over the pieces of one sum, which threads have in turn. Grid (columns / 8, sums).
__device__ inline void finish_columns(const FinishArgs& a) {
    constexpr u32 ACROSS = 8, AT_ONCE = 8;
    __shared__ float warps[32][ACROSS];
    u32 lane = threadIdx.x % 32, x = lane % ACROSS, column = blockIdx.x * ACROSS + x, sum = blockIdx.y;
    u32 step = blockDim.x / ACROSS;
    float total = 0;
    for (u32 p = threadIdx.x / ACROSS; p < a.pieces; p += AT_ONCE * step) {
        // All are asked for before any is added.
        float some[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 piece = p + i * step;
            bool there = piece < a.pieces && column < a.columns;
            some[i] = there ? a.partial[((u64)piece * a.sums + sum) * a.columns + column] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) total += some[i];
    }
    // Of the lanes that have a column.
    auto add_up = [](float own) {
        for (u32 apart = ACROSS; apart < 32; apart *= 2) own += __shfl_xor_sync(FULL_WARP, own, apart);
        return own;
    };
    total = add_up(total);
    if (lane < ACROSS) warps[threadIdx.x / 32][x] = total;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    total = 0;
    for (u32 w = lane / ACROSS; w < blockDim.x / 32; w += 32 / ACROSS) total += warps[w][x];
    total = add_up(total);
    if (lane >= ACROSS || column >= a.columns) return;
    float* out = a.out[sum] + column;
    total = a.accumulate ? *out + total : total;
    *out = total;
    if (a.copy && sum + 1 == a.sums) a.copy[column] = total;
}

// Writes a piece's sums: `N` neighbouring columns a lane, for each of `SUMS` sums, over 8 rows of threads.
template <int SUMS, int N>
__device__ inline void write_piece(const float (&sums)[SUMS * N], float* partial, u32 columns) {
    add_rows<8>(sums, [&](u32 v, u32 x, float total) {
        u32 column = (blockIdx.x * 32 + x) * N + v % N;
        if (column < columns) partial[((u64)blockIdx.y * SUMS + v / N) * columns + column] = total;
    });
}
