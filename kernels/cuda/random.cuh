// Random numbers as a function of key and counter: Philox4x32-10 (Salmon et al. 2011), as in core/src/random.rs.
#pragma once
#include "common.cuh"

// Replaces `counter` with its block of four words.
__device__ inline void philox(u32 (&counter)[4], u32 low, u32 high) {
#pragma unroll
    for (u32 round = 0; round < 10; round++) {
        u64 a = (u64)counter[0] * 0xD2511F53u, b = (u64)counter[2] * 0xCD9E8D57u;
        u32 first = (u32)(b >> 32) ^ counter[1] ^ low, third = (u32)(a >> 32) ^ counter[3] ^ high;
        counter[0] = first, counter[1] = (u32)b, counter[2] = third, counter[3] = (u32)a;
        low += 0x9E3779B9u, high += 0xBB67AE85u;
    }
}
