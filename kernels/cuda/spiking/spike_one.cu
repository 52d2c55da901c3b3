// One token's step of a module of spiking neurons that has one stream: a thread block reads the synapses of its neurons
// in memory order, and one thread for each neuron adds their products.
#include <type_traits>

#include "spike.cuh"

// Packs the previous spikes in the only stream: a bit for each neuron, 32 in a word. Grid (neurons / 256).
template <class T>
__device__ void pack_one(const SpikeArgs& a) {
    u32 neuron = blockIdx.x * 256 + threadIdx.x;
    u32 word = __ballot_sync(FULL_WARP, neuron < a.neurons && load(((const T*)a.spikes)[min(neuron, a.neurons - 1)]) > 0);
    if (threadIdx.x % 32 == 0 && neuron < a.neurons) a.bits[neuron / 32] = word;
}

EXPORT_BOTH(spike_pack_one, SpikeArgs, 256, pack_one)

// The number of slots for the products of a block's synapses.
constexpr u32 PLACES = 8448;
// The number of neurons that a block decides about, one for each thread.
constexpr u32 ALONE = 256;
// Threads that read the synapses: there are few blocks, so the number of sequential reads of a thread determines the
// time.
constexpr u32 THREADS_OF_ONE = 512;

// The input of a synapse, without branches, so that many loads overlap: from signals or from spikes, packed or not.
template <class T>
struct Sources {
    // As wide as a value, so that the same instruction reads both kinds.
    using Word = std::conditional_t<sizeof(T) == 2, unsigned short, u32>;
    static constexpr u32 BITS = 8 * sizeof(T);
    const Word *signals, *spikes;
    u32 rows, streams;
    bool packed;

    __device__ explicit Sources(const SpikeArgs& a)
        : signals((const Word*)a.signals + blockIdx.y),
          spikes(a.bits ? (const Word*)a.bits : (const Word*)a.spikes + blockIdx.y), rows(a.rows), streams(a.streams),
          packed(a.bits) {}

    __device__ Word read(u32 source) const {
        bool spike = source >= 2 * rows;
        u32 index = spike ? source - 2 * rows : source < rows ? source + rows : source - rows;
        u64 at = spike && packed ? index / BITS : (u64)index * streams;
        return (spike ? spikes : signals)[at];
    }

    __device__ float value(u32 source, Word word) const {
        bool spike = source >= 2 * rows;
        float bit = word >> (source - 2 * rows) % BITS & 1 ? 1.0f : 0.0f;
        float x = __uint_as_float((u32)word << (32 - BITS));
        return spike && packed ? bit : x;
    }
};

// Writes the products of `Q` synapses for each thread to `products`, in rows `apart`; writes to `of_now` how many of a
// row are of this token.
template <class T, int Q>
__device__ inline void multiply(const SpikeArgs& a, u32 first, u32 neurons, u32 apart, float* products, u32* of_now) {
    Sources<T> of(a);
    const u32* sources = a.sources + (u64)first * a.fan_in;
    const float* weights = a.weights + (u64)first * a.fan_in;
    // at / quads is the upper half of at times this, which is exact for the few products.
    u32 quads = a.fan_in / Q, all = neurons * quads, inverse = quads > 1 ? ~0u / quads + 1 : 0;
    constexpr int AT_ONCE = 2;
    for (u32 start = threadIdx.x; start < all; start += AT_ONCE * THREADS_OF_ONE) {
        Vector<u32, Q> s[AT_ONCE];
        Vector<float, Q> w[AT_ONCE];
        typename Sources<T>::Word x[AT_ONCE][Q];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            // After the last one, the last one is read again.
            u32 at = min(start + i * THREADS_OF_ONE, all - 1) * Q;
            s[i] = fetch<u32, Q>(sources + at);
            w[i] = fetch<float, Q>(weights + at);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int q = 0; q < Q; q++) x[i][q] = of.read(s[i].x[q]);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            u32 at = start + i * THREADS_OF_ONE, row = quads > 1 ? __umulhi(at, inverse) : at, now = 0;
            if (at >= all) break;
            float* to = products + row * apart + (at - row * quads) * Q;
#pragma unroll
            for (int q = 0; q < Q; q++) {
                to[q] = __fmul_rn(w[i].x[q], of.value(s[i].x[q], x[i][q]));
                now += s[i].x[q] < a.rows;
            }
            if (now > 0) atomicAdd(&of_now[row], now);
        }
    }
}

// One block for the neurons that compete in one stream, at most ALONE, whose products fit. Grid (neurons / block, B).
template <class T>
__device__ void fire_one(const SpikeArgs& a) {
    __shared__ float products[PLACES];
    __shared__ float above[ALONE];
    __shared__ u32 of_now[ALONE];
    u32 first = blockIdx.x * a.block, neurons = min(a.block, a.neurons - first), apart = a.fan_in | 1;
    u32 stream = blockIdx.y, own = threadIdx.x;
    bool has = own < neurons;
    u64 i = (u64)(first + own) * a.streams + stream;
    bool keep = a.keep[stream] > 0;
    float left = 0, limit = 0, fatigue = 0;
    // Loaded together with the synapses.
    if (has) {
        left = leak(a, a.potential[i], load(((const T*)a.spikes)[i]));
        fatigue = keep ? a.fatigue[i] : 0.0f;
        limit = threshold(a, first + own, a.offset[first + own], fatigue);
        of_now[own] = 0;
    }
    __syncthreads();
    if (a.quads) multiply<T, 4>(a, first, neurons, apart, products, of_now);
    else multiply<T, 1>(a, first, neurons, apart, products, of_now);
    __syncthreads();
    float x = 0;
    if (has) {
        const float* row = products + own * apart;
        float current = 0, previous = 0;
        u32 now = of_now[own];
#pragma unroll 8
        for (u32 f = 0; f < a.fan_in; f++) {
            float product = row[f];
            if (f < now) current = __fadd_rn(current, product);
            else previous = __fadd_rn(previous, product);
        }
        float v = potential(left, keep, previous, current);
        a.potential[i] = v;
        x = __fsub_rn(v, limit);
        above[own] = x;
    }
    __syncthreads();
    u32 rank = 0;
    if (x > 0 && a.winners < neurons) {
        // The lower index of equals wins.
#pragma unroll 8
        for (u32 j = 0; j < neurons; j++) rank += j < own ? above[j] >= x : above[j] > x;
    }
    bool fires = x > 0 && rank < a.winners;
    if (has) {
        float z = fires ? 1.0f : 0.0f;
        ((T*)a.spikes)[(u64)a.neurons * a.streams + i] = store<T>(z);
        a.fatigue[i] = tire(a, keep, fatigue, z);
        of_now[own] = fires;
    }
    if (has && a.slope) ((T*)a.slope)[i] = store<T>(slope_of(a, x));
    if (!a.pooled) return;
    __syncthreads();
    u32 group = a.neurons / a.count;
    if (own >= neurons / group) return;
    u32 fired = 0;
    for (u32 j = 0; j < group; j++) fired += of_now[own * group + j];
    put_output<T>(a, first / group + own, stream, group, fired);
}

EXPORT_PAIR(spike_one_f32, SpikeArgs, THREADS_OF_ONE, fire_one<float>)
EXPORT_PAIR(spike_one_bf16, SpikeArgs, THREADS_OF_ONE, fire_one<bf16>)
