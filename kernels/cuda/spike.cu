// One token's step of a module of spiking neurons: the potentials and who fires, then the outputs.
//
// Every sum goes over a row's synapses in their order, products and sums rounded one by one, so that the spikes are
// those of every other device.
#include "streams.cuh"

struct SpikeArgs {
    void* signals;         // [2, rows, B]: the token before, then this one
    void* spikes;          // [2, neurons, B]
    const float* keep;     // [B]
    const u32* sources;    // [neurons, fan_in]: rising
    const float* weights;  // [neurons, fan_in]
    float* potential;      // [neurons, B]
    float* fatigue;        // [neurons, B]
    float* offset;         // [neurons]
    void* slope;           // [neurons, B], or null
    u32* bits;             // [groups of 32 streams, neurons]: who fired before; null: a block has one stream
    u32 rows, streams, neurons, fan_in;
    u32 block, winners;    // neurons that compete, and how many of them may fire
    u32 together;          // streams of a thread block: a power of two
    u32 quads;             // whether synapses come four at a time
    u32 pooled;            // whether a thread block writes its neurons' outputs itself
    u32 first, count;      // outputs
    float leak, threshold, tiring, adaptation, filter, rate, homeostasis;
};

// Neurons times streams of a thread block.
constexpr u32 ROOM = 4096;
// How far homeostasis may move a threshold.
constexpr float OFFSET_LIMIT = 3;
// No potential falls lower.
constexpr float LOWEST_POTENTIAL = -OFFSET_LIMIT;
// What is left of an output counts as nothing from here down.
constexpr float FAINT = 1e-12f;
// Threads that decide who of a stream fires.
constexpr u32 JUDGES = 16;

// A warp 32 neurons: who of a group fired before, a word each. Grid (neurons / 256, groups).
template <class T>
__device__ void pack_before(const SpikeArgs& a) {
    u32 first = blockIdx.x * 256 + threadIdx.x / 32 * 32, word = 0;
#pragma unroll 8
    for (u32 i = 0; i < 32; i++) {
        u32 neuron = min(first + i, a.neurons - 1);
        u32 found = fired((const T*)a.spikes + (u64)neuron * a.streams, blockIdx.y * 32, a.streams);
        word = threadIdx.x % 32 == i ? found : word;
    }
    u32 neuron = first + threadIdx.x % 32;
    if (neuron < a.neurons) a.bits[blockIdx.y * a.neurons + neuron] = word;
}

EXPORT_BOTH(spike_pack, SpikeArgs, 256, pack_before)

// The potential of a neuron in a stream, from what its synapses bring; gives its distance to the threshold.
template <class T>
__device__ inline float integrate(const SpikeArgs& a, u32 neuron, u32 stream, float current, float previous) {
    u64 i = (u64)neuron * a.streams + stream;
    float keep = a.keep[stream], z = load(((const T*)a.spikes)[i]);
    float left = __fsub_rn(__fmul_rn(a.leak, a.potential[i]), __fmul_rn(a.threshold, z));
    // What lies before a document counts for nothing, even if it is not a number.
    float v = keep > 0 ? __fadd_rn(__fadd_rn(left, previous), current) : current;
    v = v < LOWEST_POTENTIAL ? LOWEST_POTENTIAL : v;
    a.potential[i] = v;
    float adaptation = neuron % 2 == 0 ? a.adaptation : 0.0f;
    float tired = __fmul_rn(adaptation, keep > 0 ? a.fatigue[i] : 0.0f);
    return __fsub_rn(v, __fadd_rn(__fadd_rn(a.threshold, a.offset[neuron]), tired));
}

// A thread N streams of a neuron, Q synapses at a time. What fired is 1: a sum goes on by the weight itself, or not
// at all, read from a word of 32 streams.
template <class T, int N, int Q>
__device__ inline void potentials(const SpikeArgs& a, u32 first, u32 end, float* above) {
    u32 lanes = a.together / N, at_once = 256 / lanes;
    u32 own = threadIdx.x % lanes * N, stream = blockIdx.y * a.together + own;
    if (stream >= a.streams) return;
    const T* before = (const T*)a.signals + stream;
    const u32* bits = a.bits + stream / 32 * a.neurons;
    u32 shift = stream % 32;
    for (u32 neuron = first + threadIdx.x / lanes; neuron < end; neuron += at_once) {
        const u32* sources = a.sources + (u64)neuron * a.fan_in;
        const float* weights = a.weights + (u64)neuron * a.fan_in;
        // Sources of this token come first, those of the token before after them.
        float sum[N] = {}, current[N] = {};
        bool of_before = false;
        Vector<u32, Q> next = fetch<u32, Q>(sources);
        Vector<float, Q> next_weights = fetch<float, Q>(weights);
#pragma unroll 1
        for (u32 f = 0; f < a.fan_in; f += Q) {
            Vector<u32, Q> s = next;
            Vector<float, Q> w = next_weights;
            // Asked for while what these point at is on its way.
            if (f + Q < a.fan_in) {
                next = fetch<u32, Q>(sources + f + Q);
                next_weights = fetch<float, Q>(weights + f + Q);
            }
            Vector<T, N> x[Q];
            u32 word[Q];
#pragma unroll
            for (int q = 0; q < Q; q++) {
                u32 at = s.x[q];
                if (at < 2 * a.rows) x[q] = fetch<T, N>(before + (at < a.rows ? at + a.rows : at - a.rows) * a.streams);
                else word[q] = bits[at - 2 * a.rows] >> shift;
            }
#pragma unroll
            for (int q = 0; q < Q; q++) {
                if (s.x[q] >= a.rows && !of_before) {
                    of_before = true;
#pragma unroll
                    for (int i = 0; i < N; i++) current[i] = sum[i], sum[i] = 0;
                }
                if (s.x[q] < 2 * a.rows) {
#pragma unroll
                    for (int i = 0; i < N; i++) sum[i] = __fadd_rn(sum[i], __fmul_rn(w.x[q], load(x[q].x[i])));
                } else {
#pragma unroll
                    for (int i = 0; i < N; i++)
                        if (word[q] >> i & 1) sum[i] = __fadd_rn(sum[i], w.x[q]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            float now = of_before ? current[i] : sum[i], previous = of_before ? sum[i] : 0.0f;
            above[(neuron - first) * a.together + own + i] = integrate<T>(a, neuron, stream + i, now, previous);
        }
    }
}

// One stream: all threads read synapses in the order they lie and multiply; then a thread a neuron adds up. `products`
// has ROOM places.
template <class T>
__device__ inline void potentials_of_one(const SpikeArgs& a, u32 first, u32 end, float* above, float* products) {
    constexpr u32 PIECE = 128;
    __shared__ u32 of_now[256];
    u32 stream = blockIdx.y, piece = min(a.fan_in, PIECE), apart = piece | 1, at_once = min(256u, ROOM / apart);
    u32 times = (end - first + at_once - 1) / at_once;
    at_once = (end - first + times - 1) / times;
    const T* before = (const T*)a.signals + stream;
    const T* spiked = (const T*)a.spikes + stream;
    for (u32 start = first; start < end; start += at_once) {
        u32 neurons = min(at_once, end - start);
        float current = 0, previous = 0;
        for (u32 f0 = 0; f0 < a.fan_in; f0 += piece) {
            u32 count = min(piece, a.fan_in - f0);
            __syncthreads();
            if (threadIdx.x < neurons) of_now[threadIdx.x] = 0;
            __syncthreads();
#pragma unroll 4
            for (u32 i = threadIdx.x; i < neurons * count; i += 256) {
                u32 row = i / count, f = i % count;
                u64 synapse = (u64)(start + row) * a.fan_in + f0 + f;
                u32 s = a.sources[synapse];
                float x;
                if (s < 2 * a.rows) x = load(before[(u64)(s < a.rows ? s + a.rows : s - a.rows) * a.streams]);
                else x = load(spiked[(u64)(s - 2 * a.rows) * a.streams]);
                products[row * apart + f] = __fmul_rn(a.weights[synapse], x);
                if (s < a.rows) atomicAdd(&of_now[row], 1);
            }
            __syncthreads();
            if (threadIdx.x < neurons) {
                const float* own = products + threadIdx.x * apart;
                u32 now = of_now[threadIdx.x];
                for (u32 f = 0; f < now; f++) current = __fadd_rn(current, own[f]);
                for (u32 f = now; f < count; f++) previous = __fadd_rn(previous, own[f]);
            }
        }
        u32 neuron = start + threadIdx.x;
        if (threadIdx.x < neurons) above[neuron - first] = integrate<T>(a, neuron, stream, current, previous);
    }
    __syncthreads();
}

// Says in `fires` who does. Each judge has some neurons of a stream; those above their threshold are listed in their
// order, so that a rank is counted among few.
__device__ inline void judge(const SpikeArgs& a, u32 neurons, const float* above, float* listed, unsigned char* fires) {
    __shared__ u32 counts[256];
    u32 judges = min(JUDGES, 256 / a.together), judge = threadIdx.x / a.together, stream = threadIdx.x % a.together;
    u32 share = (neurons + judges - 1) / judges, begin = min(neurons, judge * share), end = min(neurons, begin + share);
    if (judge >= judges) begin = end = neurons;
    u32 own = 0;
    for (u32 j = begin; j < end; j++) own += above[j * a.together + stream] > 0;
    counts[threadIdx.x] = own;
    __syncthreads();
    u32 place = 0, all = 0;
    for (u32 i = 0; i < judges; i++) {
        u32 count = counts[i * a.together + stream];
        place += i < judge ? count : 0;
        all += count;
    }
    u32 next = place;
    for (u32 j = begin; j < end; j++) {
        float x = above[j * a.together + stream];
        if (x > 0) listed[next++ * a.together + stream] = x;
    }
    __syncthreads();
    for (u32 j = begin; j < end; j++) {
        float x = above[j * a.together + stream];
        u32 rank = 0;
        if (x > 0 && all > a.winners) {
            // Of equals the lower index wins.
            for (u32 i = 0; i < place; i++) rank += listed[i * a.together + stream] >= x;
            for (u32 i = place + 1; i < all; i++) rank += listed[i * a.together + stream] > x;
        }
        place += x > 0;
        fires[j * a.together + stream] = x > 0 && rank < a.winners;
    }
    __syncthreads();
}

// A block the neurons that compete, and some streams. Grid (neurons / block, B / together).
template <class T>
__device__ void fire(const SpikeArgs& a) {
    __shared__ float above[ROOM];
    __shared__ float listed[ROOM];
    __shared__ unsigned char fires[ROOM];
    u32 first = blockIdx.x * a.block, end = min(a.neurons, first + a.block);
    if (a.bits) {
        // Threads read their rows piece by piece, each after the one before: from L2, not from memory.
        u64 begin = (u64)first * a.fan_in;
        for (u32 i = threadIdx.x * 32; i < (end - first) * a.fan_in; i += 256 * 32) {
            prefetch(a.sources + begin + i);
            prefetch(a.weights + begin + i);
        }
        // Streams beyond the last are judged too.
        for (u32 i = threadIdx.x; i < (end - first) * a.together; i += 256)
            if (blockIdx.y * a.together + i % a.together >= a.streams) above[i] = 0;
        a.quads ? potentials<T, WIDE<T>, 4>(a, first, end, above) : potentials<T, WIDE<T>, 1>(a, first, end, above);
        __syncthreads();
    } else {
        potentials_of_one<T>(a, first, end, above, listed);
    }
    judge(a, end - first, above, listed, fires);
    T* spikes = (T*)a.spikes + (u64)a.neurons * a.streams;
    for (u32 i = threadIdx.x; i < (end - first) * a.together; i += 256) {
        u32 stream = blockIdx.y * a.together + i % a.together;
        if (stream >= a.streams) continue;
        u64 at = (u64)(first + i / a.together) * a.streams + stream;
        float z = fires[i] ? 1.0f : 0.0f;
        spikes[at] = store<T>(z);
        a.fatigue[at] = __fadd_rn(a.keep[stream] > 0 ? __fmul_rn(a.tiring, a.fatigue[at]) : 0.0f, z);
        if (!a.slope) continue;
        float slope = __fsub_rn(1.0f, __fdiv_rn(fabsf(above[i]), a.threshold));
        ((T*)a.slope)[at] = store<T>(slope > 0 ? __fmul_rn(0.3f, slope) : 0.0f);
    }
}

EXPORT_MANY(spike_fire_f32, SpikeArgs, 256, 4, fire<float>)
EXPORT_MANY(spike_fire_bf16, SpikeArgs, 256, 3, fire<bf16>)

// Output `o`, of whose `group` neurons so many fired.
template <class T>
__device__ inline void put_output(const SpikeArgs& a, u32 o, u32 stream, u32 group, u32 fired) {
    float share = __fdiv_rn(1.0f, __fsqrt_rn((float)group));
    T* before = (T*)a.signals + ((u64)a.first + o) * a.streams + stream;
    float left = a.keep[stream] > 0 ? __fmul_rn(a.filter, load(*before)) : 0.0f;
    left = fabsf(left) > FAINT ? left : 0.0f;
    before[(u64)a.rows * a.streams] = store<T>(__fadd_rn(left, __fmul_rn(share, (float)fired)));
}

// The same of the only stream: a bit a neuron, of 32 in a word. Grid (neurons / 256).
template <class T>
__device__ void pack_one(const SpikeArgs& a) {
    u32 neuron = blockIdx.x * 256 + threadIdx.x;
    u32 word = __ballot_sync(FULL_WARP, neuron < a.neurons && load(((const T*)a.spikes)[min(neuron, a.neurons - 1)]) > 0);
    if (threadIdx.x % 32 == 0 && neuron < a.neurons) a.bits[neuron / 32] = word;
}

EXPORT_BOTH(spike_pack_one, SpikeArgs, 256, pack_one)

// Places for the products of a block's synapses.
constexpr u32 PLACES = 8448;
// Neurons that a block decides about, a thread each.
constexpr u32 ALONE = 256;
// Threads that read their synapses: blocks are few, and what a thread reads one after the other takes the time.
constexpr u32 THREADS_OF_ONE = 512;

// Products of `Q` synapses a thread into `products`, rows `apart`; how many of a row are this token's into `of_now`.
template <class T, int Q>
__device__ inline void multiply(const SpikeArgs& a, u32 first, u32 neurons, u32 apart, float* products, u32* of_now) {
    const T* before = (const T*)a.signals + blockIdx.y;
    const T* spiked = (const T*)a.spikes + blockIdx.y;
    const u32* sources = a.sources + (u64)first * a.fan_in;
    const float* weights = a.weights + (u64)first * a.fan_in;
    u32 quads = a.fan_in / Q, all = neurons * quads;
    constexpr int AT_ONCE = 4;
    for (u32 start = threadIdx.x; start < all; start += AT_ONCE * THREADS_OF_ONE) {
        Vector<u32, Q> s[AT_ONCE];
        Vector<float, Q> w[AT_ONCE];
        float x[AT_ONCE][Q];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (start + i * THREADS_OF_ONE < all) {
                s[i] = fetch<u32, Q>(sources + (start + i * THREADS_OF_ONE) * Q);
                w[i] = fetch<float, Q>(weights + (start + i * THREADS_OF_ONE) * Q);
            }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (start + i * THREADS_OF_ONE < all) {
#pragma unroll
                for (int q = 0; q < Q; q++) {
                    u32 at = s[i].x[q];
                    u32 index = at < a.rows ? at + a.rows : at < 2 * a.rows ? at - a.rows : at - 2 * a.rows;
                    if (a.bits && at >= 2 * a.rows) x[i][q] = (float)(a.bits[index / 32] >> index % 32 & 1);
                    else x[i][q] = load((at < 2 * a.rows ? before : spiked)[(u64)index * a.streams]);
                }
            }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            u32 at = start + i * THREADS_OF_ONE, row = at / quads, f = at % quads * Q, now = 0;
            if (at >= all) break;
#pragma unroll
            for (int q = 0; q < Q; q++) {
                products[row * apart + f + q] = __fmul_rn(w[i].x[q], x[i][q]);
                now += s[i].x[q] < a.rows;
            }
            if (now > 0) atomicAdd(&of_now[row], now);
        }
    }
}

// A block the neurons that compete in one stream, at most ALONE, whose products have places. Grid (neurons / block, B).
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
    // Asked for at once with the synapses.
    if (has) {
        float z = load(((const T*)a.spikes)[i]), adaptation = (first + own) % 2 == 0 ? a.adaptation : 0.0f;
        left = __fsub_rn(__fmul_rn(a.leak, a.potential[i]), __fmul_rn(a.threshold, z));
        fatigue = keep ? a.fatigue[i] : 0.0f;
        limit = __fadd_rn(__fadd_rn(a.threshold, a.offset[first + own]), __fmul_rn(adaptation, fatigue));
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
        // What lies before a document counts for nothing, even if it is not a number.
        float v = keep ? __fadd_rn(__fadd_rn(left, previous), current) : current;
        v = v < LOWEST_POTENTIAL ? LOWEST_POTENTIAL : v;
        a.potential[i] = v;
        x = __fsub_rn(v, limit);
        above[own] = x;
    }
    __syncthreads();
    u32 rank = 0;
    if (x > 0) {
        // Of equals the lower index wins.
#pragma unroll 8
        for (u32 j = 0; j < neurons; j++) rank += j < own ? above[j] >= x : above[j] > x;
    }
    bool fires = x > 0 && rank < a.winners;
    if (has) {
        float z = fires ? 1.0f : 0.0f;
        ((T*)a.spikes)[(u64)a.neurons * a.streams + i] = store<T>(z);
        a.fatigue[i] = __fadd_rn(keep ? __fmul_rn(a.tiring, fatigue) : 0.0f, z);
        of_now[own] = fires;
    }
    if (has && a.slope) {
        float slope = __fsub_rn(1.0f, __fdiv_rn(fabsf(x), a.threshold));
        ((T*)a.slope)[i] = store<T>(slope > 0 ? __fmul_rn(0.3f, slope) : 0.0f);
    }
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

// A thread an output of a stream, and behind those a thread a neuron for its threshold.
template <class T>
__device__ void pool(const SpikeArgs& a) {
    u64 i = (u64)blockIdx.x * 256 + threadIdx.x, outputs = (u64)a.count * a.streams;
    const T* spikes = (const T*)a.spikes + (u64)a.neurons * a.streams;
    if (i < outputs) {
        u32 o = (u32)(i / a.streams), stream = (u32)(i % a.streams);
        u32 begin = (u32)((u64)o * a.neurons / a.count), end = (u32)((u64)(o + 1) * a.neurons / a.count), fired = 0;
        for (u32 j = begin; j < end; j++) fired += load(spikes[(u64)j * a.streams + stream]) > 0;
        put_output<T>(a, o, stream, end - begin, fired);
    } else if (i - outputs < a.neurons && a.homeostasis > 0) {
        u32 j = (u32)(i - outputs), fired = 0;
        for (u32 b = 0; b < a.streams; b++) fired += load(spikes[(u64)j * a.streams + b]) > 0;
        float more = __fsub_rn(__fdiv_rn((float)fired, (float)a.streams), a.rate);
        float moved = __fadd_rn(a.offset[j], __fmul_rn(a.homeostasis, more));
        a.offset[j] = fminf(fmaxf(moved, -OFFSET_LIMIT), OFFSET_LIMIT);
    }
}

EXPORT_BOTH(spike_pool, SpikeArgs, 256, pool)
