// Tiles of bf16 rows in shared memory, and their products by a warp on tensor cores. A warp has 16 rows of the left
// factor and of the product; lane l has of the product the columns 2 (l % 4) and the next of every eight, of rows
// l / 4 (the first two of a float[4]) and l / 4 + 8 (the others).
#pragma once
#include "attention.cuh"
#include "ptx.cuh"

// A head padded to SIZE. The 16 bytes behind it put the same column of eight rows into different banks.
template <int SIZE>
using Row = bf16[SIZE + 8];

// One head of consecutive rows in global memory.
struct Part {
    bf16* first;
    u32 stride, size;
    // Whether each row is whole pieces of 16 bytes, at multiples of 16.
    bool whole;

    __device__ Part(const void* rows, u64 row, u32 stride, u32 column, u32 size)
        : first((bf16*)rows + row * stride + column),
          stride(stride),
          size(size),
          whole(((u64)rows / 2 + column) % 8 == 0 && stride % 8 == 0 && size % 8 == 0) {}

    __device__ bf16* at(u32 row, u32 column) const { return first + (u64)row * stride + column; }
};

// Starts copying rows [row, row + COUNT) to a tile; zeros for rows from `end` on and beyond the head's size.
template <int SIZE, int COUNT, int THREADS>
__device__ inline void fetch(Row<SIZE>* tile, const Part& part, u32 row, u32 end) {
    constexpr u32 PIECES = SIZE / 8;
    if (part.whole) {
        u32 c = threadIdx.x % PIECES * 8;
#pragma unroll
        for (u32 r = threadIdx.x / PIECES; r < COUNT; r += THREADS / PIECES) {
            bool there = row + r < end && c < part.size;
            copy_piece(&tile[r][c], there ? part.at(row + r, c) : part.first, there);
        }
    } else {
        for (u32 e = threadIdx.x; e < COUNT * SIZE; e += THREADS) {
            u32 r = e / SIZE, c = e % SIZE;
            tile[r][c] = row + r < end && c < part.size ? *part.at(row + r, c) : bf16{0};
        }
    }
}

// The 16 rows at `rows` as a left factor.
template <int SIZE>
__device__ inline void load_left(u32 (&left)[SIZE / 16][4], const Row<SIZE>* rows) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < SIZE / 16; k++) load_matrices(left[k], &rows[lane % 16][16 * k + lane / 16 * 8]);
}

// sums [16, 8 N] = left [16, SIZE] times the transposed 8 N rows at `right`.
template <int SIZE, int N>
__device__ inline void multiply_turned(float (&sums)[N][4], const u32 (&left)[SIZE / 16][4], const Row<SIZE>* right) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[n][e] = 0;
#pragma unroll
    for (int k = 0; k < SIZE / 16; k++)
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 b[4];
            load_matrices(b, &right[8 * n + lane / 16 * 8 + lane % 8][16 * k + lane / 8 % 2 * 8]);
            multiply(sums[n], left[k], b[0], b[1]);
            multiply(sums[n + 1], left[k], b[2], b[3]);
        }
}

// sums [16, SIZE] += left [16, 8 N], rounded to bf16, times the 8 N rows at `right`.
template <int SIZE, int N>
__device__ inline void multiply_add(float (&sums)[SIZE / 8][4], const float (&left)[N][4], const Row<SIZE>* right) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        const float(&a)[4] = left[2 * k], (&b)[4] = left[2 * k + 1];
        u32 pairs[4] = {pack(a[0], a[1]), pack(a[2], a[3]), pack(b[0], b[1]), pack(b[2], b[3])};
#pragma unroll
        for (int c = 0; c < SIZE / 8; c += 2) {
            u32 b[4];
            load_turned(b, &right[16 * k + lane % 16][8 * c + lane / 16 * 8]);
            multiply(sums[c], pairs, b[0], b[1]);
            multiply(sums[c + 1], pairs, b[2], b[3]);
        }
    }
}

// Scores of the 16 queries from `row` with the 8 N keys from `column` (of keys with queries where TURNED): those that
// the pattern hides become -infinity.
template <bool TURNED, int N>
__device__ inline void hide(float (&scores)[N][4], const Pattern& pattern, u32 row, u32 column) {
    u32 i0 = TURNED ? column : row, i_end = i0 + (TURNED ? 8 * N : 16);
    u32 j0 = TURNED ? row : column, j_end = j0 + (TURNED ? 16 : 8 * N);
    if (pattern.all(i0, i_end, j0, j_end)) return;
    u32 lane = threadIdx.x % 32;
    // Blocks of whole eights are looked at once an eight.
    bool eights = pattern.kind == 0 || pattern.block % 16 == 0;
#pragma unroll
    for (int n = 0; n < N; n++) {
        u32 i8 = TURNED ? column + 8 * n : row, j8 = TURNED ? row : column + 8 * n;
        bool seen = !eights || pattern.kind == 0 || (i8 + 15 >= j8 && pattern.sees_block(i8 / pattern.block, j8 / pattern.block));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u32 r = row + lane / 4 + e / 2 * 8, c = column + 8 * n + lane % 4 * 2 + e % 2;
            u32 i = TURNED ? c : r, j = TURNED ? r : c;
            if (!seen || j > i || !(eights || pattern.sees(i, j))) scores[n][e] = -INFINITY;
        }
    }
}

// Rounds a warp's sums times `scale` into its 16 rows of shared memory.
template <int SIZE>
__device__ inline void put(Row<SIZE>* rows, const float (&sums)[SIZE / 8][4], float scale1, float scale2) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < SIZE / 8; c++) {
        *(u32*)&rows[lane / 4][8 * c + lane % 4 * 2] = pack(sums[c][0] * scale1, sums[c][1] * scale1);
        *(u32*)&rows[lane / 4 + 8][8 * c + lane % 4 * 2] = pack(sums[c][2] * scale2, sums[c][3] * scale2);
    }
    __syncwarp();
}

struct alignas(16) Piece {
    u32 words[4];
};

// Writes a warp's 16 rows from shared memory to the rows from `row` on, up to `end`.
template <int SIZE>
__device__ inline void write(const Part& part, const Row<SIZE>* rows, u32 row, u32 end) {
    u32 lane = threadIdx.x % 32, step = part.whole ? 8 : 1, pieces = part.size / step;
    for (u32 e = lane; e < 16 * pieces; e += 32) {
        u32 r = e / pieces, c = e % pieces * step;
        if (row + r >= end) continue;
        if (part.whole) *(Piece*)part.at(row + r, c) = *(const Piece*)&rows[r][c];
        else *part.at(row + r, c) = rows[r][c];
    }
    __syncwarp();
}
