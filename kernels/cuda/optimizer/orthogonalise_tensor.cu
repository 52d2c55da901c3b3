// The Newton-Schulz iteration in bf16 on tensor cores: tiles of 128 x 128, slices of 32 along the depth, copied three
// ahead. Dimensions are multiples of 8, so that every piece of 16 bytes lies in one row.
#include "orthogonalise.cuh"

#ifdef TENSOR_CORES

constexpr u32 SIDE = 128, DEPTH = 32, STAGES = 4, THREADS = 128;
// Row lengths of slices along the depth, and across it; the additional 16 bytes put rows into different banks.
constexpr u32 ALONG = DEPTH + 8, ACROSS = SIDE + 8;
constexpr u32 STAGE = 2 * SIDE * ALONG;
// The row length of the output tile.
constexpr u32 WRITTEN = SIDE + 8;
static_assert(2 * SIDE * WRITTEN <= STAGES * STAGE, "both tiles take the slices' place");

// Starts copying rows [row, row + SIDE) of a slice of a matrix [rows, columns] from column k on.
__device__ inline void fetch_along(bf16* to, const bf16* from, u32 row, u32 rows, u32 k, u32 columns) {
#pragma unroll
    for (u32 i = threadIdx.x; i < SIDE * DEPTH / 8; i += THREADS) {
        u32 r = i / (DEPTH / 8), c = i % (DEPTH / 8) * 8;
        bool there = row + r < rows && k + c < columns;
        copy_piece(to + r * ALONG + c, from + (there ? (u64)(row + r) * columns + k + c : 0), there);
    }
}

// As fetch_along, for rows [k, k + DEPTH) from `column` on.
__device__ inline void fetch_across(bf16* to, const bf16* from, u32 k, u32 rows, u32 column, u32 columns) {
#pragma unroll
    for (u32 i = threadIdx.x; i < SIDE * DEPTH / 8; i += THREADS) {
        u32 r = i / (SIDE / 8), c = i % (SIDE / 8) * 8;
        bool there = k + r < rows && column + c < columns;
        copy_piece(to + r * ACROSS + c, from + (there ? (u64)(k + r) * columns + column + c : 0), there);
    }
}

// Writes a tile of a matrix [rows, columns], from `row` and `column` on.
__device__ inline void write_tile(bf16* to, const bf16* tile, u32 row, u32 rows, u32 column, u32 columns) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < SIDE * SIDE / 8; i += THREADS) {
        u32 r = i / (SIDE / 8), c = i % (SIDE / 8) * 8;
        if (row + r < rows && column + c < columns)
            *(Vector<bf16, 8>*)(to + (u64)(row + r) * columns + column + c) = fetch<bf16, 8>(tile + r * WRITTEN + c);
    }
}

#endif

// Four warps, two down and two across, each with 64 x 64 sums.
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

    // The rows and columns of the next step along the depth are loaded before the current ones are multiplied.
    u32 down = warp / 2 * 64, across = warp % 2 * 64;
    float sums[4][8][4] = {};
    u32 rows[2][4][4], columns_of[2][4][4];
    auto read_step = [&](const bf16* left, u32 kk, u32 to) {
        const bf16* right = left + SIDE * ALONG;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            load_matrices(rows[to][i], left + (down + 16 * i + lane % 16) * ALONG + kk + lane / 16 * 8);
            u32 column = across + 16 * i;
            if (KIND == APPLY) load_turned(columns_of[to][i], right + (kk + lane % 16) * ACROSS + column + lane / 16 * 8);
            else load_matrices(columns_of[to][i], right + (column + lane / 16 * 8 + lane % 8) * ALONG + kk + lane / 8 % 2 * 8);
        }
    };
    auto multiply_step = [&](u32 of) {
#pragma unroll
        for (u32 i = 0; i < 4; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                multiply(sums[i][2 * j], rows[of][i], columns_of[of][j][0], columns_of[of][j][1]);
                multiply(sums[i][2 * j + 1], rows[of][i], columns_of[of][j][2], columns_of[of][j][3]);
            }
    };
    for (u32 k = 0; k < depth; k += DEPTH) {
        wait_for_earlier_copies<STAGES - 2>();
        __syncthreads();
        fetch_slice(k + (STAGES - 1) * DEPTH);
        const bf16* left = (bf16*)pool + k / DEPTH % STAGES * STAGE;
        read_step(left, 0, 0);
        read_step(left, 16, 1);
        multiply_step(0);
        multiply_step(1);
    }
    // Through shared memory, once as is and once transposed, so that rows are written 16 bytes at a time.
    __syncthreads();
    bf16 *straight = (bf16*)pool, *turned = straight + SIDE * WRITTEN;
    u32 columns = KIND == APPLY ? a.n : a.m;
    bool mirrored = KIND != APPLY && row != column;
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < 8; j++)
#pragma unroll
            for (u32 e = 0; e < 4; e += 2) {
                u32 r = down + 16 * i + lane / 4 + e / 2 * 8, c = across + 8 * j + lane % 4 * 2;
                u32 added = 0;
                if (KIND != GRAM && row0 + r < a.m && column0 + c < columns)
                    added = *(const u32*)(x + (u64)(row0 + r) * columns + column0 + c);
                float low = combined<KIND>(a, __uint_as_float(added << 16), sums[i][j][e], scale);
                float high = combined<KIND>(a, __uint_as_float(added & 0xffff0000u), sums[i][j][e + 1], scale);
                u32 pair = pack(low, high);
                *(u32*)(straight + r * WRITTEN + c) = pair;
                if (mirrored) {
                    turned[c * WRITTEN + r].bits = (unsigned short)pair;
                    turned[(c + 1) * WRITTEN + r].bits = (unsigned short)(pair >> 16);
                }
            }
    __syncthreads();
    bf16* out = (bf16*)a.out + (u64)blockIdx.y * a.m * columns;
    write_tile(out, straight, row0, a.m, column0, columns);
    if (mirrored) write_tile(out, turned, column0, columns, row0, a.m);
#else
    __trap();
#endif
}

EXPORT_PAIR(orthogonalise_tensor_gram, OrthogonaliseArgs, 128, multiply_tile<GRAM>)
EXPORT_PAIR(orthogonalise_tensor_polynomial, OrthogonaliseArgs, 128, multiply_tile<POLYNOMIAL>)
EXPORT_PAIR(orthogonalise_tensor_apply, OrthogonaliseArgs, 128, multiply_tile<APPLY>)
