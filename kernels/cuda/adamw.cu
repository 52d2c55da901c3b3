// AdamW over a range of parameters, with the global clip folded in.
#include "common.cuh"

struct AdamWArgs {
    void* weight;           // [count]
    float* master;          // [count], or null where the weight itself is f32
    const float* gradient;  // [count]
    float* first;           // [count]
    float* second;          // [count]
    const float* settings;  // learning rate, both corrections, clip, loss scale
    const float* results;   // loss, squared norm
    u64 count;
    float beta1, beta2, eps, decay;
};

// A norm that is not finite changes nothing.
template <class T>
__device__ void adamw(const AdamWArgs& a) {
    float norm = sqrtf(a.results[1]);
    if (!(norm <= 3.402823466e38f)) return;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    float rate = a.settings[0];
    float clip = fminf(a.settings[3] / (norm + 1e-6f), 1.0f);
    float g = a.gradient[i] * clip;
    float m = a.beta1 * a.first[i] + (1.0f - a.beta1) * g;
    float v = a.beta2 * a.second[i] + (1.0f - a.beta2) * (g * g);
    float step = rate / a.settings[1], root = 1.0f / sqrtf(a.settings[2]);
    T* weight = (T*)a.weight + i;
    float w = a.master ? a.master[i] : load(*weight);
    w = w * (1.0f - rate * a.decay) - step * m / (sqrtf(v) * root + a.eps);
    a.first[i] = m;
    a.second[i] = v;
    if (a.master) a.master[i] = w;
    *weight = store<T>(w);
}

EXPORT_BOTH(adamw, AdamWArgs, 256, adamw)
