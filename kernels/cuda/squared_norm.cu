// The squared norm of all gradients: pieces in f32, then the pieces in order in f64.
#include "control.cuh"
#include "vector.cuh"

struct SquaredNormArgs {
    const float* gradient;
    float* partial;    // [pieces]
    Results* results;  // the squared norm is written
    u64 count;
    u32 pieces, piece;
};

// A block a piece.
__device__ void sum_piece(const SquaredNormArgs& a) {
    u64 start = (u64)blockIdx.x * a.piece;
    u64 end = start + a.piece < a.count ? start + a.piece : a.count;
    float sum = 0;
    // 16 bytes at a time where they begin at a multiple of it.
    u64 middle = (u64)a.gradient % 16 == 0 ? end - (end - start) % 4 : start;
#pragma unroll 8
    for (u64 i = start + 4 * threadIdx.x; i < middle; i += 4 * 256) {
        float x[4];
        read(x, a.gradient + i);
        sum += x[0] * x[0] + x[1] * x[1] + (x[2] * x[2] + x[3] * x[3]);
    }
    for (u64 i = middle + threadIdx.x; i < end; i += 256) sum += a.gradient[i] * a.gradient[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

EXPORT(squared_norm_piece, SquaredNormArgs, 256, sum_piece)

// One block: 256 running sums, then those in order.
__device__ void sum_pieces(const SquaredNormArgs& a) {
    __shared__ double sums[256];
    double sum = 0;
    for (u32 i = threadIdx.x; i < a.pieces; i += 256) sum += a.partial[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    double total = 0;
    for (u32 i = 0; i < 256; i++) total += sums[i];
    a.results->squared_norm = (float)total;
}

EXPORT(squared_norm_finish, SquaredNormArgs, 256, sum_pieces)
