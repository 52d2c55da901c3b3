// The gradients that a module's synapses propagate to their sources.
#include "../vector.cuh"

struct SynapseInputGradArgs {
    const void* grad;      // [neurons, B]: g of the token
    const float* weights;  // [neurons, fan_in]
    const u32* starts;     // [2 rows + neurons + 1]
    const u32* synapses;   // ordered by source
    const float* keep;     // [B]
    void* signals_grad;    // [rows, B] of the token
    void* before;          // [rows, B] of the token before it, or null
    float* spikes_grad;    // [neurons, B]
    u32 rows, neurons, streams, fan_in;
    u32 vectors;           // of a source
    u32 wide;
};

// Each thread has N streams of a source.
template <class T, class G, int N>
__device__ inline void source_grads(const SynapseInputGradArgs& a) {
    u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    u32 s = (u32)(i / a.vectors), stream = (u32)(i % a.vectors) * N;
    if (s >= 2 * a.rows + a.neurons) return;
    float sum[N] = {};
    u32 end = a.starts[s + 1];
#pragma unroll 4
    for (u32 at = a.starts[s]; at < end; at++) {
        u32 synapse = a.synapses[at];
        float g[N], w = a.weights[synapse];
        read(g, (const T*)a.grad + (u64)(synapse / a.fan_in) * a.streams + stream);
#pragma unroll
        for (int n = 0; n < N; n++) sum[n] += w * g[n];
    }
    float keep[N];
    read(keep, a.keep + stream);
    auto add = [&](void* signals, u32 row) {
        G* to = (G*)signals + (u64)row * a.streams + stream;
        float before[N];
        read(before, to);
#pragma unroll
        for (int n = 0; n < N; n++) before[n] += sum[n];
        write(to, before);
    };
    if (s < a.rows) return add(a.signals_grad, s);
#pragma unroll
    for (int n = 0; n < N; n++) sum[n] *= keep[n];
    if (s >= 2 * a.rows) write(a.spikes_grad + (u64)(s - 2 * a.rows) * a.streams + stream, sum);
    else if (a.before) add(a.before, s - a.rows);
}

template <class T, class G>
__device__ void synapse_input_grad(const SynapseInputGradArgs& a) {
    a.wide ? source_grads<T, G, WIDE<T>>(a) : source_grads<T, G, 1>(a);
}

EXPORT(synapse_input_grad_f32_f32, SynapseInputGradArgs, 256, synapse_input_grad<float, float>)
EXPORT(synapse_input_grad_bf16_f32, SynapseInputGradArgs, 256, synapse_input_grad<bf16, float>)
EXPORT(synapse_input_grad_bf16_bf16, SynapseInputGradArgs, 256, synapse_input_grad<bf16, bf16>)
