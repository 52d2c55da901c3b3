// The most likely token: the largest logit, the lower id of two, as one word that a maximum over all of them finds.
#pragma once
#include "../common.cuh"
#include "../ptx.cuh"

// Words of ids in a larger order: bits of floats ordered as integers in the upper half, ids in the lower one, the lower
// id the larger. 0 is below all.
__device__ inline u64 candidate(float logit, u32 id) {
    u32 bits = __float_as_uint(logit), ordered = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    return (u64)ordered << 32 | (u32)~id;
}

constexpr u32 NO_TOKEN = 0xffffffffu;

__device__ inline float candidate_logit(u64 of) {
    u32 ordered = (u32)(of >> 32);
    return __uint_as_float(ordered ^ (ordered >> 31 ? 0x80000000u : 0xffffffffu));
}

// The id of the largest candidate, where its logit is finite.
__device__ inline u32 chosen_id(u64 best) { return finite(candidate_logit(best)) ? ~(u32)best : NO_TOKEN; }

// The largest over a block of THREADS, a power of two; thread 0 gets it.
template <u32 THREADS>
__device__ inline u64 block_largest(u64 own) {
    __shared__ u64 held[THREADS];
    held[threadIdx.x] = own;
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half && held[threadIdx.x + half] > held[threadIdx.x])
            held[threadIdx.x] = held[threadIdx.x + half];
    }
    return held[0];
}

// What MostLikely reads and writes.
struct MostLikelyArgs {
    const float* logits;  // [vocabulary]
    const u32* limit;     // [1]: ids from here on are never chosen
    u32* id;              // [1]
    u32* cursor;          // [1]
    u32* chosen;          // [places]
    u32 vocabulary, places;
};
