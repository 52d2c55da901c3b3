// Tiles for warpgroups: rows of one head padded to 64 bf16, swizzled as in wgmma.cuh, and their matrix multiplications.
#pragma once
#include "tiles.cuh"
#include "wgmma.cuh"

// Rows and columns of a tile; threads of a block, which is one warpgroup.
constexpr u32 SIDE = 64, THREADS = 128, TILE = SIDE * SIDE;

#ifdef WARPGROUPS

__device__ inline bf16* piece_at(bf16* rows, u32 row, u32 piece) { return rows + SIDE * row + (piece ^ row % 8) * 8; }
__device__ inline const bf16* piece_at(const bf16* rows, u32 row, u32 piece) {
    return piece_at((bf16*)rows, row, piece);
}

// Starts copying rows [row, row + ROWS) to a tile; zeros for rows from `end` on and beyond the head's size. Called by
// one warpgroup.
template <u32 ROWS = SIDE>
__device__ inline void fetch_swizzled(bf16* tile, const Part& part, u32 row, u32 end) {
    // A multiple of eight, so that a thread's pieces have the same position in their rows.
    constexpr u32 STEP = THREADS / 8;
    u32 thread = threadIdx.x % THREADS;
    if (part.whole) {
        u32 r = thread / 8, c = thread % 8;
        u64 step = (u64)STEP * part.stride;
        const bf16* from = part.at(row + r, c * 8);
        bf16* to = piece_at(tile, r, c);
        if (row + ROWS <= end && part.size == SIDE) {
#pragma unroll
            for (u32 i = 0; i < ROWS; i += STEP, from += step) copy_piece(to + i * SIDE, from, true);
        } else {
            u32 rows = row < end && c * 8 < part.size ? end - row : 0;
#pragma unroll
            for (u32 i = 0; i < ROWS; i += STEP, from += step) copy_piece(to + i * SIDE, from, r + i < rows);
        }
    } else {
#pragma unroll 1
        for (u32 e = thread; e < ROWS * SIDE; e += THREADS) {
            u32 r = e / SIDE, c = e % SIDE;
            piece_at(tile, r, c / 8)[c % 8] = row + r < end && c < part.size ? *part.at(row + r, c) : bf16{0};
        }
    }
}

// Waits for the copies of all threads, so that matrix multiplications can read them.
__device__ inline void await_tiles() {
    wait_for_copies();
    show_to_products();
    __syncthreads();
}

// Starts sums = 64 rows times the transpose of 64 rows, or sums += that.
__device__ inline void start_turned(float (&sums)[8][4], Matrix left, Matrix right, bool add = false) {
#pragma unroll
    for (int k = 0; k < 4; k++) multiply_group_by_rows(sums, left, right, 16 * k, add || k > 0);
    end_products();
}

// The dot product of the same row of two tiles; each of four lanes has a quarter of it.
__device__ inline float row_dot(const bf16* left, const bf16* right, u32 row) {
    float sum = 0;
#pragma unroll
    for (u32 p = 0; p < 2; p++) {
        u32 piece = threadIdx.x % 4 * 2 + p;
        Piece x = *(const Piece*)piece_at(left, row, piece), y = *(const Piece*)piece_at(right, row, piece);
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            sum += __uint_as_float(x.words[e] << 16) * __uint_as_float(y.words[e] << 16);
            sum += __uint_as_float(x.words[e] & 0xffff0000u) * __uint_as_float(y.words[e] & 0xffff0000u);
        }
    }
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    return sum + __shfl_xor_sync(FULL_WARP, sum, 2);
}

// Turns scores into probabilities, with the log-sum of each row to base 2; `c` times a score is an exponent of two.
__device__ inline void weigh_rows(float (&scores)[8][4], float c, const float (&log_sum)[2]) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) scores[n][e] = power_of_two(scores[n][e] * c - log_sum[e / 2]);
}

// As weigh_rows, with the log-sum of each column; `unit` converts it to base 2: from natural, unless it is stored
// otherwise.
__device__ inline void weigh_columns(float (&scores)[8][4], float c, const float* log_sums, float unit = LOG2_E) {
    const float* own = log_sums + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float sums[2] = {own[8 * n] * unit, own[8 * n + 1] * unit};
#pragma unroll
        for (int e = 0; e < 4; e++) scores[n][e] = power_of_two(scores[n][e] * c - sums[e % 2]);
    }
}

// Turns gradients of probabilities, minus their mean, into gradients of scores. The sums began with minus the mean, so
// it takes no instruction after the multiplication.
__device__ inline void derive(float (&gradients)[8][4], const float (&weights)[8][4]) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) gradients[n][e] *= weights[n][e];
}

// Initialises the sums with minus the mean of each row.
__device__ inline void begin_with_rows(float (&sums)[8][4], const float (&mean)[2]) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[n][e] = -mean[e / 2];
}

// Initialises the sums with the stored value of each column.
__device__ inline void begin_with_columns(float (&sums)[8][4], const float* columns) {
    const float* own = columns + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[n][e] = own[8 * n + e % 2];
}

// Turns gradients of probabilities into gradients of scores, with the mean of each column.
__device__ inline void derive_columns(float (&gradients)[8][4], const float (&weights)[8][4], const float* means) {
    const float* own = means + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) gradients[n][e] = weights[n][e] * (gradients[n][e] - own[8 * n + e % 2]);
}

// Rounds a warp's 16 rows to a left factor.
template <int K>
__device__ inline void round_left(u32 (&pairs)[K][4], const float (&sums)[2 * K][4]) {
#pragma unroll
    for (int k = 0; k < K; k++) {
        const float(&low)[4] = sums[2 * k], (&high)[4] = sums[2 * k + 1];
        pairs[k][0] = pack(low[0], low[1]), pairs[k][1] = pack(low[2], low[3]);
        pairs[k][2] = pack(high[0], high[1]), pairs[k][3] = pack(high[2], high[3]);
    }
}

// Starts sums += left times rows.
template <int K>
__device__ inline void start_adding(float (&sums)[8][4], const u32 (&left)[K][4], Matrix right) {
#pragma unroll
    for (int k = 0; k < K; k++) multiply_group_by_columns(sums, left[k], right.row(16 * k));
    end_products();
}

// Starts sums += the transpose of the 64 rows at `left` times 64 rows; or sums = that.
__device__ inline void start_adding_turned(float (&sums)[8][4], Matrix left, Matrix right, bool add = true) {
#pragma unroll
    for (int k = 0; k < 4; k++)
        multiply_group_turned_by_columns(sums, left.row(16 * k), right.row(16 * k), add || k > 0);
    end_products();
}

// Stores a warp's 16 rows, already rounded as a left factor, in a tile from `row` on.
__device__ inline void put_left(bf16* tile, const u32 (&pairs)[4][4], u32 row) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 k = 0; k < 4; k++)
#pragma unroll
        for (u32 e = 0; e < 4; e++)
            *(u32*)(piece_at(tile, row + lane / 4 + e % 2 * 8, 2 * k + e / 2) + lane % 4 * 2) = pairs[k][e];
}

// The column sums of the rows that a warpgroup writes of one part of a head: each warp sums its own rows, and the sums
// of the warps may be added after a barrier of the warpgroup.
struct ColumnSums {
    struct alignas(8) Two {
        float x, y;
    };

    alignas(8) float of[4][SIDE];

    // Called before any rows.
    __device__ void clear() {
        float* own = of[threadIdx.x / 32 % 4];
        own[threadIdx.x % 32] = own[32 + threadIdx.x % 32] = 0;
        __syncwarp();
    }

    // Adds a warp's 16 rows as they are stored, with zeros after a sequence's last row: a multiplication with ones.
    __device__ void add(const Row<SIDE>* rows) {
        u32 lane = threadIdx.x % 32, one = pack(1, 1), ones[4] = {one, one, one, one};
        u32 columns[4][4];
        float sums[8][4] = {};
#pragma unroll
        for (u32 c = 0; c < 4; c++) load_turned(columns[c], &rows[lane % 16][16 * c + lane / 16 * 8]);
#pragma unroll
        for (u32 c = 0; c < 8; c++) multiply(sums[c], ones, columns[c / 2][c % 2 * 2], columns[c / 2][c % 2 * 2 + 1]);
        // All rows of the result are equal.
        if (lane < 4) {
            Two *own = (Two*)of[threadIdx.x / 32 % 4] + lane, so_far[8];
#pragma unroll
            for (u32 c = 0; c < 8; c++) so_far[c] = own[4 * c];
#pragma unroll
            for (u32 c = 0; c < 8; c++) own[4 * c] = {so_far[c].x + sums[c][0], so_far[c].y + sums[c][1]};
        }
        __syncwarp();
    }

    __device__ void put(float* to, u32 size) const {
        u32 c = threadIdx.x % THREADS;
        if (c < size) to[c] = of[0][c] + of[1][c] + of[2][c] + of[3][c];
    }
};

#endif
