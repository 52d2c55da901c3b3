// AdamW over a range of parameters.
#include "moved.cuh"

struct AdamWArgs {
    MovedArgs moved;
    float* first;           // [count]
    float* second;          // [count]
    float beta1, beta2, eps;
};

// Of weights `T` and gradients `G`.
template <class T, class G, int N>
__device__ inline void update(const AdamWArgs& a, u64 at, float clip) {
    const Settings& settings = *a.moved.settings;
    float rate = settings.learning_rate * a.moved.rate, step = rate / settings.corrections[a.moved.group][0];
    float root = 1.0f / sqrtf(settings.corrections[a.moved.group][1]);
    float decay = a.moved.decay * settings.decay, m[N], v[N];
    read(m, a.first + at);
    read(v, a.second + at);
    move<T, G, N>(a.moved, at, clip, [&](int i, float w, float g) {
        m[i] = a.beta1 * m[i] + (1.0f - a.beta1) * g;
        v[i] = a.beta2 * v[i] + (1.0f - a.beta2) * (g * g);
        return w * (1.0f - rate * decay) - step * m[i] / (sqrtf(v[i]) * root + a.eps);
    });
    write(a.first + at, m);
    write(a.second + at, v);
}

template <class T, class G>
__device__ void adamw(const AdamWArgs& a) {
    each_moved<T>(a.moved, [&](auto n, u64 at, float clip) { update<T, G, n.value>(a, at, clip); });
}

EXPORT(adamw_f32_f32, AdamWArgs, 256, adamw<float, float>)
EXPORT(adamw_bf16_f32, AdamWArgs, 256, adamw<bf16, float>)
EXPORT(adamw_bf16_bf16, AdamWArgs, 256, adamw<bf16, bf16>)
