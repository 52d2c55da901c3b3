// A head of queries or keys, processed by a part of a warp.
#pragma once
#include "../attention/heads.cuh"
#include "../vector.cuh"

// The sum over `LANES` neighbouring threads, which each of them receives. All threads of the warp must call it.
template <int LANES>
__device__ inline float lanes_sum(float x) {
    for (int lane = LANES / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(FULL_WARP, x, lane);
    return x;
}

// The index of the first element of head `at`, counted over all rows' queries and keys, in the projections.
__device__ inline u64 head_start(const Heads& heads, u64 at) {
    u32 count = heads.queries + heads.keys, head = at % count;
    u32 place = head < heads.queries ? heads.query(head) : heads.key(head - heads.queries);
    return at / count * heads.width() + place;
}

// Whether head `at` is a key.
__device__ inline bool is_key(const Heads& heads, u64 at) { return at % (heads.queries + heads.keys) >= heads.queries; }
