// One token's step of a module of spiking neurons in many streams: potentials and spikes, then the outputs.
#include "spike.cuh"
#include "spike_sum.cuh"

// The largest number of neurons times streams of a thread block.
constexpr u32 ROOM = 4096;
// Threads that decide which neurons of a stream fire.
constexpr u32 JUDGES = 16;

// Each thread has 8 streams of a neuron: packs the previous spikes into a byte. Grid (neurons / 64, groups of 32
// streams).
template <class T>
__device__ void pack_before(const SpikeArgs& a) {
    u32 neuron = blockIdx.x * 64 + threadIdx.x / 4, stream = blockIdx.y * 32 + threadIdx.x % 4 * 8, byte = 0;
    if (neuron >= a.neurons) return;
    const T* spikes = (const T*)a.spikes + (u64)neuron * a.streams + stream;
    if (a.wide && stream + 8 <= a.streams) {
        float z[8];
        read(z, spikes);
#pragma unroll
        for (int i = 0; i < 8; i++) byte |= (z[i] > 0) << i;
    } else {
        for (u32 i = 0; i < 8 && stream + i < a.streams; i++) byte |= (load(spikes[i]) > 0) << i;
    }
    ((unsigned char*)(a.bits + blockIdx.y * a.neurons + neuron))[threadIdx.x % 4] = (unsigned char)byte;
}

EXPORT_BOTH(spike_pack, SpikeArgs, 256, pack_before)

// A spike is 1: the weight itself is added to the sum, or nothing.
template <int N>
__device__ inline void add_spikes(float (&sum)[N], float weight, u32 fired) {
#pragma unroll
    for (int i = 0; i < N; i++)
        if (fired >> i & 1) sum[i] = __fadd_rn(sum[i], weight);
}

// A neuron's synapses, Q at a time, with the next ones being loaded.
template <int Q>
struct Synapses {
    const char *sources, *weights;
    u32 at, end;  // of the current synapses, and the end of the row
    Vector<u32, Q> s, next;
    Vector<float, Q> w, next_weights;

    // Starts at synapse `first`.
    __device__ Synapses(const SpikeArgs& a, u32 neuron, u32 first)
        : sources((const char*)(a.sources + (u64)neuron * a.fan_in)),
          weights((const char*)(a.weights + (u64)neuron * a.fan_in)), at(first), end(a.fan_in) {
        opaque(sources), opaque(weights);
        ask(at);
        s = next, w = next_weights;
        ask(at + Q);
    }

    // After the last synapses it loads the last ones again, which are not used.
    __device__ void ask(u32 place) {
        u64 bytes = (u64)min(place, max(end, (u32)Q) - Q) * sizeof(u32);
        next = fetch<u32, Q>((const u32*)(sources + bytes));
        next_weights = fetch<float, Q>((const float*)(weights + bytes));
    }

    // Calls `visit` with all groups that have a source below `limit`. Sources are ascending: the last group may have
    // others, too.
    template <class Visit>
    __device__ void until(u32 limit, Visit visit) {
#pragma unroll 1
        while (at < end && s.x[0] < limit) {
            visit();
            if (s.x[Q - 1] >= limit) break;
            s = next, w = next_weights;
            at += Q;
            ask(at + Q);
        }
    }
};

// The contributions of a neuron's synapses for N streams from `stream` on: from this token's signals, and from the
// signals and spikes of the token before; without those that are already in the sums. The neurons of a warp switch from
// one kind of source to the next at nearly the same time.
template <class T, int N, int Q>
__device__ inline void bring(const SpikeArgs& a, u32 neuron, u32 stream, float (&now)[N], float (&before)[N]) {
    Synapses<Q> synapses(a, neuron, a.taken ? a.taken[neuron] : 0);
    const Vector<u32, Q>& s = synapses.s;
    u32 step = a.streams * sizeof(T);
    auto signals = [&](const T* values, u32 first, float (&sum)[N]) {
        // Relative to source 0, so that the address of a source takes one multiplication.
        const char* from = (const char*)values - (u64)first * step;
        opaque(from);
        synapses.until(first + a.rows, [&] {
            Vector<T, N> x[Q] = {};
#pragma unroll
            for (int q = 0; q < Q; q++)
                if (s.x[q] - first < a.rows) x[q] = fetch<T, N>((const T*)(from + (u64)s.x[q] * step));
#pragma unroll
            for (int q = 0; q < Q; q++) add_signal(sum, synapses.w.x[q], x[q]);
        });
    };
    const T* values = (const T*)a.signals + stream;
    signals(values + (u64)a.rows * a.streams, 0, now);
    // Not for a group of four that spans a kind without any of its sources.
    bool any = false;
#pragma unroll
    for (int q = 0; q < Q; q++) any |= s.x[q] - a.rows < a.rows;
    if (any) signals(values, a.rows, before);
    // Relative to source 0, so that the address of a source's word, or of its byte for these streams, takes one
    // multiplication.
    u32 first = 2 * a.rows;
    const char* bits = (const char*)(a.bits + stream / 32 * a.neurons) - (u64)first * sizeof(u32) + stream % 32 / 8;
    opaque(bits);
    synapses.until(~0u, [&] {
        // All are loaded before one is used; for a source of another kind any valid address is read.
        unsigned char fired[Q];
#pragma unroll
        for (int q = 0; q < Q; q++) fired[q] = *(const unsigned char*)(bits + (u64)max(s.x[q], first) * sizeof(u32));
#pragma unroll
        for (int q = 0; q < Q; q++)
            add_spikes(before, synapses.w.x[q], s.x[q] >= first ? (u32)fired[q] >> (N == 8 ? 0 : stream % 8) : 0);
    });
}

// The distance of N streams of a neuron above the threshold after this token; `tired` receives the fatigue before it.
template <class T, int N>
__device__ inline void integrate(const SpikeArgs& a, u32 neuron, u32 stream, float (&above)[N], float (&tired)[N]) {
    float now[N] = {}, before[N] = {}, v[N], z[N], keep[N];
    u64 i = (u64)neuron * a.streams + stream;
    if (a.taken) take_up(now, (const T*)a.slope + i, (const T*)a.spikes + (u64)a.neurons * a.streams + i);
    a.quads ? bring<T, N, 4>(a, neuron, stream, now, before) : bring<T, N, 1>(a, neuron, stream, now, before);
    read(v, a.potential + i);
    read(z, (const T*)a.spikes + i);
    read(keep, a.keep + stream);
    read(tired, a.fatigue + i);
    float offset = a.offset[neuron];
#pragma unroll
    for (int n = 0; n < N; n++) {
        tired[n] = keep[n] > 0 ? tired[n] : 0.0f;
        v[n] = potential(leak(a, v[n], z[n]), keep[n] > 0, before[n], now[n]);
        above[n] = __fsub_rn(v[n], threshold(a, neuron, offset, tired[n]));
    }
    write(a.potential + i, v);
}

// Writes the results that depend on the spikes.
template <class T, int N>
__device__ inline void settle(const SpikeArgs& a, u32 neuron, u32 stream, const float (&above)[N], float (&tired)[N],
                              const float (&z)[N]) {
    u64 i = (u64)neuron * a.streams + stream;
    float keep[N], slope[N];
    read(keep, a.keep + stream);
#pragma unroll
    for (int n = 0; n < N; n++) {
        tired[n] = tire(a, keep[n] > 0, tired[n], z[n]);
        slope[n] = slope_of(a, above[n]);
    }
    write((T*)a.spikes + (u64)a.neurons * a.streams + i, z);
    if constexpr (N == 8) {
        if (a.bits_after) {
            u32 byte = 0;
#pragma unroll
            for (int n = 0; n < N; n++) byte |= (z[n] > 0) << n;
            ((unsigned char*)(a.bits_after + stream / 32 * a.neurons + neuron))[stream % 32 / 8] = (unsigned char)byte;
        }
    }
    write(a.fatigue + i, tired);
    if (a.slope) write((T*)a.slope + i, slope);
}

// Writes the spikes to `fires`. Each judge has some neurons of a stream; those above their threshold are listed in
// order, so that ranks are counted among few.
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
            // The lower index of equals wins.
            for (u32 i = 0; i < place; i++) rank += listed[i * a.together + stream] >= x;
            for (u32 i = place + 1; i < all; i++) rank += listed[i * a.together + stream] > x;
        }
        place += x > 0;
        fires[j * a.together + stream] = x > 0 && rank < a.winners;
    }
    __syncthreads();
}

// The outputs and thresholds of a block that has whole groups of neurons, and all streams if thresholds change.
template <class T>
__device__ inline void pool_block(const SpikeArgs& a, u32 first, u32 end, const unsigned char* fires) {
    u32 group = a.neurons / a.count, outputs = (end - first) / group;
    for (u32 i = threadIdx.x; i < outputs * a.together; i += 256) {
        u32 o = i / a.together, own = i % a.together, stream = blockIdx.y * a.together + own, fired = 0;
        if (stream >= a.streams) continue;
        for (u32 j = 0; j < group; j++) fired += fires[(o * group + j) * a.together + own];
        put_output<T>(a, first / group + o, stream, group, fired);
    }
    if (a.homeostasis <= 0) return;
    for (u32 j = threadIdx.x; j < end - first; j += 256) {
        u32 fired = 0;
        for (u32 b = 0; b < a.streams; b++) fired += fires[j * a.together + b];
        hold(a, first + j, fired);
    }
}

// Each block has some neurons, namely those that compete if any do, and some streams; each thread has N streams of a
// neuron.
template <class T, int N, bool COMPETE>
__device__ inline void fire(const SpikeArgs& a, float* above, float* listed, unsigned char* fires) {
    u32 first = blockIdx.x * a.block, end = min(a.neurons, first + a.block), lanes = a.together / N;
    u32 own = threadIdx.x % lanes * N, stream = blockIdx.y * a.together + own, at_once = 256 / lanes;
    // Threads read their rows piece by piece, each piece after the one before: prefetched into L2 to avoid the latency
    // of memory. Rows have about as many taps as the first one.
    u64 begin = (u64)first * a.fan_in;
    u32 taken = a.taken ? a.taken[first] : 0, lines = (a.fan_in - taken) / 32 + 1;
    if (taken == 0) {
        for (u32 i = threadIdx.x * 32; i < (end - first) * a.fan_in; i += 256 * 32) {
            prefetch(a.sources + begin + i);
            prefetch(a.weights + begin + i);
        }
    } else {
        for (u32 i = threadIdx.x; i < (end - first) * lines; i += 256) {
            u64 at = begin + i / lines * a.fan_in + min(taken + i % lines * 32, a.fan_in - 1);
            prefetch(a.sources + at);
            prefetch(a.weights + at);
        }
    }
    bool has = stream < a.streams;
    float x[N] = {}, tired[N] = {}, z[N];
    for (u32 j = threadIdx.x / lanes; j < end - first; j += at_once) {
        if (has) integrate<T, N>(a, first + j, stream, x, tired);
        u32 place = j * a.together + own;
        if constexpr (COMPETE) {
            // Streams beyond the last are judged as well.
            write(above + place, x);
        } else {
#pragma unroll
            for (int n = 0; n < N; n++) {
                z[n] = x[n] > 0 ? 1.0f : 0.0f;
                fires[place + n] = x[n] > 0;
            }
            if (has) settle<T, N>(a, first + j, stream, x, tired, z);
        }
    }
    __syncthreads();
    if constexpr (COMPETE) {
        judge(a, end - first, above, listed, fires);
        for (u32 j = threadIdx.x / lanes; has && j < end - first; j += at_once) {
            u32 place = j * a.together + own;
            read(x, above + place);
            read(tired, a.fatigue + (u64)(first + j) * a.streams + stream);
#pragma unroll
            for (int n = 0; n < N; n++) z[n] = fires[place + n];
            settle<T, N>(a, first + j, stream, x, tired, z);
        }
    }
    if (a.pooled) pool_block<T>(a, first, end, fires);
}

// Every neuron fires independently. Grid (neurons / block, B / together).
template <class T>
__device__ void fire_freely(const SpikeArgs& a) {
    __shared__ unsigned char fires[ROOM];
    a.wide ? fire<T, WIDE<T>, false>(a, nullptr, nullptr, fires) : fire<T, 1, false>(a, nullptr, nullptr, fires);
}

EXPORT_MANY(spike_fire_f32, SpikeArgs, 256, 4, fire_freely<float>)
EXPORT_MANY(spike_fire_bf16, SpikeArgs, 256, 3, fire_freely<bf16>)

// The neurons of a block compete. The same grid as fire_freely.
template <class T>
__device__ void fire_in_competition(const SpikeArgs& a) {
    alignas(16) __shared__ float above[ROOM];
    __shared__ float listed[ROOM];
    __shared__ unsigned char fires[ROOM];
    a.wide ? fire<T, WIDE<T>, true>(a, above, listed, fires) : fire<T, 1, true>(a, above, listed, fires);
}

EXPORT_MANY(spike_compete_f32, SpikeArgs, 256, 4, fire_in_competition<float>)
EXPORT_MANY(spike_compete_bf16, SpikeArgs, 256, 4, fire_in_competition<bf16>)

// One thread for each output of a stream, followed by one thread for each neuron's threshold.
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
        hold(a, j, fired);
    }
}

EXPORT_BOTH(spike_pool, SpikeArgs, 256, pool)
