// What spiking neurons with one stream and with many share: arguments, a potential, an output.
//
// Every sum goes over a row's synapses in their order, products and sums rounded one by one, so that the spikes are
// those of every other device.
#pragma once
#include "../vector.cuh"

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
    u32* bits;             // [groups of 32 streams, neurons]: who fired before; null: the spikes themselves are read
    u32* bits_after;       // the same of this token, for the next one; null: nobody asks
    const u32* taken;      // [neurons]: synapses of this token's signals whose sum was left in the place of slopes and of
                           // spikes, a multiple of four; null: of none
    u32 rows, streams, neurons, fan_in;
    u32 block, winners;    // neurons that compete, and how many of them may fire
    u32 together;          // streams of a thread block: a power of two
    u32 wide;              // whether a thread has 16 bytes of signals of them
    u32 quads;             // whether synapses come four at a time
    u32 pooled;            // whether a thread block writes its neurons' outputs itself
    u32 first, count;      // outputs
    float leak, threshold, tiring, adaptation, filter, rate, homeostasis;
};

// How far homeostasis may move a threshold.
constexpr float OFFSET_LIMIT = 3;
// No potential falls lower.
constexpr float LOWEST_POTENTIAL = -OFFSET_LIMIT;
// What is left of an output counts as nothing from here down.
constexpr float FAINT = 1e-12f;

// What is left of the potential `v` of a neuron whose spike before was `z`.
__device__ inline float leak(const SpikeArgs& a, float v, float z) {
    return __fsub_rn(__fmul_rn(a.leak, v), __fmul_rn(a.threshold, z));
}

// The potential, from what is left of it and what synapses brought from the token before and from this one.
__device__ inline float potential(float left, bool keep, float before, float now) {
    // What lies before a document counts for nothing, even if it is not a number.
    float v = keep ? __fadd_rn(__fadd_rn(left, before), now) : now;
    return v < LOWEST_POTENTIAL ? LOWEST_POTENTIAL : v;
}

// The threshold of a neuron that is so tired.
__device__ inline float threshold(const SpikeArgs& a, u32 neuron, float offset, float tired) {
    float adaptation = neuron % 2 == 0 ? a.adaptation : 0.0f;
    return __fadd_rn(__fadd_rn(a.threshold, offset), __fmul_rn(adaptation, tired));
}

// How tired a neuron is after a spike `z`.
__device__ inline float tire(const SpikeArgs& a, bool keep, float tired, float z) {
    return __fadd_rn(keep ? __fmul_rn(a.tiring, tired) : 0.0f, z);
}

// The pseudo-derivative of a spike, `above` the threshold.
__device__ inline float slope_of(const SpikeArgs& a, float above) {
    float slope = __fsub_rn(1.0f, __fdiv_rn(fabsf(above), a.threshold));
    return slope > 0 ? __fmul_rn(0.3f, slope) : 0.0f;
}

// An output of whose `group` neurons so many fired, behind that of the token before.
template <class T>
__device__ inline T output_of(const SpikeArgs& a, T before, bool keep, u32 group, u32 fired) {
    float share = __fdiv_rn(1.0f, __fsqrt_rn((float)group));
    float left = keep ? __fmul_rn(a.filter, load(before)) : 0.0f;
    left = fabsf(left) > FAINT ? left : 0.0f;
    return store<T>(__fadd_rn(left, __fmul_rn(share, (float)fired)));
}

// Writes output `o` of a stream.
template <class T>
__device__ inline void put_output(const SpikeArgs& a, u32 o, u32 stream, u32 group, u32 fired) {
    T* before = (T*)a.signals + ((u64)a.first + o) * a.streams + stream;
    before[(u64)a.rows * a.streams] = output_of(a, *before, a.keep[stream] > 0, group, fired);
}

// Moves a threshold so that its neuron, of which so many streams fired, fires at its rate.
__device__ inline void hold(const SpikeArgs& a, u32 neuron, u32 fired) {
    float more = __fsub_rn(__fdiv_rn((float)fired, (float)a.streams), a.rate);
    float moved = __fadd_rn(a.offset[neuron], __fmul_rn(a.homeostasis, more));
    a.offset[neuron] = fminf(fmaxf(moved, -OFFSET_LIMIT), OFFSET_LIMIT);
}
