// Floats of 8 bits: E4M3 for values, E5M2 for gradients. Nearest, ties to even, saturating; NaN becomes 0x7f, and in a copy
// so does what is infinite.
// core/src/fp8.rs says what they are.
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
    // In units of the smallest number, which a sum with 2^23 rounds to whole ones.
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

// What a code in E4M3 stands for, in plain arithmetic.
__device__ inline float value_of_e4m3(u32 code) {
    // Exponent and mantissa where an f32 has them; the product moves the bias, and takes the smallest numbers along.
    float magnitude = __uint_as_float((code & 0x7fu) << 20) * __uint_as_float((127 + 127 - E4m3::BIAS) << 23);
    u32 bits = (code & 0x7fu) == 0x7fu ? 0x7fc00000u : __float_as_uint(magnitude);
    return __uint_as_float(bits | (code & 0x80u) << 24);
}

// What four neighbouring codes in E4M3 stand for.
__device__ inline void expand_all(float* x, u32 codes) {
#ifdef EIGHT_BIT_UNITS
    expand_e4m3((unsigned short)codes, x[0], x[1]);
    expand_e4m3((unsigned short)(codes >> 16), x[2], x[3]);
#else
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = value_of_e4m3(codes >> 8 * i & 0xffu);
#endif
}

// |x| where it is finite, else 0: what a scale may be made of.
__device__ inline float finite_magnitude(float x) {
    float magnitude = fabsf(x);
    return __float_as_uint(magnitude) < 0x7f800000u ? magnitude : 0.0f;
}

// What is encoded: x times the scale, and NaN where x is infinite.
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

// What a block's first thread sees at `amax` before it has work to wait for; the others keep away from the one address.
__device__ inline float seen_by_first(const float* amax) {
    return threadIdx.x == 0 ? *(const volatile float*)amax : 0.0f;
}

// `amax` = max(amax, the block's largest): every thread of the block brings its own, the first one what it saw there
// before. Floats that are not negative are in the order of their bits, so the result does not depend on who comes
// first.
__device__ inline void note_largest(float* amax, float largest, float seen) {
    __shared__ float warps[32];
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = largest;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 w = 1; w < blockDim.x / 32; w++) largest = fmaxf(largest, warps[w]);
        // Most blocks start after somebody had as much, and leave the address alone.
        if (largest > seen) atomicMax((u32*)amax, __float_as_uint(largest));
    }
}

// Where an operation that writes a tensor puts a copy of it.
struct CopyArgs {
    unsigned char* codes;
    const float* scale;
    float* amax;
};

// No copy: nothing is left of it in a kernel.
struct Uncopied {};

// A block's part of a copy in format F.
template <class F>
struct Copier {
    unsigned char* codes;
    float scale, seen, largest = 0;

    __device__ Copier(const CopyArgs& a) : codes(a.codes), scale(*a.scale), seen(seen_by_first(a.amax)) {}

    // Codes of neighbouring values, which have been rounded to what is stored.
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

    // Their codes.
    template <int N, int M>
    __device__ void convert(u32 (&words)[M], const float (&x)[N]) {
        static_assert(N == 4 * M, "whole words");
#pragma unroll
        for (int i = 0; i < N; i++) largest = fmaxf(largest, finite_magnitude(x[i]));
        codes_of_all<F>(words, x, scale);
    }

    // Every thread of the block comes here.
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
