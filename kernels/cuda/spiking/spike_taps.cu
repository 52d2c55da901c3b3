// The contributions of taps to a module's neurons, for many tokens at once. They do not depend on the token before, so
// they are computed before the modules' own steps, which continue from them: taps are first in a row.
//
// Row k E + e of a token's taps is row e of the token k before. So a thread block that has all rows of a few streams in
// shared memory, for 8 tokens and for the earlier tokens that their taps see, has all taps of the 8:
//
//   row e:  [ t0 - 3 | t0 - 2 | t0 - 1 | t0 | t0 + 1 | ... | t0 + 7 ]   16 bytes of streams each
//   tap 2:             [ 8 lanes, a token each:  128 bytes   ]          no bank conflicts
//
// A warp has four neurons, and 64 synapses of each at a time: a lane looks up the sources of eight of them and tells
// the other lanes, each of which goes through all synapses of its neuron in order.
#include "../ptx.cuh"
#include "spike_sum.cuh"

constexpr u32 THREADS_OF_TAPS = 768, WARPS = THREADS_OF_TAPS / 32, TOKENS = 8, NEURONS = 4;
// The synapses that are fetched at once, how many such groups of a neuron a lane has, and the synapses of all lanes.
constexpr u32 QUAD = 4, OWN = 2, SYNAPSES = TOKENS * OWN * QUAD;

struct SpikeTapsArgs {
    const void* signals;   // [T + 1, rows, B]
    const u32* offsets;    // [B, T]
    const u32* sources;    // [neurons, fan_in]: ascending
    const float* weights;  // [neurons, fan_in]
    void* slope;           // [T, neurons, B]: sums are stored here
    void* spikes;          // [T + 1, neurons, B]: and here, from the second slot on
    u32* taken;            // [neurons]: synapses in a sum: those before the first four that are not all taps
    u32 rows, streams, neurons;
    u32 fan_in;            // a multiple of 4
    u32 length, tokens;    // T, and the number of processed tokens
    u32 width, taps, fresh;
    u32 block;             // neurons of a thread block
};

// The addresses that four synapses of each neuron of a warp read, and their weights.
struct Places {
    alignas(16) u32 of[NEURONS][SYNAPSES / QUAD][2 * QUAD];
};
static_assert(sizeof(Places) == 2048, "as spike_taps.rs makes room for them");

// A block's shared memory, in this order.
template <class T>
struct TapsRoom {
    typedef Vector<T, WIDE<T>> Streams;
    Streams* values;  // [width, TOKENS + taps - 1]
    Streams* zeros;   // [TOKENS]
    Streams* seen;    // [taps, TOKENS]: all bits set for a stream whose document reaches back so far
    u32* hidden;      // for each warp: whether there is a stream whose document does not
    Places* places;   // of this warp

    __device__ TapsRoom(unsigned char* room, const SpikeTapsArgs& a) {
        values = (Streams*)room;
        zeros = values + a.width * (TOKENS + a.taps - 1);
        seen = zeros + TOKENS;
        hidden = (u32*)(seen + a.taps * TOKENS);
        places = (Places*)(hidden + WARPS) + threadIdx.x / 32;
    }
};

// The bits above the address: the tap, for the mask of documents.
constexpr u32 TAP = 18;

// Loads the data of the block's taps.
template <class T>
__device__ inline void bring_taps(const SpikeTapsArgs& a, const TapsRoom<T>& room, u32 t0, u32 stream) {
    constexpr u32 N = WIDE<T>;
    u32 window = TOKENS + a.taps - 1, lane = threadIdx.x % 32;
    const T* signals = (const T*)a.signals + stream;
    for (u32 i = threadIdx.x; i < a.width * window; i += THREADS_OF_TAPS) {
        u32 e = i % a.width, place = i / a.width, later = t0 + place;
        Vector<T, N> x = {};
        // The token is `later` + 1 - taps. Tokens before the segment are the taps of its first slot.
        u32 slot = later + 1 < a.taps ? 0 : later + 2 - a.taps, tap = later + 1 < a.taps ? a.taps - 2 - later : 0;
        if (slot <= a.tokens && (slot > 0 || !a.fresh))
            x = fetch<T, N>(signals + ((u64)slot * a.rows + tap * a.width + e) * a.streams);
        room.values[e * window + place] = x;
    }
    if (threadIdx.x < TOKENS) room.zeros[threadIdx.x] = {};
    bool hides = false;
    for (u32 i = threadIdx.x; i < a.taps * TOKENS * N; i += THREADS_OF_TAPS) {
        u32 tap = i / (TOKENS * N), t = t0 + i / N % TOKENS;
        bool sees = true;
        // A segment without a past has zeros before it.
        if (t < a.tokens) sees = tap <= a.offsets[(stream + i % N) * a.length + t];
        hides |= !sees;
        if constexpr (sizeof(T) == 2) ((unsigned short*)room.seen)[i] = sees ? 0xffff : 0;
        else ((u32*)room.seen)[i] = sees ? ~0u : 0;
    }
    u32 found = __ballot_sync(FULL_WARP, hides);
    if (lane == 0) room.hidden[threadIdx.x / 32] = found;
    __syncthreads();
}

// The next synapses of a lane: of its neuron's 64 from `f` on, four at a time.
struct Quads {
    Vector<u32, QUAD> sources[OWN];
    Vector<float, QUAD> weights[OWN];
    u32 behind;  // the source after all 64

    __device__ void ask(const SpikeTapsArgs& a, u32 neuron, u32 end, u32 f) {
        u32 own = f + threadIdx.x % TOKENS * QUAD;
        u64 at = (u64)neuron * a.fan_in + own;
        u32 length = neuron < end ? a.fan_in : 0;
        behind = ~0u;
        if (f + SYNAPSES < length) behind = a.sources[at - own + f + SYNAPSES];
#pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            sources[i].x[QUAD - 1] = ~0u;
            if (own + i * TOKENS * QUAD >= length) continue;
            sources[i] = fetch<u32, QUAD>(a.sources + at + i * TOKENS * QUAD);
            weights[i] = fetch<float, QUAD>(a.weights + at + i * TOKENS * QUAD);
        }
    }
};

// The sums of the block's neurons; a lane has those of 16 bytes of streams at its token.
template <class T, bool HIDDEN>
__device__ inline void sum_taps(const SpikeTapsArgs& a, const TapsRoom<T>& room, u32 t0, u32 stream) {
    constexpr int N = WIDE<T>;
    constexpr u32 BYTES = sizeof(Vector<T, N>), EVERY = (1u << TOKENS) - 1;
    u32 own = threadIdx.x % 32 / TOKENS, token = threadIdx.x % TOKENS;
    u32 first = blockIdx.y * a.block, end = min(a.neurons, first + a.block), window = TOKENS + a.taps - 1;
    u32 front = a.taps * a.width, inverse = 0xffffffffu / a.width + 1;
    // The distance from one source to the next, and from a tap's last source back to the next tap's first.
    u32 step = window * BYTES, back = a.width * step + BYTES, begin = (a.taps - 1) * BYTES;
    const char* values = (const char*)(room.values + token);
    const char* seen = (const char*)(room.seen + token);
    u32 neuron = first + threadIdx.x / 32 * NEURONS + own, f = 0, taken = 0;
    float sum[N] = {};
    Quads quads;
    quads.ask(a, neuron, end, f);
    while (neuron - own < end) {
        u32 found[OWN], most = 0;
#pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            // Sources are ascending: all four are taps if the last is.
            found[i] = __ballot_sync(FULL_WARP, quads.sources[i].x[QUAD - 1] < front);
            taken += QUAD * __popc(found[i] >> own * TOKENS & EVERY);
            u32 any = found[i] | found[i] >> 16;
            most += __popc((any | any >> 8) & EVERY);
        }
#pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            u32* to = room.places->of[own][i * TOKENS + token];
            if (quads.sources[i].x[QUAD - 1] < front) {
                Vector<u32, 4> said[2];
#pragma unroll
                for (u32 q = 0; q < QUAD; q++) {
                    u32 s = quads.sources[i].x[q], tap = a.width > 1 ? __umulhi(s, inverse) : s;
                    said[q / 2].x[q % 2 * 2] = s * step + begin - tap * back + (HIDDEN ? tap << TAP : 0);
                    said[q / 2].x[q % 2 * 2 + 1] = __float_as_uint(quads.weights[i].x[q]);
                }
                ((Vector<u32, 4>*)to)[0] = said[0];
                ((Vector<u32, 4>*)to)[1] = said[1];
            } else if (i * TOKENS + token < most) {
                // Other neurons have more of them: zeros times 0 change no sum, since no sum is ever -0.
#pragma unroll
                for (u32 q = 0; q < QUAD; q++) to[2 * q] = a.width * step, to[2 * q + 1] = 0;
            }
        }
        bool on = __ballot_sync(FULL_WARP, quads.behind < front) != 0;
        u32 next = on ? neuron : neuron + WARPS * NEURONS;
        f = on ? f + SYNAPSES : 0;
        __syncwarp();
        quads.ask(a, next, end, f);
        const Vector<u32, 4>* said = (const Vector<u32, 4>*)room.places->of[own];
#pragma unroll 1
        for (u32 i = 0; i < most; i++, said += 2) {
            Vector<u32, 4> pairs[2] = {said[0], said[1]};
            Vector<T, N> x[QUAD];
#pragma unroll
            for (u32 q = 0; q < QUAD; q++) {
                u32 place = pairs[q / 2].x[q % 2 * 2];
                x[q] = *(const Vector<T, N>*)(values + (HIDDEN ? place & ((1u << TAP) - 1) : place));
                if constexpr (HIDDEN) {
                    Vector<u32, 4> mask = *(const Vector<u32, 4>*)(seen + (place >> TAP) * TOKENS * BYTES);
#pragma unroll
                    for (int n = 0; n < 4; n++) ((Vector<u32, 4>&)x[q]).x[n] &= mask.x[n];
                }
            }
#pragma unroll
            for (u32 q = 0; q < QUAD; q++) add_signal(sum, __uint_as_float(pairs[q / 2].x[q % 2 * 2 + 1]), x[q]);
        }
        __syncwarp();
        if (on) continue;
        if (t0 + token < a.tokens && neuron < end) {
            u64 at = ((u64)(t0 + token) * a.neurons + neuron) * a.streams + stream;
            leave((T*)a.slope + at, (T*)a.spikes + (u64)a.neurons * a.streams + at, sum);
        }
        if (blockIdx.x == 0 && token == 0 && neuron < end) a.taken[neuron] = taken;
#pragma unroll
        for (int n = 0; n < N; n++) sum[n] = 0;
        taken = 0, neuron = next;
    }
}

// Grid (16 bytes of streams, then 8 tokens; neurons / block).
template <class T>
__device__ void spike_taps(const SpikeTapsArgs& a) {
    LAUNCH_SHARED(memory, 80 << 10);
    TapsRoom<T> room(memory, a);
    u32 groups = a.streams / WIDE<T>, stream = blockIdx.x % groups * WIDE<T>, t0 = blockIdx.x / groups * TOKENS;
    bring_taps(a, room, t0, stream);
    u32 hidden = 0;
    for (u32 w = 0; w < WARPS; w++) hidden |= room.hidden[w];
    hidden ? sum_taps<T, true>(a, room, t0, stream) : sum_taps<T, false>(a, room, t0, stream);
}

EXPORT_BOTH(spike_taps, SpikeTapsArgs, 768, spike_taps)
