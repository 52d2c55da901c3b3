// Stochastic gradient descent with momentum over a range of parameters.
#include "moved.cuh"

struct SgdArgs {
    MovedArgs moved;
    float* buffer;          // [count], or null
    float momentum;
};

// Of weights `T` and gradients `G`.
template <class T, class G, int N>
__device__ inline void update(const SgdArgs& a, u64 at, float clip) {
    const Settings& settings = *a.moved.settings;
    float rate = settings.learning_rate * a.moved.rate, decay = a.moved.decay * settings.decay;
    float b[N] = {};
    if (a.buffer) read(b, a.buffer + at);
    move<T, G, N>(a.moved, at, clip, [&](int i, float w, float g) {
        b[i] = a.momentum * b[i] + (g + decay * w);
        return w - rate * b[i];
    });
    if (a.buffer) write(a.buffer + at, b);
}

template <class T, class G>
__device__ void sgd(const SgdArgs& a) {
    each_moved<T>(a.moved, [&](auto n, u64 at, float clip) { update<T, G, n.value>(a, at, clip); });
}

EXPORT(sgd_f32_f32, SgdArgs, 256, sgd<float, float>)
EXPORT(sgd_bf16_f32, SgdArgs, 256, sgd<bf16, float>)
EXPORT(sgd_bf16_bf16, SgdArgs, 256, sgd<bf16, bf16>)
