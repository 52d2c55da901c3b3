// The Newton-Schulz iteration in bf16 on tensor cores: tiles of 128 x 128, slices of 32 along the depth, copied three ahead.
// Sides are multiples of 8, so that every piece of 16 bytes lies in one row.
#include "orthogonalise.cuh"

#ifdef TENSOR_CORES

constexpr u32 SIDE = 128, DEPTH = 32, STAGES = 4;
// Rows of slices along the depth, and of slices across it; 16 bytes behind each put rows into different banks.
constexpr u32 ALONG = DEPTH + 8, ACROSS = SIDE + 8;
constexpr u32 STAGE = 2 * SIDE * ALONG;

// Starts copying rows [row, row + SIDE) of a slice of a matrix [rows, columns] from column k on.
__device__ inline void fetch_along(bf16* to, const bf16* from, u32 row, u32 rows, u32 k, u32 columns) {
#pragma unroll
    for (u32 i = threadIdx.x; i < SIDE * DEPTH / 8; i += 256) {
        u32 r = i / (DEPTH / 8), c = i % (DEPTH / 8) * 8;
        bool there = row + r < rows && k + c < columns;
        copy_piece(to + r * ALONG + c, from + (there ? (u64)(row + r) * columns + k + c : 0), there);
    }
}

// The same of rows [k, k + DEPTH) from `column` on.
__device__ inline void fetch_across(bf16* to, const bf16* from, u32 k, u32 rows, u32 column, u32 columns) {
#pragma unroll
    for (u32 i = threadIdx.x; i < SIDE * DEPTH / 8; i += 256) {
        u32 r = i / (SIDE / 8), c = i % (SIDE / 8) * 8;
        bool there = k + r < rows && column + c < columns;
        copy_piece(to + r * ACROSS + c, from + (there ? (u64)(k + r) * columns + column + c : 0), there);
    }
}

#endif

// Eight warps, four down and two across, each with 32 x 64 sums.
template <Kind KIND>
__device__ void multiply_tile(const OrthogonaliseArgs& a) {
#ifdef TENSOR_CORES
    LAUNCH_SHARED(pool, STAGES * STAGE * sizeof(bf16));
    float scale = scale_of(a);
    u32 row, column, depth = KIND == GRAM ? a.n : a.m;
    tile_of<KIND>(row, column, (a.n + SIDE - 1) / SIDE);
    u32 row0 = row * SIDE, column0 = column * SIDE, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bf16* x = (const bf16*)a.x + (u64)blockIdx.y * a.m * a.n;
    const bf16* p = KIND == APPLY ? (const bf16*)a.p + (u64)blockIdx.y * a.m * a.m : x;
    auto fetch_slice = [&](u32 k) {
        bf16* left = (bf16*)pool + k / DEPTH % STAGES * STAGE;
        if (k < depth) {
            fetch_along(left, p, row0, a.m, k, depth);
            if (KIND == APPLY) fetch_across(left + SIDE * ALONG, x, k, a.m, column0, a.n);
            else fetch_along(left + SIDE * ALONG, x, column0, a.m, k, depth);
        }
        end_copies();
    };
#pragma unroll
    for (u32 s = 0; s < STAGES - 1; s++) fetch_slice(s * DEPTH);

    u32 down = warp / 2 * 32, across = warp % 2 * 64;
    float sums[2][8][4] = {};
    for (u32 k = 0; k < depth; k += DEPTH) {
        wait_for_earlier_copies<STAGES - 2>();
        __syncthreads();
        fetch_slice(k + (STAGES - 1) * DEPTH);
        const bf16 *left = (bf16*)pool + k / DEPTH % STAGES * STAGE, *right = left + SIDE * ALONG;
#pragma unroll
        for (u32 kk = 0; kk < DEPTH; kk += 16) {
            u32 rows[2][4];
#pragma unroll
            for (u32 i = 0; i < 2; i++)
                load_matrices(rows[i], left + (down + 16 * i + lane % 16) * ALONG + kk + lane / 16 * 8);
#pragma unroll
            for (u32 j = 0; j < 8; j += 2) {
                u32 columns[4];
                if (KIND == APPLY)
                    load_turned(columns, right + (kk + lane % 16) * ACROSS + across + 8 * j + lane / 16 * 8);
                else
                    load_matrices(columns, right + (across + 8 * j + lane / 16 * 8 + lane % 8) * ALONG + kk + lane / 8 % 2 * 8);
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    multiply(sums[i][j], rows[i], columns[0], columns[1]);
                    multiply(sums[i][j + 1], rows[i], columns[2], columns[3]);
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 j = 0; j < 8; j++)
#pragma unroll
            for (u32 e = 0; e < 4; e++)
                write_sum<bf16, KIND>(a, row0 + down + 16 * i + lane / 4 + e / 2 * 8,
                                      column0 + across + 8 * j + lane % 4 * 2 + e % 2, sums[i][j][e], scale);
#else
    __trap();
#endif
}

EXPORT_PAIR(orthogonalise_tensor_gram, OrthogonaliseArgs, 256, multiply_tile<GRAM>)
EXPORT_PAIR(orthogonalise_tensor_polynomial, OrthogonaliseArgs, 256, multiply_tile<POLYNOMIAL>)
EXPORT_PAIR(orthogonalise_tensor_apply, OrthogonaliseArgs, 256, multiply_tile<APPLY>)
