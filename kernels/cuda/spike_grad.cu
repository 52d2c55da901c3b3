// The backward pass of a module's neurons, the gradient of its synapses, and what those bring back to their sources.
#include "streams.cuh"

struct SpikeGradArgs {
    void* signals_grad;        // [T, rows, B]
    void* slope;               // [T, neurons, B]: becomes g
    const float* keep;         // [T, B]
    float* fatigue_grad;       // [neurons, B], or null
    const float* spikes_grad;  // [neurons, B], or null
    u32 rows, neurons, streams, tokens;
    u32 earliest, last;        // tokens of this call, both included
    u32 first, count;          // outputs
    u32 wide;                  // whether streams come 16 bytes at a time
    float leak, tiring, adaptation, filter;
};

// A thread an output of a stream: its gradient filtered backwards.
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

// A thread N streams of a neuron, from the last token to the earliest.
template <class T, class G, int N>
__device__ inline void neuron_grads(const SpikeGradArgs& a) {
    u32 vectors = a.streams / N;
    u64 thread = (u64)blockIdx.x * 256 + threadIdx.x;
    if (thread >= (u64)a.neurons * vectors) return;
    u32 neuron = (u32)(thread / vectors), stream = (u32)(thread % vectors) * N;
    // The output that it is pooled in, of how many.
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
    // Both types' vectors have the streams of the smaller one's.
    a.wide ? neuron_grads<T, G, WIDE<T>>(a) : neuron_grads<T, G, 1>(a);
}

EXPORT_BOTH(spike_grad_filter, SpikeGradArgs, 256, filter_outputs)
EXPORT(spike_grad_f32_f32, SpikeGradArgs, 256, spike_grad<float, float>)
EXPORT(spike_grad_bf16_f32, SpikeGradArgs, 256, spike_grad<bf16, float>)
EXPORT(spike_grad_bf16_bf16, SpikeGradArgs, 256, spike_grad<bf16, bf16>)

struct SynapseGradArgs {
    const void* grad;     // [T, neurons, B]
    const void* signals;  // [T + 1, rows, B]
    const void* spikes;   // [T + 1, neurons, B]
    const float* keep;    // [T, B]
    const u32* sources;   // [neurons, fan_in]: rising
    float* weight_grad;   // [neurons, fan_in]
    u32* bits;            // [groups of 32 streams, neurons, T]: who fired at the token before, where it counts
    u32 rows, neurons, streams, fan_in, tokens;
    u32 token, stream;    // the first of those that this launch adds up, of the signals
    u32 together;         // streams of a synapse: a power of two, 32 at most
    u32 wide;             // whether a thread has 16 bytes of them
    u32 quads;            // whether bits of four tokens are read at once
};

// A warp a neuron and 32 tokens, a word each. Grid (neurons / 8, T / 32, groups).
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

// Synapses from signals, over a few tokens and 32 streams, so that what all rows read of them stays in L2. A warp a
// row; `together` / N lanes a synapse, N streams each.
constexpr int TOKENS = 4;

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
            // Where a document begins, what was before it may be anything.
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

// Synapses from spikes: a warp a row, a lane a synapse, which adds up the gradients where its source fired: a tenth of
// them. Lanes read one token's at a time, 32 words of shared memory, so that no two want different words of a bank.
template <class T, int Q>
__device__ inline void spike_synapses(const SynapseGradArgs& a, float (&grads)[8][32][32]) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * 8 + warp;
    bool there = row < a.neurons;
    const u32* sources = a.sources + (u64)row * a.fan_in;
    float* weight_grad = a.weight_grad + (u64)row * a.fan_in;
    u32 first = 2 * a.rows, begin = a.fan_in;
    // Where the row's spikes begin.
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

struct SynapseInputGradArgs {
    const void* grad;      // [neurons, B]: g of the token
    const float* weights;  // [neurons, fan_in]
    const u32* starts;     // [2 rows + neurons + 1]
    const u32* synapses;   // by source
    const float* keep;     // [B]
    void* signals_grad;    // [rows, B] of the token
    void* before;          // the same of the token before it, or null
    float* spikes_grad;    // [neurons, B]
    u32 rows, neurons, streams, fan_in;
    u32 vectors;           // of a source
    u32 wide;
};

// A thread N streams of a source.
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
