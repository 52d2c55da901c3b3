// Floats of 8 bits: E4M3 for values, E5M2 for gradients. Nearest, ties to even, saturating; NaN becomes 0x7f, and in a
// copy so does infinity. core/src/fp8.rs defines the formats.
#pragma once
#include "vector.cuh"

// Largest number, mantissa bits and bias of each.
struct E4m3 {
    static constexpr float MAX = 448.0f;
    static constexpr u32 MANTISSA = 3, BIAS = 7;
};
struct E5m2 {
    static constexpr float MAX = 57344.0f;
    static constexpr u32 MANTISSA = 2, BIAS = 15;
};

// The conversion in plain arithmetic, for GPUs before compute capability 8.9 and for the stand-in.
template <class F>
__device__ inline u32 code_of(float x) {
    u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80u;
    float magnitude = fabsf(x);
    if (magnitude != magnitude) return 0x7fu;
    bits = __float_as_uint(magnitude > F::MAX ? F::MAX : magnitude);
    constexpr u32 CUT = 23 - F::MANTISSA;
    if (bits >= (128 - F::BIAS) << 23)
        return sign | (((bits + (1u << (CUT - 1)) - 1 + (bits >> CUT & 1)) >> CUT) - ((127 - F::BIAS) << F::MANTISSA));
    // In units of the smallest number; adding 2^23 rounds to whole units.
    float units = __uint_as_float(bits) * __uint_as_float((126 + F::BIAS + F::MANTISSA) << 23);
    return sign | (__float_as_uint(units + 8388608.0f) & 0xffu);
}

// Four codes, the first in the lowest byte.
template <class F>
__device__ inline u32 codes_of(float a, float b, float c, float d) {
#ifdef EIGHT_BIT_UNITS
    if constexpr (F::MANTISSA == 3)
        return (u32)convert_e4m3(a, b) | (u32)convert_e4m3(c, d) << 16;
    else
        return (u32)convert_e5m2(a, b) | (u32)convert_e5m2(c, d) << 16;
#else
    return code_of<F>(a) | code_of<F>(b) << 8 | code_of<F>(c) << 16 | code_of<F>(d) << 24;
#endif
}

// The number of a code in E4M3, in plain arithmetic.
__device__ inline float value_of_e4m3(u32 code) {
    // Moves exponent and mantissa to their position in an f32; the multiplication corrects the bias, also of subnormal
    // numbers.
    float magnitude = __uint_as_float((code & 0x7fu) << 20) * __uint_as_float((127 + 127 - E4m3::BIAS) << 23);
    u32 bits = (code & 0x7fu) == 0x7fu ? 0x7fc00000u : __float_as_uint(magnitude);
    return __uint_as_float(bits | (code & 0x80u) << 24);
}

// The numbers of four neighbouring codes in E4M3.
__device__ inline void expand_all(float* x, u32 codes) {
#ifdef EIGHT_BIT_UNITS
    expand_e4m3((unsigned short)codes, x[0], x[1]);
    expand_e4m3((unsigned short)(codes >> 16), x[2], x[3]);
#else
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = value_of_e4m3(codes >> 8 * i & 0xffu);
#endif
}

// |x| where it is finite, else 0: a value that may determine a scale.
__device__ inline float finite_magnitude(float x) {
    float magnitude = fabsf(x);
    return __float_as_uint(magnitude) < 0x7f800000u ? magnitude : 0.0f;
}

// The value to encode: x times the scale, or NaN where x is infinite.
__device__ inline float scaled(float x, float scale) { return x * scale - (x - x); }

// The codes of neighbouring values.
template <class F, int N, int M>
__device__ inline void codes_of_all(u32 (&words)[M], const float (&x)[N], float scale) {
    static_assert(N == 4 * M, "whole words");
#pragma unroll
    for (int i = 0; i < M; i++)
        words[i] = codes_of<F>(scaled(x[4 * i], scale), scaled(x[4 * i + 1], scale), scaled(x[4 * i + 2], scale),
                               scaled(x[4 * i + 3], scale));
}

// The value of `amax` that a block's first thread reads before its work; the other threads do not access this address.
__device__ inline float seen_by_first(const float* amax) {
    return threadIdx.x == 0 ? *(const volatile float*)amax : 0.0f;
}

// `amax` = max(amax, the block's largest): every thread of the block passes its own largest value, the first thread
// also the value that it read before. Non-negative floats are ordered as their bits, so the result does not depend on
// the order of blocks.
__device__ inline void note_largest(float* amax, float largest, float seen) {
    __shared__ float warps[32];
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = largest;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 w = 1; w < blockDim.x / 32; w++) largest = fmaxf(largest, warps[w]);
        // Most blocks start after another block has stored a larger value, and skip the atomic operation.
        if (largest > seen) atomicMax((u32*)amax, __float_as_uint(largest));
    }
}

// The destination of the copy of a tensor that an operation writes.
struct CopyArgs {
    unsigned char* codes;
    const float* scale;
    float* amax;
};

// No copy: compiles to nothing.
struct Uncopied {};

// A block's part of a copy in format F.
template <class F>
struct Copier {
    unsigned char* codes;
    float scale, seen, largest = 0;

    __device__ Copier(const CopyArgs& a) : codes(a.codes), scale(*a.scale), seen(seen_by_first(a.amax)) {}

    // Writes the codes of neighbouring values, which are already rounded to the stored type.
    template <int N>
    __device__ void put(u64 at, const float (&x)[N]) {
        static_assert(N == 1 || N % 4 == 0, "whole words");
        if constexpr (N == 1) {
            largest = fmaxf(largest, finite_magnitude(x[0]));
            codes[at] = codes_of<F>(scaled(x[0], scale), 0, 0, 0) & 0xffu;
        } else {
            Words<N / 4> out;
            convert(out.x, x);
            *(Words<N / 4>*)(codes + at) = out;
        }
    }

    // Converts them to codes.
    template <int N, int M>
    __device__ void convert(u32 (&words)[M], const float (&x)[N]) {
        static_assert(N == 4 * M, "whole words");
#pragma unroll
        for (int i = 0; i < N; i++) largest = fmaxf(largest, finite_magnitude(x[i]));
        codes_of_all<F>(words, x, scale);
    }

    // Every thread of the block must call this.
    __device__ void finish(const CopyArgs& a) { note_largest(a.amax, largest, seen); }

private:
    template <int N>
    struct alignas(4 * N) Words {
        u32 x[N];
    };
};

template <>
struct Copier<Uncopied> {
    __device__ Copier(const CopyArgs&) {}
    template <int N>
    __device__ void put(u64, const float (&)[N]) {}
    __device__ void finish(const CopyArgs&) {}
};
