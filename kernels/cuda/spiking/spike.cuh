// Definitions shared by spiking neurons with one stream and with many: arguments, potentials, outputs.
//
// Every sum goes over a row's synapses in order, with each multiplication and addition rounded separately, so that the
// spikes are the same as on every other device.
#pragma once
#include "../vector.cuh"

struct SpikeArgs {
    void* signals;         // [2, rows, B]: the token before, then this one
    void* spikes;          // [2, neurons, B]
    const float* keep;     // [B]
    const u32* sources;    // [neurons, fan_in]: ascending
    const float* weights;  // [neurons, fan_in]
    float* potential;      // [neurons, B]
    float* fatigue;        // [neurons, B]
    float* offset;         // [neurons]
    void* slope;           // [neurons, B], or null
    u32* bits;             // [groups of 32 streams, neurons]: the previous spikes; null: spikes are read
    u32* bits_after;       // the bits of this token, for the next one; null: not written
    const u32* taken;      // [neurons]: synapses of this token's signals whose sum was left in the place of slopes and of
                           // spikes, a multiple of four; null: of none
    u32 rows, streams, neurons, fan_in;
    u32 block, winners;    // neurons that compete, and the number of them that may fire
    u32 together;          // streams of a thread block: a power of two
    u32 wide;              // whether a thread has 16 bytes of signals of these streams
    u32 quads;             // whether synapses are read four at a time
    u32 pooled;            // whether a thread block writes its neurons' outputs itself
    u32 first, count;      // outputs
    float leak, threshold, tiring, adaptation, filter, rate, homeostasis;
};

// The largest change of a threshold by homeostasis.
constexpr float OFFSET_LIMIT = 3;
// The lower bound of potentials.
constexpr float LOWEST_POTENTIAL = -OFFSET_LIMIT;
// A decayed output below this counts as 0.
constexpr float FAINT = 1e-12f;

// The decayed potential `v` of a neuron whose previous spike was `z`.
__device__ inline float leak(const SpikeArgs& a, float v, float z) {
    return __fsub_rn(__fmul_rn(a.leak, v), __fmul_rn(a.threshold, z));
}

// The potential, from the decayed potential and the inputs from the token before and from this one.
__device__ inline float potential(float left, bool keep, float before, float now) {
    // State from before a document has no effect, even if it is NaN.
    float v = keep ? __fadd_rn(__fadd_rn(left, before), now) : now;
    return v < LOWEST_POTENTIAL ? LOWEST_POTENTIAL : v;
}

// The threshold of a neuron with fatigue `tired`.
__device__ inline float threshold(const SpikeArgs& a, u32 neuron, float offset, float tired) {
    float adaptation = neuron % 2 == 0 ? a.adaptation : 0.0f;
    return __fadd_rn(__fadd_rn(a.threshold, offset), __fmul_rn(adaptation, tired));
}

// The fatigue of a neuron after a spike `z`.
__device__ inline float tire(const SpikeArgs& a, bool keep, float tired, float z) {
    return __fadd_rn(keep ? __fmul_rn(a.tiring, tired) : 0.0f, z);
}

// The pseudo-derivative of a spike, at distance `above` from the threshold.
__device__ inline float slope_of(const SpikeArgs& a, float above) {
    float slope = __fsub_rn(1.0f, __fdiv_rn(fabsf(above), a.threshold));
    return slope > 0 ? __fmul_rn(0.3f, slope) : 0.0f;
}

// An output whose group has `fired` spikes among `group` neurons, from its value `before` at the token before.
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

// Adjusts a threshold so that its neuron, which fired in `fired` streams, approaches its rate.
__device__ inline void hold(const SpikeArgs& a, u32 neuron, u32 fired) {
    float more = __fsub_rn(__fdiv_rn((float)fired, (float)a.streams), a.rate);
    float moved = __fadd_rn(a.offset[neuron], __fmul_rn(a.homeostasis, more));
    a.offset[neuron] = fminf(fmaxf(moved, -OFFSET_LIMIT), OFFSET_LIMIT);
}
