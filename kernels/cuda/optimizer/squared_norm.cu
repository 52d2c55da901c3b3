// The squared norm of all gradients: pieces in f32, then the pieces in order in f64.
#include "../control.cuh"
#include "../vector.cuh"

struct SquaredNormArgs {
    const void* gradient;  // [count]: f32, or bf16
    float* partial;    // [pieces]
    Results* results;  // the squared norm is written
    u64 count;
    u32 pieces, piece;
};

// One block for each piece.
template <class T>
__device__ void sum_piece(const SquaredNormArgs& a) {
    u64 start = (u64)blockIdx.x * a.piece;
    u64 end = start + a.piece < a.count ? start + a.piece : a.count;
    float sum = 0;
    const T* gradient = (const T*)a.gradient;
    constexpr int N = WIDE<T>;
    // 16 bytes at a time from a multiple of 16 bytes on.
    u64 middle = (u64)gradient % 16 == 0 ? end - (end - start) % N : start;
#pragma unroll 8
    for (u64 i = start + N * threadIdx.x; i < middle; i += N * 256) {
        float x[N];
        read(x, gradient + i);
#pragma unroll
        for (int e = 0; e < N; e += 4) sum += x[e] * x[e] + x[e + 1] * x[e + 1] + (x[e + 2] * x[e + 2] + x[e + 3] * x[e + 3]);
    }
    for (u64 i = middle + threadIdx.x; i < end; i += 256) {
        float x = load(gradient[i]);
        sum += x * x;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

EXPORT_BOTH(squared_norm_piece, SquaredNormArgs, 256, sum_piece)

// One block: 256 partial sums, then those in order.
template <class Norm>
__device__ void sum_all(u32 pieces, Results* results, Norm norm) {
    __shared__ double sums[256];
    double sum = 0;
    for (u32 i = threadIdx.x; i < pieces; i += 256) sum += norm(i);
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    double total = 0;
    for (u32 i = 0; i < 256; i++) total += sums[i];
    results->squared_norm = (float)total;
}

__device__ void sum_pieces(const SquaredNormArgs& a) {
    sum_all(a.pieces, a.results, [&](u32 i) { return a.partial[i]; });
}

EXPORT(squared_norm_finish, SquaredNormArgs, 256, sum_pieces)

// For a table whose sections ranks share; the norms of a rank's pieces are contiguous.
struct SumNormsArgs {
    const float* norms;  // [ranks, each]
    Results* results;    // the squared norm is written
    u32 pieces[3];       // of the section before the layers, of a layer, of the section after the layers
    u32 layers;
    u32 shares[3];  // the largest share of each that any rank has
    u32 turns[3];   // whether sections of this kind are assigned to the ranks as a whole, in turn
    u32 ranks;
    u32 each;  // all pieces of each rank
};

// The norm of piece i of the table.
__device__ float norm_of(const SumNormsArgs& a, u32 i) {
    // Layers are assigned first.
    u32 start = 0, section = 0, turn = a.layers;
    if (i >= a.pieces[0]) {
        i -= a.pieces[0];
        start = a.shares[0];
        section = i < a.layers * a.pieces[1] ? 1 : 2;
        u32 layer = section == 1 ? i / a.pieces[1] : a.layers;
        i -= layer * a.pieces[1];
        start += layer * a.shares[1];
        turn = section == 1 ? layer : a.layers + 1;
    }
    u32 share = a.shares[section];
    u32 rank = (i / share + (a.turns[section] ? turn : 0)) % a.ranks;
    return a.norms[(u64)rank * a.each + start + i % share];
}

__device__ void sum_norms_of_ranks(const SumNormsArgs& a) {
    u32 pieces = a.pieces[0] + a.layers * a.pieces[1] + a.pieces[2];
    sum_all(pieces, a.results, [&](u32 i) { return norm_of(a, i); });
}

EXPORT(sum_norms, SumNormsArgs, 256, sum_norms_of_ranks)
