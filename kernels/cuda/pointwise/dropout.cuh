// The dropped elements of a row: see core/src/ops/pointwise/dropout.rs.
#pragma once
#include "../random.cuh"

struct DropArgs {
    const u32* key;  // [2]; null for no dropout
    u32 place;
    u32 first_kept;  // of the 2^16 random numbers
    float factor;    // of the elements that stay
};

// N neighbours of a row, beginning at a multiple of N; eight share one block of random numbers.
template <int N>
__device__ inline void drop(const DropArgs& a, u32 row, u32 column, float (&x)[N]) {
    static_assert(8 % N == 0, "within a group");
    u32 words[4] = {column / 8, row, a.place, 0};
    philox(words, a.key[0], a.key[1]);
#pragma unroll
    for (int i = 0; i < N; i++) {
        // Without a constant index, `words` would be in memory.
        u32 at = N == 8 ? i : column % 8 + i;
        u32 word = N == 8 ? words[i / 2] : at < 4 ? (at < 2 ? words[0] : words[1]) : (at < 6 ? words[2] : words[3]);
        u32 drawn = word >> 16 * (at % 2) & 0xffffu;
        x[i] = drawn < a.first_kept ? 0.0f : x[i] * a.factor;
    }
}
