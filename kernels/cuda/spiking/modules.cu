// Runs tokens through modules of spiking neurons with one stream, in sequence in one launch.
//
// With only one stream, each synapse is read once for a token, so memory bandwidth is the limit. But the sources are
// scattered among the signals, and L1 processes the lanes' lines one after the other. So one block stays on each
// multiprocessor and has the signals of this token and of the token before in its shared memory, where a warp waits
// only for lanes with bank conflicts. Every module's neurons are divided among the blocks:
//
//   token before   this token
//   [ signals ]    [ signals ] ---+   a warp: 16 neurons, 32 synapses of each at a time. Lanes multiply
//   [ spikes, a bit each     ] ---+-> neighbouring synapses; then one lane for each neuron adds its products
//                      ^              in order, so that spikes are the same as on every other device.
//                      |                |
//                      +--- outputs <---+   all blocks wait for each other and read the module's outputs.
//
// Meanwhile a warp's next synapses are being loaded from memory into its registers.
#include "spike.cuh"

constexpr u32 MOST_MODULES = 8, WARPS = 20, THREADS = 32 * WARPS;
// Neurons of a warp, synapses of each at a time and of a lane, and the distance in floats between the products of two
// neurons: chosen so that whole vectors of them lie in different banks.
constexpr u32 NEURONS = 16, SYNAPSES = 32, QUAD = 4, APART = 36;

struct ModulesArgs {
    SpikeArgs module[MOST_MODULES];  // at the first token. block: neurons of a thread block, in whole groups and bytes of
                                     // bits. bits: [2, words of 32 neurons], of an even token's and an odd one's
    u32* arrivals;                   // 0 before
    u32 modules, tokens;
    u32 bits_room, fired_room;       // bytes of shared memory, in multiples of 16
};

// A warp's products, and their kinds: for each group of four a byte with the bits of those that count, and above these
// the bits of those that read this token.
struct Products {
    alignas(16) float of[NEURONS][APART];
    alignas(8) unsigned char kinds[NEURONS][SYNAPSES / QUAD];
};
static_assert(sizeof(Products) == 16 * (4 * 36 + 8), "as modules.rs makes room for them");

// The inputs of synapses in shared memory: signals in the order of sources, and a bit for each neuron that fired.
template <class T>
struct Signals {
    const T* table;
    const u32* fired;
    u32 rows;
};

// The kind of a warp's sources: all of this token, all previous spikes, or mixed.
enum Kind { NOW, FIRED, MIXED };

// A module at a token, for this block.
template <class T>
struct Now {
    T *signals, *spikes, *slope;
    u32 *bits, *bits_after;
    u32 begin, end;  // neurons
    bool keep;

    __device__ Now(const SpikeArgs& a, u32 t)
        : signals((T*)a.signals + (u64)t * a.rows), spikes((T*)a.spikes + (u64)t * a.neurons),
          slope(a.slope ? (T*)a.slope + (u64)t * a.neurons : nullptr), begin(min(a.neurons, blockIdx.x * a.block)),
          end(min(a.neurons, begin + a.block)), keep(a.keep[t] > 0) {
        u32 words = (a.neurons + 31) / 32;
        bits = a.bits + t % 2 * words, bits_after = a.bits + (t + 1) % 2 * words;
    }
};

// Packs the spikes of this block's neurons before the first token into bits: one warp for each module, one lane for
// each byte.
template <class T>
__device__ inline void pack(const ModulesArgs& a) {
    for (u32 m = threadIdx.x / 32; m < a.modules; m += WARPS) {
        Now<T> now(a.module[m], 0);
        for (u32 first = now.begin + threadIdx.x % 32 * 8; first < now.end; first += 32 * 8) {
            u32 byte = 0;
            for (u32 i = 0; i < 8 && first + i < now.end; i++) byte |= (u32)(load(now.spikes[first + i]) > 0) << i;
            ((unsigned char*)now.bits)[first / 8] = (unsigned char)byte;
        }
    }
}

// Copies to shared memory, 16 bytes at a time where both addresses allow.
template <class T>
__device__ inline void bring(T* to, const T* from, u32 count) {
    u32 wide = ((u64)to | (u64)from) % 16 == 0 ? count / WIDE<T> : 0;
    for (u32 i = threadIdx.x; i < wide; i += THREADS)
        *(Vector<T, WIDE<T>>*)(to + i * WIDE<T>) = fetch<T, WIDE<T>>(from + i * WIDE<T>);
    for (u32 i = wide * WIDE<T> + threadIdx.x; i < count; i += THREADS) to[i] = from[i];
}

// A lane's synapses in four different rows: four consecutive ones of each.
struct Synapses {
    static constexpr int ROWS = NEURONS * SYNAPSES / QUAD / 32;
    Vector<u32, QUAD> sources[ROWS];
    Vector<float, QUAD> weights[ROWS];

    // The row of the `i`-th group, and its first column.
    __device__ static u32 row(int i) { return (i * 32 + threadIdx.x % 32) / (SYNAPSES / QUAD); }
    __device__ static u32 column() { return threadIdx.x % (SYNAPSES / QUAD) * QUAD; }

    // Loads the synapses from `from` on, of neuron `first` and those after it up to index `last`. After a row's last
    // synapse the source is `nothing`, with a weight of 0.
    __device__ void ask(const SpikeArgs& a, const u32* s, const float* w, u32 first, u32 last, u32 from, u32 nothing) {
        u32 at = from + column(), inside = min(at, a.fan_in - QUAD);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            u32 place = min(first + row(i), last) * a.fan_in + inside;
            sources[i] = fetch<u32, QUAD>(s + place);
            weights[i] = fetch<float, QUAD>(w + place);
        }
        if (from + SYNAPSES <= a.fan_in || at < a.fan_in) return;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int q = 0; q < QUAD; q++) sources[i].x[q] = nothing, weights[i].x[q] = 0;
    }

    // Writes the products to where the neurons' lanes read them. A spike is 1.
    template <class T>
    __device__ Kind multiply(const Signals<T>& of, Products& own) const {
        u32 spikes = 2 * of.rows, least = ~0u, most = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++) least = min(least, sources[i].x[0]), most = max(most, sources[i].x[QUAD - 1]);
        // Sources are ascending, so most warps' synapses all read one kind.
        if (__ballot_sync(FULL_WARP, most >= of.rows) == 0) {
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                float products[QUAD];
#pragma unroll
                for (int q = 0; q < QUAD; q++)
                    products[q] = __fmul_rn(weights[i].x[q], load(of.table[sources[i].x[q]]));
                write(own.of[row(i)] + column(), products);
            }
            return NOW;
        }
        bool all = __ballot_sync(FULL_WARP, least < spikes) == 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            u32 words[QUAD], kinds = 0;
#pragma unroll
            for (int q = 0; q < QUAD; q++) words[q] = of.fired[(max(sources[i].x[q], spikes) - spikes) / 32];
#pragma unroll
            for (int q = 0; q < QUAD; q++) kinds |= (words[q] >> (sources[i].x[q] - spikes) % 32 & 1) << q;
            float products[QUAD];
            unpack(products, weights[i]);
            if (!all) mix(of, i, products, kinds);
            write(own.of[row(i)] + column(), products);
            own.kinds[row(i)][column() / QUAD] = (unsigned char)kinds;
        }
        return all ? FIRED : MIXED;
    }

    // The `i`-th group where some read signals. Without branches for single synapses, so that the four loads overlap.
    template <class T>
    __device__ void mix(const Signals<T>& of, int i, float (&products)[QUAD], u32& kinds) const {
        u32 spikes = 2 * of.rows, fired = kinds;
        float x[QUAD];
        kinds = 0;
#pragma unroll
        for (int q = 0; q < QUAD; q++) x[q] = load(of.table[min(sources[i].x[q], spikes - 1)]);
#pragma unroll
        for (int q = 0; q < QUAD; q++) {
            u32 source = sources[i].x[q];
            float spike = fired >> q & 1 ? products[q] : 0.0f, signal = __fmul_rn(products[q], x[q]);
            products[q] = source < spikes ? signal : spike;
            kinds |= (u32)(source < of.rows) << (QUAD + q);
        }
    }
};

// The input of a neuron's synapses, from this token and from the token before.
struct Current {
    float now, before;

    // Adds the products of a piece in order; if the sources are neurons, only those that fired.
    __device__ void add(const Products& own, Kind kind) {
        const float* products = own.of[threadIdx.x % 32];
        Vector<u32, 2> kinds = *(const Vector<u32, 2>*)own.kinds[threadIdx.x % 32];
        if (kind == FIRED) {
            for (u32 left = bits(kinds.x[0]) | bits(kinds.x[1]) << 16; left > 0; left &= left - 1)
                before = __fadd_rn(before, products[__ffs((int)left) - 1]);
            return;
        }
        // Sources are ascending: those of this token come first.
        u32 first = SYNAPSES;
        if (kind == MIXED) first = __popc(kinds.x[0] & 0xf0f0f0f0u) + __popc(kinds.x[1] & 0xf0f0f0f0u);
#pragma unroll
        for (u32 i = 0; i < SYNAPSES; i += QUAD) {
            float x[QUAD];
            read(x, products + i);
#pragma unroll
            for (u32 q = 0; q < QUAD; q++) {
                if (i + q < first) now = __fadd_rn(now, x[q]);
                else before = __fadd_rn(before, x[q]);
            }
        }
    }

    // Packs the lower halves of four bytes together.
    __device__ static u32 bits(u32 x) {
        x &= 0x0f0f0f0fu;
        x = (x | x >> 4) & 0x00ff00ffu;
        return (x | x >> 8) & 0xffffu;
    }
};

// Decides which of this block's neurons fire: writes bits to `fired` and to the next token's bits. Calls `meet`, which
// waits for the inputs, after the synapses are requested.
template <class T, class Meet>
__device__ inline void fire(const SpikeArgs& a, const Now<T>& now, const Signals<T>& of, Products& own,
                            unsigned char* fired, Meet meet) {
    u32 lane = threadIdx.x % 32, last = now.end - now.begin - 1;
    u32 first = now.begin + threadIdx.x / 32 * NEURONS, from = 0;
    const u32* sources = a.sources + (u64)now.begin * a.fan_in;
    const float* weights = a.weights + (u64)now.begin * a.fan_in;
    Synapses synapses;
    auto ask = [&] {
        if (first < now.end) synapses.ask(a, sources, weights, first - now.begin, last, from, 2 * of.rows);
    };
    ask();
    meet();
    while (first < now.end) {
        u32 begin = first, neuron = first + lane;
        bool has = lane < NEURONS && neuron < now.end, fires = false;
        float left = 0, limit = 0, tired = 0;
        if (has) {
            left = leak(a, a.potential[neuron], load(now.spikes[neuron]));
            tired = now.keep ? a.fatigue[neuron] : 0.0f;
            limit = threshold(a, neuron, a.offset[neuron], tired);
        }
        Current current = {};
#pragma unroll 1
        do {
            Kind kind = synapses.multiply(of, own);
            from += SYNAPSES;
            if (from >= a.fan_in) from = 0, first += WARPS * NEURONS;
            ask();
            __syncwarp();
            if (has) current.add(own, kind);
            __syncwarp();
        } while (from > 0);
        if (has) {
            float v = potential(left, now.keep, current.before, current.now), above = __fsub_rn(v, limit);
            fires = above > 0;
            float z = fires ? 1.0f : 0.0f;
            a.potential[neuron] = v;
            a.fatigue[neuron] = tire(a, now.keep, tired, z);
            now.spikes[a.neurons + neuron] = store<T>(z);
            if (now.slope) now.slope[neuron] = store<T>(slope_of(a, above));
            if (a.homeostasis > 0) hold(a, neuron, fires);
        }
        u32 all = __ballot_sync(FULL_WARP, fires);
        if (lane < NEURONS / 8 && begin + 8 * lane < now.end) {
            unsigned char byte = (unsigned char)(all >> 8 * lane);
            fired[(begin - now.begin) / 8 + lane] = byte;
            ((unsigned char*)now.bits_after)[begin / 8 + lane] = byte;
        }
    }
}

// Computes the outputs of this block's neurons; `before` are those of the token before.
template <class T>
__device__ inline void pool_outputs(const SpikeArgs& a, const Now<T>& now, const T* before, const unsigned char* fired) {
    u32 group = a.neurons / a.count, outputs = (now.end - now.begin) / group, first = a.first + now.begin / group;
    for (u32 o = threadIdx.x; o < outputs; o += THREADS) {
        u32 count = 0;
        for (u32 j = o * group; j < (o + 1) * group; j++) count += fired[j / 8] >> j % 8 & 1;
        now.signals[a.rows + first + o] = output_of(a, before[first + o], now.keep, group, count);
    }
}

template <class T>
__device__ void modules(const ModulesArgs& a) {
    LAUNCH_SHARED(pool, 80 << 10);
    Products& own = ((Products*)pool)[threadIdx.x / 32];
    u32* bits = (u32*)((Products*)pool + WARPS);
    unsigned char* fired = (unsigned char*)bits + a.bits_room;
    T* table = (T*)(fired + a.fired_room);
    u32 rows = a.module[0].rows, waited = 0;
    Signals<T> of = {table, bits, rows};
    pack<T>(a);
    for (u32 t = 0; t < a.tokens; t++) {
        const T* signals = (const T*)a.module[0].signals + (u64)t * rows;
        for (u32 m = 0; m < a.modules; m++) {
            const SpikeArgs& module = a.module[m];
            Now<T> now(module, t);
            // All blocks have written the outputs of the previous module, of this token or of the token before.
            __syncthreads();
            waited += gridDim.x;
            if (threadIdx.x == 0) arrive(a.arrivals);
            auto meet = [&] {
                if (threadIdx.x == 0) await_arrivals(a.arrivals, waited);
                __syncthreads();
                if (m == 0) {
                    bring(table, signals + rows, rows);
                    bring(table + rows, signals, rows);
                } else {
                    const SpikeArgs& last = a.module[m - 1];
                    bring(table + last.first, signals + rows + last.first, last.count);
                }
                bring(bits, (const u32*)now.bits, (module.neurons + 31) / 32);
                __syncthreads();
            };
            fire(module, now, of, own, fired, meet);
            __syncthreads();
            pool_outputs<T>(module, now, table + rows, fired);
        }
    }
}

EXPORT_MANY(modules_f32, ModulesArgs, THREADS, 1, modules<float>)
EXPORT_MANY(modules_bf16, ModulesArgs, THREADS, 1, modules<bf16>)
