// AdamW over a range of parameters, with the global clip folded in.
#include "control.cuh"
#include "vector.cuh"

struct AdamWArgs {
    void* weight;           // [count]
    float* master;          // [count], or null where the weight itself is f32
    const float* gradient;  // [count]
    float* first;           // [count]
    float* second;          // [count]
    const Settings* settings;
    const Results* results;
    u64 count;
    float beta1, beta2, eps, decay;
    u32 wide;               // whether all begin at multiples of 16 bytes
};

template <class T, int N>
__device__ inline void update(const AdamWArgs& a, u64 at, float clip) {
    float rate = a.settings->learning_rate, step = rate / a.settings->correction1;
    float root = 1.0f / sqrtf(a.settings->correction2);
    float g[N], m[N], v[N], w[N];
    read(g, a.gradient + at);
    read(m, a.first + at);
    read(v, a.second + at);
    T* weight = (T*)a.weight + at;
    if (a.master) read(w, a.master + at);
    else read(w, weight);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float clipped = g[i] * clip;
        m[i] = a.beta1 * m[i] + (1.0f - a.beta1) * clipped;
        v[i] = a.beta2 * v[i] + (1.0f - a.beta2) * (clipped * clipped);
        w[i] = w[i] * (1.0f - rate * a.decay) - step * m[i] / (sqrtf(v[i]) * root + a.eps);
    }
    write(a.first + at, m);
    write(a.second + at, v);
    if (a.master) write(a.master + at, w);
    write(weight, w);
}

// A norm or a loss that is not finite changes nothing.
template <class T>
__device__ void adamw(const AdamWArgs& a) {
    float norm = sqrtf(a.results->squared_norm);
    if (!finite(norm) || !finite(a.results->loss)) return;
    float clip = fminf(a.settings->clip / (norm + 1e-6f), 1.0f);
    each_wide<T>(a.count, a.wide, [&](auto n, u64 at) { update<T, n.value>(a, at, clip); });
}

EXPORT_BOTH(adamw, AdamWArgs, 256, adamw)
