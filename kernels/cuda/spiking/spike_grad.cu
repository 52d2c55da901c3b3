// The backward pass of a module's neurons.
#include "../vector.cuh"

struct SpikeGradArgs {
    void* signals_grad;        // [T, rows, B]
    void* slope;               // [T, neurons, B]: overwritten with g
    const float* keep;         // [T, B]
    float* fatigue_grad;       // [neurons, B], or null
    const float* spikes_grad;  // [neurons, B], or null
    u32 rows, neurons, streams, tokens;
    u32 earliest, last;        // tokens of this call, both included
    u32 first, count;          // outputs
    u32 wide;                  // whether streams are read 16 bytes at a time
    float leak, tiring, adaptation, filter;
};

// One thread for each output of a stream: filters its gradient backwards.
template <class G>
__device__ void filter_outputs(const SpikeGradArgs& a) {
    u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i >= (u64)a.count * a.streams) return;
    u64 slot = (u64)a.rows * a.streams;
    u32 stream = (u32)(i % a.streams);
    G* at = (G*)a.signals_grad + (u64)a.first * a.streams + i + a.last * slot;
    bool ends = a.last + 1 == a.tokens;
    float later = ends ? 0.0f : load(at[slot]);
#pragma unroll 4
    for (u32 t = a.last + 1; t-- > a.earliest; at -= slot) {
        float keep = t + 1 == a.tokens ? 0.0f : a.keep[(t + 1) * a.streams + stream];
        later = load(*at) + keep * a.filter * later;
        *at = store<G>(later);
    }
}

// Each thread has N streams of a neuron, from the last token to the earliest.
template <class T, class G, int N>
__device__ inline void neuron_grads(const SpikeGradArgs& a) {
    u32 vectors = a.streams / N;
    u64 thread = (u64)blockIdx.x * 256 + threadIdx.x;
    if (thread >= (u64)a.neurons * vectors) return;
    u32 neuron = (u32)(thread / vectors), stream = (u32)(thread % vectors) * N;
    // The output in which the neuron is pooled, and the number of neurons in it.
    u32 o = (u32)((((u64)neuron + 1) * a.count - 1) / a.neurons);
    u32 pooled = (u32)((u64)(o + 1) * a.neurons / a.count) - (u32)((u64)o * a.neurons / a.count);
    float share = 1.0f / sqrtf((float)pooled), adaptation = neuron % 2 == 0 ? a.adaptation : 0.0f;
    u64 own = (u64)neuron * a.streams + stream;
    const G* outputs = (const G*)a.signals_grad + ((u64)a.first + o) * a.streams + stream;
    T* slope = (T*)a.slope + own;
    u64 slot = (u64)a.neurons * a.streams, signals = (u64)a.rows * a.streams;
    float later[N] = {}, tired[N] = {}, spikes[N] = {}, next[N] = {};
    if (a.last + 1 < a.tokens) {
        read(later, slope + (a.last + 1) * slot);
        read(next, a.keep + (a.last + 1) * a.streams + stream);
        if (a.fatigue_grad) read(tired, a.fatigue_grad + own);
    }
    if (a.spikes_grad) read(spikes, a.spikes_grad + own);
    for (u32 t = a.last + 1; t-- > a.earliest;) {
        float h[N], output[N], keep[N];
        read(h, slope + t * slot);
        read(output, outputs + t * signals);
        read(keep, a.keep + t * a.streams + stream);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float above = h[i] * (share * output[i] + spikes[i] + tired[i]);
            later[i] = above + next[i] * a.leak * later[i];
            if (a.fatigue_grad) tired[i] = keep[i] * (a.tiring * tired[i] - adaptation * above);
            next[i] = keep[i];
        }
        write_rounded(slope + t * slot, later);
    }
    if (a.fatigue_grad) write(a.fatigue_grad + own, tired);
}

template <class T, class G>
__device__ void spike_grad(const SpikeGradArgs& a) {
    // The vector width of the smaller type serves both types.
    a.wide ? neuron_grads<T, G, WIDE<T>>(a) : neuron_grads<T, G, 1>(a);
}

EXPORT_BOTH(spike_grad_filter, SpikeGradArgs, 256, filter_outputs)
EXPORT(spike_grad_f32_f32, SpikeGradArgs, 256, spike_grad<float, float>)
EXPORT(spike_grad_bf16_f32, SpikeGradArgs, 256, spike_grad<bf16, float>)
EXPORT(spike_grad_bf16_bf16, SpikeGradArgs, 256, spike_grad<bf16, bf16>)
