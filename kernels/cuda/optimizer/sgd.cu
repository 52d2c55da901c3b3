// Stochastic gradient descent with momentum over a range of parameters.
#include "moved.cuh"

struct SgdArgs {
    MovedArgs moved;
    void* buffer;           // [count], or null
    float momentum;
};

// For weights `T` and gradients `G`, with states `B`.
template <class T, class G, class B, int N>
__device__ inline void update(const SgdArgs& a, u64 at, float clip, bool has) {
    const Settings& settings = *a.moved.settings;
    float rate = settings.learning_rate * a.moved.rate, decay = a.moved.decay * settings.decay;
    float b[N] = {};
    if (a.buffer) B::read(b, a.buffer, at, has);
    if (has) move<T, G, N>(a.moved, at, clip, [&](int i, float w, float g) {
        b[i] = a.momentum * b[i] + (g + decay * w);
        return w - rate * b[i];
    });
    if (a.buffer) B::write(a.buffer, at, b, has);
}

template <class T, class G, bool CODED>
__device__ void sgd(const SgdArgs& a) {
    each_moved<T, CODED>(a.moved, [&](auto n, u64 at, float clip, bool has) {
        if constexpr (CODED) update<T, G, Moments8, n.value>(a, at, clip, has);
        else update<T, G, Plain, n.value>(a, at, clip, has);
    });
}

EXPORT_RULE(sgd, SgdArgs)
