// What every rule of update reads and writes besides its own state: parameters, with the masters of bf16, and the global
// clip.
#pragma once
#include "../control.cuh"
#include "../vector.cuh"

// What core's Moved is on a GPU.
struct MovedArgs {
    void* weight;           // [count]
    short* remainder;       // [count]: what bf16 lack of the f32 that move, or null
    const void* gradient;   // [count]: f32, or bf16
    const Settings* settings;
    const Results* results;
    u64 count;
    u32 group;              // whose corrections are read
    float rate, decay;      // factor of the learning rate; weight decay
    u32 wide;               // whether all begin at multiples of 16 bytes
};

// Makes of bf16 the f32 that they are the rounding of.
template <int N>
__device__ inline void join(float (&w)[N], const short* remainder) {
    Vector<short, N> lacks = fetch<short, N>(remainder);
#pragma unroll
    for (int i = 0; i < N; i++) w[i] = __uint_as_float(__float_as_uint(w[i]) + (u32)(int)lacks.x[i]);
}

// Writes the bf16 nearest to `w`, and what `w` is more than they are. The most that a short holds is 0x7fff: a `w` halfway
// between two bf16 that was rounded down loses one unit.
template <int N>
__device__ inline void split(bf16* weight, short* remainder, const float (&w)[N]) {
    float rounded[N];
    Vector<short, N> lacks;
#pragma unroll
    for (int i = 0; i < N; i++) rounded[i] = w[i];
    write_rounded(weight, rounded);
#pragma unroll
    for (int i = 0; i < N; i++) {
        int more = (int)(__float_as_uint(w[i]) - __float_as_uint(rounded[i]));
        lacks.x[i] = (short)(more < 0x7fff ? more : 0x7fff);
    }
    *(Vector<short, N>*)remainder = lacks;
}

// Calls `element(i, w, g)` for N parameters and their clipped gradients, and writes what it makes of each `w`.
template <class T, class G, int N, class F>
__device__ inline void move(const MovedArgs& a, u64 at, float clip, F element) {
    float g[N], w[N];
    read(g, (const G*)a.gradient + at);
    T* weight = (T*)a.weight + at;
    read(w, weight);
    if constexpr (sizeof(T) == sizeof(bf16)) {
        if (a.remainder) join(w, a.remainder + at);
    }
#pragma unroll
    for (int i = 0; i < N; i++) w[i] = element(i, w[i], g[i] * clip);
    if constexpr (sizeof(T) == sizeof(bf16)) {
        if (a.remainder) return split(weight, a.remainder + at, w);
    }
    write(weight, w);
}

// Calls `some(n, at, clip)` for every n parameters from `at` on. A norm or a loss that is not finite changes nothing.
template <class T, class F>
__device__ inline void each_moved(const MovedArgs& a, F some) {
    float norm = sqrtf(a.results->squared_norm);
    if (!finite(norm) || !finite(a.results->loss)) return;
    float clip = fminf(a.settings->clip / (norm + 1e-6f), 1.0f);
    each_wide<T>(a.count, a.wide, [&](auto n, u64 at) { some(n, at, clip); });
}
