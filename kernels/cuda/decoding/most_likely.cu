// The most likely token in a separate kernel: one block, which reads as fast as one block can.
#include "most_likely.cuh"

constexpr u32 THREADS = 1024;

__device__ void choose(const MostLikelyArgs& a) {
    u64 best = 0;
    u32 end = min(a.vocabulary, *a.limit);
#pragma unroll 8
    for (u32 i = threadIdx.x; i < end; i += THREADS) {
        u64 own = candidate(a.logits[i], i);
        best = own > best ? own : best;
    }
    best = block_largest<THREADS>(best);
    if (threadIdx.x == 0) {
        u32 id = chosen_id(best), now = *a.cursor;
        a.chosen[now % a.places] = *a.id = id;
        *a.cursor = now + 1;
    }
}

EXPORT(most_likely, MostLikelyArgs, THREADS, choose)
