// The operands that every update rule has in addition to its own state: parameters, with the masters of bf16, and the
// global clip.
#pragma once
#include "../control.cuh"
#include "../random.cuh"
#include "states.cuh"

// The GPU's form of core's Moved.
struct MovedArgs {
    void* weight;           // [count]
    void* remainder;        // [count]: remainders of bf16 weights, or null
    const void* gradient;   // [count]: f32, or bf16
    const Settings* settings;
    const Results* results;
    u64 count;
    u32 group;              // the group whose corrections are read
    float rate, decay;      // factor of the learning rate; weight decay
    u32 wide;               // whether all begin at multiples of 16 bytes
    u32 upper;              // whether a remainder is the upper 8 of its 16 bits
};

// N remainders of 8 bits.
template <int N>
struct alignas(N) Uppers {
    signed char x[N];
};

// Turns bf16 weights into their f32 masters, with the remainders from `at` on.
template <int N>
__device__ inline void join(float (&w)[N], const void* remainder, u64 at, bool upper) {
    if (upper) {
        Uppers<N> lacks = *(const Uppers<N>*)((const signed char*)remainder + at);
#pragma unroll
        for (int i = 0; i < N; i++) w[i] = __uint_as_float(__float_as_uint(w[i]) + ((u32)(int)lacks.x[i] << 8));
        return;
    }
    Vector<short, N> lacks = fetch<short, N>((const short*)remainder + at);
#pragma unroll
    for (int i = 0; i < N; i++) w[i] = __uint_as_float(__float_as_uint(w[i]) + (u32)(int)lacks.x[i]);
}

// The remainder of `w`: the difference of its bits to those of its bf16 rounding. It must fit in a short, whose largest
// value is 0x7fff: a `w` halfway between two bf16 that is rounded down loses one unit in the last place.
__device__ inline int lacking(float w, float rounded) {
    int more = (int)(__float_as_uint(w) - __float_as_uint(rounded));
    return more < 0x7fff ? more : 0x7fff;
}

// The upper 8 bits of a remainder, to the nearest.
__device__ inline int upper_of(int lacks) {
    int upper = (lacks + 128) >> 8;
    return upper > 127 ? 127 : upper < -127 ? -127 : upper;
}

// Writes the bf16 nearest to `w`, and the remainder of `w`.
template <int N>
__device__ inline void split(bf16* weight, void* remainder, u64 at, const float (&w)[N], bool upper) {
    float rounded[N];
#pragma unroll
    for (int i = 0; i < N; i++) rounded[i] = w[i];
    write_rounded(weight, rounded);
    if (upper) {
        Uppers<N> lacks;
#pragma unroll
        for (int i = 0; i < N; i++) lacks.x[i] = (signed char)upper_of(lacking(w[i], rounded[i]));
        *(Uppers<N>*)((signed char*)remainder + at) = lacks;
        return;
    }
    Vector<short, N> lacks;
#pragma unroll
    for (int i = 0; i < N; i++) lacks.x[i] = (short)lacking(w[i], rounded[i]);
    *(Vector<short, N>*)((short*)remainder + at) = lacks;
}

// Writes the bf16 next to `w`, rounded up or down by the random numbers of this step and group, as core's Dither. `at`
// is the index of the first weight, a multiple of N.
template <int N>
__device__ inline void dither(bf16* weight, u64 at, const float (&w)[N], const Results* results, u32 group) {
    static_assert(N == 1 || N == 8, "a block of random numbers is for eight");
    u32 words[4] = {(u32)(at / 8), (u32)(at / 8 >> 32), group, 0};
    philox(words, __float_as_uint(results->loss), __float_as_uint(results->squared_norm));
    float rounded[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        u32 place = N == 1 ? (u32)at % 8 : i, word = words[place / 2], bits = __float_as_uint(w[i]);
        u32 random = word >> 16 * (place % 2) & 0xffff;
        rounded[i] = w[i] != w[i] ? w[i] : __uint_as_float((bits + random) & 0xffff0000u);
    }
    write(weight, rounded);
}

// Calls `element(i, w, g)` for N parameters and their clipped gradients, and stores each changed `w`.
template <class T, class G, int N, class F>
__device__ inline void move(const MovedArgs& a, u64 at, float clip, F element) {
    float g[N], w[N];
    read(g, (const G*)a.gradient + at);
    T* weight = (T*)a.weight + at;
    read(w, weight);
    if constexpr (sizeof(T) == sizeof(bf16)) {
        if (a.remainder) join(w, a.remainder, at, a.upper);
    }
#pragma unroll
    for (int i = 0; i < N; i++) w[i] = element(i, w[i], g[i] * clip);
    if constexpr (sizeof(T) == sizeof(bf16)) {
        if (a.remainder) return split(weight, a.remainder, at, w, a.upper);
        return dither(weight, at, w, a.results, a.group);
    }
    write(weight, w);
}

// Calls `some(n, at, clip, has)` for every n parameters from `at` on. Does nothing for a norm or loss that is not
// finite. Where states are in blocks, every thread of a warp calls it, even without parameters.
template <class T, bool CODED, class F>
__device__ inline void each_moved(const MovedArgs& a, F some) {
    float norm = sqrtf(a.results->squared_norm);
    if (!finite(norm) || !finite(a.results->loss)) return;
    float clip = fminf(a.settings->clip / (norm + 1e-6f), 1.0f);
    if constexpr (CODED) {
        u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * WIDE<T>;
        some(Count<WIDE<T>>(), at, clip, at < a.count);
    } else {
        each_wide<T>(a.count, a.wide, [&](auto n, u64 at) { some(n, at, clip, true); });
    }
}

// Exports the kernels of a rule, a template of the types of weights and gradients and of whether states are in blocks.
#define EXPORT_RULE(name, Args)                                   \
    EXPORT(name##_f32_f32, Args, 256, name<float, float, false>)  \
    EXPORT(name##_bf16_f32, Args, 256, name<bf16, float, false>)  \
    EXPORT(name##_bf16_bf16, Args, 256, name<bf16, bf16, false>)  \
    EXPORT(name##_f32_f32_8, Args, 256, name<float, float, true>) \
    EXPORT(name##_bf16_f32_8, Args, 256, name<bf16, float, true>) \
    EXPORT(name##_bf16_bf16_8, Args, 256, name<bf16, bf16, true>)
