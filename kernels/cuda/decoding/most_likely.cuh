// The most likely token: the largest logit, the lower id of a tie, encoded as one word that a maximum over all words
// finds.
#pragma once
#include "../common.cuh"
#include "../ptx.cuh"

// A word ordered as its logit: the float's bits, mapped to ordered integers, in the upper half, and the inverted id in
// the lower half, so that a lower id is larger. 0 is below all.
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

// The largest value over a block of THREADS, a power of two; thread 0 receives it.
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

// The operands of MostLikely.
struct MostLikelyArgs {
    const float* logits;  // [vocabulary]
    const u32* limit;     // [1]: ids from this one on are never chosen
    u32* id;              // [1]
    u32* cursor;          // [1]
    u32* chosen;          // [places]
    u32 vocabulary, places;
};
