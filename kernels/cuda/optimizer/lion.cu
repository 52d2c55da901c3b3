// Lion over a range of parameters.
#include "moved.cuh"

struct LionArgs {
    MovedArgs moved;
    float* momentum;        // [count]
    float beta1, beta2;
};

// Of weights `T` and gradients `G`.
template <class T, class G, int N>
__device__ inline void update(const LionArgs& a, u64 at, float clip) {
    const Settings& settings = *a.moved.settings;
    float rate = settings.learning_rate * a.moved.rate, keep = 1.0f - rate * (a.moved.decay * settings.decay);
    float m[N];
    read(m, a.momentum + at);
    move<T, G, N>(a.moved, at, clip, [&](int i, float w, float g) {
        float blend = a.beta1 * m[i] + (1.0f - a.beta1) * g;
        m[i] = a.beta2 * m[i] + (1.0f - a.beta2) * g;
        float sign = (blend > 0.0f ? 1.0f : 0.0f) - (blend < 0.0f ? 1.0f : 0.0f);
        return w * keep - rate * sign;
    });
    write(a.momentum + at, m);
}

template <class T, class G>
__device__ void lion(const LionArgs& a) {
    each_moved<T>(a.moved, [&](auto n, u64 at, float clip) { update<T, G, n.value>(a, at, clip); });
}

EXPORT(lion_f32_f32, LionArgs, 256, lion<float, float>)
EXPORT(lion_bf16_f32, LionArgs, 256, lion<bf16, float>)
EXPORT(lion_bf16_bf16, LionArgs, 256, lion<bf16, bf16>)
