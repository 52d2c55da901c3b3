// AdamW over a range of parameters, with the global clip folded in.
#include "../control.cuh"
#include "../vector.cuh"

struct AdamWArgs {
    void* weight;           // [count]
    short* remainder;       // [count]: what bf16 lack of the f32 that move, or null
    const void* gradient;   // [count]: f32, or bf16
    float* first;           // [count]
    float* second;          // [count]
    const Settings* settings;
    const Results* results;
    u64 count;
    float beta1, beta2, eps, decay;
    u32 wide;               // whether all begin at multiples of 16 bytes
};

// Makes of bf16 the f32 that they are the rounding of.
template <int N>
__device__ inline void join(float (&w)[N], const short* remainder) {
    Vector<short, N> lacks = fetch<short, N>(remainder);
#pragma unroll
    for (int i = 0; i < N; i++) w[i] = __uint_as_float(__float_as_uint(w[i]) + (u32)(int)lacks.x[i]);
}

// Writes the bf16 nearest to `w`, and what they lack. Of what lies halfway and falls that is one more than has a place.
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

// Of weights `T` and gradients `G`.
template <class T, class G, int N>
__device__ inline void update(const AdamWArgs& a, u64 at, float clip) {
    float rate = a.settings->learning_rate, step = rate / a.settings->correction1;
    float root = 1.0f / sqrtf(a.settings->correction2);
    float g[N], m[N], v[N], w[N];
    read(g, (const G*)a.gradient + at);
    read(m, a.first + at);
    read(v, a.second + at);
    T* weight = (T*)a.weight + at;
    read(w, weight);
    if constexpr (sizeof(T) == sizeof(bf16)) {
        if (a.remainder) join(w, a.remainder + at);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        float clipped = g[i] * clip;
        m[i] = a.beta1 * m[i] + (1.0f - a.beta1) * clipped;
        v[i] = a.beta2 * v[i] + (1.0f - a.beta2) * (clipped * clipped);
        w[i] = w[i] * (1.0f - rate * a.decay) - step * m[i] / (sqrtf(v[i]) * root + a.eps);
    }
    write(a.first + at, m);
    write(a.second + at, v);
    if constexpr (sizeof(T) == sizeof(bf16)) {
        if (a.remainder) return split(weight, a.remainder + at, w);
    }
    write(weight, w);
}

// A norm or a loss that is not finite changes nothing.
template <class T, class G>
__device__ void adamw(const AdamWArgs& a) {
    float norm = sqrtf(a.results->squared_norm);
    if (!finite(norm) || !finite(a.results->loss)) return;
    float clip = fminf(a.settings->clip / (norm + 1e-6f), 1.0f);
    each_wide<T>(a.count, a.wide, [&](auto n, u64 at) { update<T, G, n.value>(a, at, clip); });
}

EXPORT(adamw_f32_f32, AdamWArgs, 256, adamw<float, float>)
EXPORT(adamw_bf16_f32, AdamWArgs, 256, adamw<bf16, float>)
EXPORT(adamw_bf16_bf16, AdamWArgs, 256, adamw<bf16, bf16>)
