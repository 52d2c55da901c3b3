// The average of parameters over steps, and the swap of both.
#include "moved.cuh"

struct AverageArgs {
    void* weight;       // [count]
    void* remainder;    // [count]: remainders of bf16 weights, or null
    float* average;     // [count]
    const Settings* settings;
    const Results* results;
    u64 count;
    u32 wide;           // whether all begin at multiples of 16 bytes
    u32 upper;          // whether a remainder is the upper 8 of its 16 bits
};

// Rounds f32 to the values that splitting and joining preserves: see `split`.
template <int N>
__device__ inline void as_split(float (&x)[N], bool upper) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        u32 bits = __float_as_uint(x[i]);
        if (upper) {
            float rounded = load(store<bf16>(x[i]));
            x[i] = __uint_as_float(__float_as_uint(rounded) + ((u32)upper_of(lacking(x[i], rounded)) << 8));
        } else {
            x[i] = __uint_as_float((bits & 0x1ffff) == 0x8000 ? bits - 1 : bits);
        }
    }
}

// Each operation is rounded by itself: the same bits as on every other device.
template <class T>
__device__ void average(const AverageArgs& a) {
    float c = a.settings->average;
    bool sound = finite(sqrtf(a.results->squared_norm)) && finite(a.results->loss);
    if (c == 0.0f || c != 1.0f && !sound) return;
    each_wide<T>(a.count, a.wide, [&](auto n, u64 at) {
        constexpr int N = decltype(n)::value;
        float w[N], old[N];
        read(w, (const T*)a.weight + at);
        read(old, a.average + at);
        if constexpr (sizeof(T) == sizeof(bf16)) join(w, a.remainder, at, a.upper);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float moved = __fadd_rn(old[i], __fmul_rn(__fsub_rn(w[i], old[i]), c));
            w[i] = c == 1.0f ? w[i] : moved;
        }
        if constexpr (sizeof(T) == sizeof(bf16)) as_split(w, a.upper);
        write(a.average + at, w);
    });
}

template <class T>
__device__ void exchange(const AverageArgs& a) {
    each_wide<T>(a.count, a.wide, [&](auto n, u64 at) {
        constexpr int N = decltype(n)::value;
        float w[N], old[N];
        T* weight = (T*)a.weight + at;
        read(w, weight);
        read(old, a.average + at);
        if constexpr (sizeof(T) == sizeof(bf16)) {
            join(w, a.remainder, at, a.upper);
            split(weight, a.remainder, at, old, a.upper);
        } else {
            write(weight, old);
        }
        write(a.average + at, w);
    });
}

EXPORT(average_f32, AverageArgs, 256, average<float>)
EXPORT(average_bf16, AverageArgs, 256, average<bf16>)
EXPORT(exchange_f32, AverageArgs, 256, exchange<float>)
EXPORT(exchange_bf16, AverageArgs, 256, exchange<bf16>)
