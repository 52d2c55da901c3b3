// Lion over a range of parameters.
#include "moved.cuh"

struct LionArgs {
    MovedArgs moved;
    void* momentum;         // [count]
    float beta1, beta2;
};

// For weights `T` and gradients `G`, with states `M`.
template <class T, class G, class M, int N>
__device__ inline void update(const LionArgs& a, u64 at, float clip, bool has) {
    const Settings& settings = *a.moved.settings;
    float rate = settings.learning_rate * a.moved.rate, keep = 1.0f - rate * (a.moved.decay * settings.decay);
    float m[N];
    M::read(m, a.momentum, at, has);
    if (has) move<T, G, N>(a.moved, at, clip, [&](int i, float w, float g) {
        float blend = a.beta1 * m[i] + (1.0f - a.beta1) * g;
        m[i] = a.beta2 * m[i] + (1.0f - a.beta2) * g;
        float sign = (blend > 0.0f ? 1.0f : 0.0f) - (blend < 0.0f ? 1.0f : 0.0f);
        return w * keep - rate * sign;
    });
    M::write(a.momentum, at, m, has);
}

template <class T, class G, bool CODED>
__device__ void lion(const LionArgs& a) {
    each_moved<T, CODED>(a.moved, [&](auto n, u64 at, float clip, bool has) {
        if constexpr (CODED) update<T, G, Moments8, n.value>(a, at, clip, has);
        else update<T, G, Plain, n.value>(a, at, clip, has);
    });
}

EXPORT_RULE(lion, LionArgs)
