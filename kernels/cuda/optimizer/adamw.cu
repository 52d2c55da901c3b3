// AdamW over a range of parameters.
#include "moved.cuh"

struct AdamWArgs {
    MovedArgs moved;
    void* first;            // [count]
    void* second;           // [count]
    float beta1, beta2, eps;
};

// For weights `T` and gradients `G`, with states `M` and `V`.
template <class T, class G, class M, class V, int N>
__device__ inline void update(const AdamWArgs& a, u64 at, float clip, bool has) {
    const Settings& settings = *a.moved.settings;
    float rate = settings.learning_rate * a.moved.rate, step = rate / settings.corrections[a.moved.group][0];
    float root = 1.0f / sqrtf(settings.corrections[a.moved.group][1]);
    float decay = a.moved.decay * settings.decay, m[N], v[N];
    M::read(m, a.first, at, has);
    V::read(v, a.second, at, has);
    if (has) move<T, G, N>(a.moved, at, clip, [&](int i, float w, float g) {
        m[i] = a.beta1 * m[i] + (1.0f - a.beta1) * g;
        v[i] = a.beta2 * v[i] + (1.0f - a.beta2) * (g * g);
        return w * (1.0f - rate * decay) - step * m[i] / (sqrtf(v[i]) * root + a.eps);
    });
    M::write(a.first, at, m, has);
    V::write(a.second, at, v, has);
}

template <class T, class G, bool CODED>
__device__ void adamw(const AdamWArgs& a) {
    each_moved<T, CODED>(a.moved, [&](auto n, u64 at, float clip, bool has) {
        if constexpr (CODED) update<T, G, Moments8, Squares8, n.value>(a, at, clip, has);
        else update<T, G, Plain, Plain, n.value>(a, at, clip, has);
    });
}

EXPORT_RULE(adamw, AdamWArgs)
