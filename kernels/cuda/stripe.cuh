// Attention with a window of one block: a query sees keys of its own tile and of the previous tile; tiles are the
// pattern's blocks. A thread block of one warpgroup walks along a stripe of a sequence's tiles, fetching the next tile
// while it computes. Heads have 64 elements, and rows are whole pieces of 16 bytes. Sequences of two tiles are
// equivalent to such a window even without a pattern.
#pragma once
#include "warpgroup.cuh"

#ifdef WARPGROUPS

// The tiles [first, last) of a sequence that a block processes; the grid's z is the stripes of a sequence. The results
// do not depend on the number of stripes.
struct Stripe {
    // The stages for tiles of keys and of values: two in use and one in transfer. Queries need one less.
    static constexpr u32 KEYS = 3, QUERIES = 2;

    u32 tiles, first, last;

    __device__ explicit Stripe(u32 end) : tiles((end + SIDE - 1) / SIDE) {
        first = (u64)tiles * blockIdx.z / gridDim.z;
        last = (u64)tiles * (blockIdx.z + 1) / gridDim.z;
    }
};

// One head's elements in the `end` rows of a sequence, `stride` from one to the next.
struct HeadRows {
    bf16* first;
    u32 stride, end;

    __device__ HeadRows(const void* all, u64 row, u32 stride, u32 column, u32 end)
        : first((bf16*)all + row * stride + column), stride(stride), end(end) {}

    // Starts copying tile `index`; zeros after the last row.
    __device__ void fetch(bf16* tile, u32 index) const {
        constexpr u32 STEP = THREADS / 8;
        u32 r = threadIdx.x / 8, c = threadIdx.x % 8, rows = end - SIDE * index;
        const bf16* from = first + (u64)(SIDE * index + r) * stride + c * 8;
        bf16* to = piece_at(tile, r, c);
#pragma unroll
        for (u32 i = 0; i < SIDE; i += STEP) copy_piece(to + i * SIDE, from + (u64)i * stride, r + i < rows);
    }

    // Writes a warp's 16 rows to the rows from `row` on.
    __device__ void write(const Row<SIDE>* rows, u32 row) const {
        u32 r = threadIdx.x % 32 / 8, c = threadIdx.x % 8 * 8;
        bf16* to = first + (u64)(row + r) * stride + c;
#pragma unroll
        for (u32 i = 0; i < 16; i += 4)
            if (row + r + i < end) *(Piece*)(to + (u64)i * stride) = *(const Piece*)&rows[r + i][c];
        __syncwarp();
    }
};

__device__ inline void fill(float (&sums)[8][4], float with) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[n][e] = with;
}

// Masks the later keys for the queries of the same tile; a warp's rows, from `own` on, are queries, or keys if TURNED.
template <bool TURNED>
__device__ inline void hide_later(float (&scores)[8][4], u32 own) {
    int lane = threadIdx.x % 32, ahead = (int)own + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int column = 8 * n + e % 2 - e / 2 * 8;
            if (TURNED ? ahead > column : column > ahead) scores[n][e] = -INFINITY;
        }
}

// Attention of the 64 queries at `left` to TILES tiles of keys; the last tile has the queries' own positions, the
// others are earlier. A warp has 16 of the queries, from `row` of the sequence on, and writes their outputs through
// `rows`.
template <u32 TILES>
__device__ inline void attend(const AttentionArgs& a, Matrix left, const Matrix (&keys)[TILES],
                              const Matrix (&values)[TILES], Row<SIDE>* rows, const HeadRows& outs, float* log_sum,
                              u32 row) {
    u32 lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16;
    float c = a.scale * LOG2_E, scores[TILES][8][4], largest[2], total[2] = {}, inverse[2], sums[8][4] = {};
    begin_products();
#pragma unroll
    for (u32 t = 0; t < TILES; t++) start_turned(scores[t], left, keys[t]);
#pragma unroll
    for (u32 t = 0; t < TILES; t++) wait_for_products<0>(scores[t]);
    hide_later<false>(scores[TILES - 1], own);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        largest[h] = -INFINITY;
#pragma unroll
        for (u32 t = 0; t < TILES; t++) largest[h] = largest_of(scores[t], h, largest[h]);
        largest[h] = largest_of_row(largest[h]);
    }
    const float base[2] = {base_of(largest[0], c), base_of(largest[1], c)};
    // The second half's weights are computed while the first half's multiplication runs.
#pragma unroll
    for (u32 t = 0; t < TILES; t++) {
        u32 weights[4][4];
        make_weights(scores[t], base, total, c);
        round_left(weights, scores[t]);
        begin_products();
        start_adding(sums, weights, values[t]);
    }
    wait_for_products<0>(sums);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        total[h] += __shfl_xor_sync(FULL_WARP, total[h], 1);
        total[h] += __shfl_xor_sync(FULL_WARP, total[h], 2);
        inverse[h] = reciprocal(total[h]);
        u32 r = row + lane / 4 + 8 * h;
        if (lane % 4 == 0 && r < a.seq_len) log_sum[r] = largest[h] * a.scale + logf(total[h]);
    }
    put<SIDE>(rows, sums, inverse[0], inverse[1]);
    outs.write(rows, row);
}

#endif
