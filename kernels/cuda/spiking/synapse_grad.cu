// The gradient of a module's synapses.
#include "synapse_grad.cuh"

// One warp for a neuron and 32 tokens, one word for each token. Grid (neurons / 8, T / 32, groups).
template <class T>
__device__ void pack_spikes(const SynapseGradArgs& a) {
    u32 neuron = blockIdx.x * 8 + threadIdx.x / 32, t0 = blockIdx.y * 32, word = 0;
    bool there = neuron < a.neurons;
    u32 stream = blockIdx.z * 32 + threadIdx.x % 32, count = min(32u, a.tokens - t0);
#pragma unroll 8
    for (u32 i = 0; i < count; i++) {
        u32 t = t0 + i;
        bool fires = there && stream < a.streams && a.keep[t * a.streams + stream] > 0 &&
                     load(((const T*)a.spikes)[((u64)t * a.neurons + neuron) * a.streams + stream]) > 0;
        u32 found = __ballot_sync(FULL_WARP, fires);
        word = threadIdx.x % 32 == i ? found : word;
    }
    if (there && threadIdx.x % 32 < count)
        a.bits[((u64)blockIdx.z * a.neurons + neuron) * a.tokens + t0 + threadIdx.x % 32] = word;
}

EXPORT_BOTH(synapse_grad_pack, SynapseGradArgs, 256, pack_spikes)

// Synapses from signals, over a few tokens and 32 streams. One warp for each row; `together` / N lanes for each
// synapse, with N streams each.
template <class T, int N>
__device__ inline void signal_grads(const SynapseGradArgs& a) {
    u32 row = min(blockIdx.x * 8 + threadIdx.x / 32, a.neurons - 1), lanes = a.together / N, lane = threadIdx.x % 32;
    bool own_row = blockIdx.x * 8 + threadIdx.x / 32 < a.neurons;
    u32 stream = a.stream + lane % lanes * N, at_once = 32 / lanes;
    bool has = stream < a.streams;
    float now[TOKENS][N] = {}, before[TOKENS][N] = {};
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
        u32 t = a.token + i;
        if (!has || t >= a.tokens) continue;
        read(now[i], (const T*)a.grad + ((u64)t * a.neurons + row) * a.streams + stream);
        float keep[N];
        read(keep, a.keep + t * a.streams + stream);
#pragma unroll
        for (int n = 0; n < N; n++) before[i][n] = keep[n] * now[i][n];
    }
    u64 slot = (u64)a.rows * a.streams;
    const T* signals = (const T*)a.signals + a.token * slot + stream;
    const u32* sources = a.sources + (u64)row * a.fan_in;
    u32 next = lane / lanes < a.fan_in ? sources[lane / lanes] : ~0u;
    for (u32 f0 = 0; f0 < a.fan_in; f0 += at_once) {
        u32 f = f0 + lane / lanes, s = next;
        next = f + at_once < a.fan_in ? sources[f + at_once] : ~0u;
        bool of_signal = s < 2 * a.rows;
        if (__ballot_sync(FULL_WARP, of_signal) == 0) break;
        float sum = 0;
        if (of_signal && has) {
            // At the beginning of a document, the signals before it may have any value.
            const T* from = signals + (s < a.rows ? slot + (u64)s * a.streams : (u64)(s - a.rows) * a.streams);
            Vector<T, N> x[TOKENS];
#pragma unroll
            for (int i = 0; i < TOKENS; i++)
                if (a.token + i < a.tokens) x[i] = fetch<T, N>(from + i * slot);
#pragma unroll
            for (int i = 0; i < TOKENS; i++)
                if (a.token + i < a.tokens)
#pragma unroll
                    for (int n = 0; n < N; n++) sum += (s < a.rows ? now[i][n] : before[i][n]) * load(x[i].x[n]);
        }
        for (u32 i = lanes / 2; i > 0; i /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, i);
        if (own_row && of_signal && lane % lanes == 0) {
            float* to = a.weight_grad + (u64)row * a.fan_in + f;
            *to = a.token + a.stream == 0 ? sum : *to + sum;
        }
    }
}

// Grid (neurons / 8).
template <class T>
__device__ void synapse_grad_signals(const SynapseGradArgs& a) {
    a.wide ? signal_grads<T, WIDE<T>>(a) : signal_grads<T, 1>(a);
}

EXPORT_MANY(synapse_grad_signals_f32, SynapseGradArgs, 256, 3, synapse_grad_signals<float>)
EXPORT_MANY(synapse_grad_signals_bf16, SynapseGradArgs, 256, 2, synapse_grad_signals<bf16>)

// Synapses from spikes: one warp for each row, one lane for each synapse, which adds the gradients where its source
// fired: a tenth of them. Lanes read the gradients of one token at a time, 32 words of shared memory, so that there are
// no bank conflicts.
template <class T, int Q>
__device__ inline void spike_synapses(const SynapseGradArgs& a, float (&grads)[8][32][32]) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * 8 + warp;
    bool there = row < a.neurons;
    const u32* sources = a.sources + (u64)row * a.fan_in;
    float* weight_grad = a.weight_grad + (u64)row * a.fan_in;
    u32 first = 2 * a.rows, begin = a.fan_in;
    // Finds where the row's sources that are spikes begin.
    for (u32 f0 = 0; f0 < a.fan_in; f0 += 32) {
        u32 found = __ballot_sync(FULL_WARP, there && f0 + lane < a.fan_in && sources[f0 + lane] >= first);
        if (found == 0) continue;
        begin = f0 + __ffs(found) - 1;
        break;
    }
    for (u32 group = 0; group * 32 < a.streams; group++)
        for (u32 t0 = 0; t0 < a.tokens; t0 += 32) {
            u32 count = min(32u, a.tokens - t0), stream = group * 32 + lane;
            __syncwarp();
#pragma unroll 8
            for (u32 t = 0; t < count; t++) {
                const T* grad = (const T*)a.grad + ((u64)(t0 + t) * a.neurons + row) * a.streams;
                grads[warp][t][lane] = there && stream < a.streams ? load(grad[stream]) : 0.0f;
            }
            __syncwarp();
            if (!there) continue;
            for (u32 f = begin + lane; f < a.fan_in; f += 32) {
                const u32* bits = a.bits + ((u64)group * a.neurons + sources[f] - first) * a.tokens + t0;
                float sum = t0 + group == 0 ? 0.0f : weight_grad[f];
                for (u32 t = 0; t < count; t += Q) {
                    Vector<u32, Q> words = fetch<u32, Q>(bits + t);
#pragma unroll
                    for (int q = 0; q < Q; q++)
                        for (u32 word = words.x[q]; word; word &= word - 1) sum += grads[warp][t + q][__ffs(word) - 1];
                }
                weight_grad[f] = sum;
            }
        }
}

// Grid (neurons / 8).
template <class T>
__device__ void synapse_grad_spikes(const SynapseGradArgs& a) {
    __shared__ float grads[8][32][32];  // [warp, token, stream]
    a.quads ? spike_synapses<T, 4>(a, grads) : spike_synapses<T, 1>(a, grads);
}

EXPORT_BOTH(synapse_grad_spikes, SynapseGradArgs, 256, synapse_grad_spikes)
