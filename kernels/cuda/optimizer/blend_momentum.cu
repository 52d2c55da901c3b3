// The momentum of matrices in blocks of 8 bits, and its blend with the gradient, which overwrites the gradient.
#include "../control.cuh"
#include "states.cuh"

struct BlendMomentumArgs {
    void* gradient;  // [count]: f32, or bf16
    void* momentum;  // [count]
    const Settings* settings;
    const Results* results;
    u64 count;
    u32 group;       // the group whose momentum factor is read
};

template <class G>
__device__ void blend_momentum(const BlendMomentumArgs& a) {
    constexpr int N = WIDE<G>;
    float norm = sqrtf(a.results->squared_norm), keep = a.settings->corrections[a.group][0];
    if (!finite(norm) || !finite(a.results->loss)) return;
    float clip = fminf(a.settings->clip / (norm + 1e-6f), 1.0f), m[N], g[N] = {};
    u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * N;
    bool has = at < a.count;
    G* gradient = (G*)a.gradient + at;
    Moments8::read(m, a.momentum, at, has);
    if (has) read(g, gradient);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float added = (1.0f - keep) * (g[i] * clip);
        m[i] = keep * m[i] + added;
        g[i] = keep * m[i] + added;
    }
    Moments8::write(a.momentum, at, m, has);
    if (has) write(gradient, g);
}

EXPORT(blend_momentum_f32, BlendMomentumArgs, 256, blend_momentum<float>)
EXPORT(blend_momentum_bf16, BlendMomentumArgs, 256, blend_momentum<bf16>)
