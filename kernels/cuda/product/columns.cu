// The second pass of sums over rows: adds the partial sums of the pieces, for several operations in one launch.
#include "../vector.cuh"

// The partial sums of one operation.
struct SumsArgs {
    const float* partial;  // [pieces, sums, columns]
    void* out[5];          // [columns] each
    void* copy;            // [columns]: of the last sum, or null
    u32 pieces, sums, columns;
    u32 accumulate;
    u32 reduced;           // whether they are bf16
};

struct FinishArgs {
    SumsArgs of[8];
    u32 ends[8];  // for each operation, the index of the block after its last one
};

namespace {

constexpr u32 ACROSS = 8, AT_ONCE = 8, EACH = 4;

// The number of threads that add the sums of this many pieces. Blocks may have more, for other operations; the order of
// additions depends only on the number of pieces.
__device__ u32 threads_of(u32 pieces) { return min(((pieces + EACH - 1) / EACH * ACROSS + 31) / 32 * 32, 1024u); }

template <class T>
__device__ void put(const SumsArgs& a, u32 sum, u32 column, float total) {
    T* out = (T*)a.out[sum] + column;
    T stored = store<T>(a.accumulate ? load(*out) + total : total);
    *out = stored;
    if (a.copy && sum + 1 == a.sums) ((T*)a.copy)[column] = stored;
}

// Adds 8 columns of one sum; the threads take the pieces in turn.
__device__ void add_pieces(const SumsArgs& a, u32 sum, u32 first) {
    __shared__ float warps[32][ACROSS];
    u32 lane = threadIdx.x % 32, x = lane % ACROSS, column = first + x, threads = threads_of(a.pieces);
    u32 step = threads / ACROSS;
    float total = 0;
    if (threadIdx.x < threads)
        for (u32 p = threadIdx.x / ACROSS; p < a.pieces; p += AT_ONCE * step) {
            // All are loaded before any is added.
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
    // Sums over the lanes that have the same column.
    auto add_up = [](float own) {
        for (u32 apart = ACROSS; apart < 32; apart *= 2) own += __shfl_xor_sync(FULL_WARP, own, apart);
        return own;
    };
    total = add_up(total);
    if (lane < ACROSS) warps[threadIdx.x / 32][x] = total;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    total = 0;
    for (u32 w = lane / ACROSS; w < threads / 32; w += 32 / ACROSS) total += warps[w][x];
    total = add_up(total);
    if (lane >= ACROSS || column >= a.columns) return;
    a.reduced ? put<bf16>(a, sum, column, total) : put<float>(a, sum, column, total);
}

// A block has 8 columns of one sum.
__device__ void finish(const FinishArgs& a) {
    u32 which = 0, block = blockIdx.x;
    while (block >= a.ends[which]) which++;
    if (which > 0) block -= a.ends[which - 1];
    const SumsArgs& sums = a.of[which];
    u32 across = (sums.columns + ACROSS - 1) / ACROSS;
    add_pieces(sums, block / across, block % across * ACROSS);
}

}  // namespace

EXPORT(finish_columns, FinishArgs, 1024, finish)
