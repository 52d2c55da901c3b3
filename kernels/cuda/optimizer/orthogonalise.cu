// The Newton-Schulz iteration on every GPU, in f32 or bf16: tiles in shared memory, f32 sums.
#include "orthogonalise.cuh"

// Grid (NORM_PIECES, matrices): the squared norm of a piece.
template <class T>
__device__ void norms(const OrthogonaliseArgs& a) {
    u64 count = (u64)a.m * a.n, piece = (count + NORM_PIECES - 1) / NORM_PIECES, start = blockIdx.x * piece;
    u64 end = start + piece < count ? start + piece : count;
    const T* x = (const T*)a.x + blockIdx.y * count;
    float sum = 0;
    for (u64 i = start + threadIdx.x; i < end; i += 256) sum += load(x[i]) * load(x[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) ((float*)a.out)[blockIdx.y * NORM_PIECES + blockIdx.x] = sum;
}

EXPORT_BOTH(orthogonalise_norms, OrthogonaliseArgs, 256, norms)

constexpr u32 SIDE = 64, DEPTH = 16;

// 16 x 16 threads, each with 4 x 4 sums, 16 apart.
template <class T, Kind KIND>
__device__ void multiply_tile(const OrthogonaliseArgs& a) {
    __shared__ float left[DEPTH][SIDE + 1], right[DEPTH][SIDE + 1];
    float scale = scale_of(a);
    u32 row, column, depth = KIND == GRAM ? a.n : a.m;
    tile_of<KIND>(row, column, (a.n + SIDE - 1) / SIDE);
    const T* x = (const T*)a.x + (u64)blockIdx.y * a.m * a.n;
    const T* p = KIND == APPLY ? (const T*)a.p + (u64)blockIdx.y * a.m * a.m : x;
    u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float sums[4][4] = {};
    for (u32 k0 = 0; k0 < depth; k0 += DEPTH) {
        for (u32 i = threadIdx.x; i < SIDE * DEPTH; i += 256) {
            u32 r = row * SIDE + i / DEPTH, k = k0 + i % DEPTH;
            left[i % DEPTH][i / DEPTH] = r < a.m && k < depth ? load(p[(u64)r * depth + k]) : 0.0f;
            if constexpr (KIND == APPLY) {
                u32 kk = k0 + i / SIDE, c = column * SIDE + i % SIDE;
                right[i / SIDE][i % SIDE] = kk < a.m && c < a.n ? load(x[(u64)kk * a.n + c]) : 0.0f;
            } else {
                u32 c = column * SIDE + i / DEPTH;
                right[i % DEPTH][i / DEPTH] = c < a.m && k < depth ? load(x[(u64)c * depth + k]) : 0.0f;
            }
        }
        __syncthreads();
        for (u32 k = 0; k < DEPTH; k++)
#pragma unroll
            for (u32 i = 0; i < 4; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) sums[i][j] += left[k][16 * i + ty] * right[k][16 * j + tx];
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            write_sum<T, KIND>(a, row * SIDE + 16 * i + ty, column * SIDE + 16 * j + tx, sums[i][j], scale);
}

EXPORT(orthogonalise_gram_f32, OrthogonaliseArgs, 256, multiply_tile<float, GRAM>)
EXPORT(orthogonalise_gram_bf16, OrthogonaliseArgs, 256, multiply_tile<bf16, GRAM>)
EXPORT(orthogonalise_polynomial_f32, OrthogonaliseArgs, 256, multiply_tile<float, POLYNOMIAL>)
EXPORT(orthogonalise_polynomial_bf16, OrthogonaliseArgs, 256, multiply_tile<bf16, POLYNOMIAL>)
EXPORT(orthogonalise_apply_f32, OrthogonaliseArgs, 256, multiply_tile<float, APPLY>)
EXPORT(orthogonalise_apply_bf16, OrthogonaliseArgs, 256, multiply_tile<bf16, APPLY>)
