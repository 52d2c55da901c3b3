// The states of a rule: f32, or blocks of 128 numbers in 8 bits, as in core's `compressed`. A thread has N neighbours,
// which are a part of one block; the threads with the parts of a block are adjacent in a warp.
#pragma once
#include "../vector.cuh"

constexpr u32 BLOCK = 128, BLOCK_BYTES = 4 + BLOCK;

struct Plain {
    static constexpr bool CODED = false;

    template <int N>
    __device__ static void read(float (&x)[N], const void* table, u64 at, bool) {
        ::read(x, (const float*)table + at);
    }
    template <int N>
    __device__ static void write(void* table, u64 at, const float (&x)[N], bool) {
        ::write((float*)table + at, x);
    }
};

// Codes of momenta, or of squares.
template <bool SQUARES>
struct Coded {
    static constexpr bool CODED = true;

    // Conversions have a quarter of an addition's throughput: floats of 2^23 and more have integers in their low bits.
    __device__ static float decode(u32 code, float scale) {
        if (!SQUARES) {
            float c = __uint_as_float(0x4b000000u | (code ^ 0x80u)) - 8388736.0f;
            return __fdividef(c, 254.0f - fabsf(c)) * scale;
        }
        float c = __uint_as_float(0x4b000000u | code) - 8388608.0f, root = c * c;
        return root * root * (1.0f / (65025.0f * 65025.0f)) * scale;
    }

    __device__ static u32 encode(float x, float inverse) {
        constexpr float ROUND = 12582912.0f;
        float share = x * inverse;
        if (!SQUARES) return __float_as_uint(__fdividef(254.0f * share, 1.0f + fabsf(share)) + ROUND) & 0xff;
        // The fourth root; 0 for 0.
        u32 code = __float_as_uint(255.0f * rsqrtf(rsqrtf(share)) + ROUND) & 0xff;
        return code == 0 && share > 0.0f ? 1 : code;
    }

    // A thread without elements reads zeros.
    template <int N>
    __device__ static void read(float (&x)[N], const void* table, u64 at, bool has) {
        static_assert(N % 4 == 0, "codes are read in words");
        const char* block = (const char*)table + at / BLOCK * BLOCK_BYTES;
        float scale = has ? *(const float*)block : 0.0f;
        const u32* codes = (const u32*)(block + 4 + at % BLOCK);
#pragma unroll
        for (int w = 0; w < N / 4; w++) {
            u32 word = has ? codes[w] : 0;
#pragma unroll
            for (int i = 0; i < 4; i++) x[4 * w + i] = decode(word >> 8 * i & 0xff, scale);
        }
    }

    // All threads of a warp must call this.
    template <int N>
    __device__ static void write(void* table, u64 at, const float (&x)[N], bool has) {
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) largest = fmaxf(largest, has ? fabsf(x[i]) : 0.0f);
#pragma unroll
        for (int lane = BLOCK / N / 2; lane > 0; lane /= 2) largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, lane));
        if (!has) return;
        // 2^-100.
        bool none = largest < 7.88860905e-31f;
        float inverse = none ? 0.0f : 1.0f / largest;
        char* block = (char*)table + at / BLOCK * BLOCK_BYTES;
        if (at % BLOCK == 0) *(float*)block = none ? 0.0f : largest;
        u32* codes = (u32*)(block + 4 + at % BLOCK);
#pragma unroll
        for (int w = 0; w < N / 4; w++) {
            u32 word = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) word |= encode(x[4 * w + i], inverse) << 8 * i;
            codes[w] = word;
        }
    }
};

using Moments8 = Coded<false>;
using Squares8 = Coded<true>;
