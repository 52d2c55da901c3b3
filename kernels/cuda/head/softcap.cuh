// The cap of logits, C tanh(z / C), and what its gradient takes.
//
// Of what is stored as f32 by the exact tanh. In a step in bf16 by the instruction, whose error relative to a logit is
// at most 2^-11, a quarter of what rounding it to bf16 may do: beside a product there is room for few instructions.
// Loss and gradient then are both of this tanh, and what a target's logit gains by it the others like it gain as well.
#pragma once
#include "../ptx.cuh"

struct Softcap {
    float cap, over;  // C, 1 / C

    __device__ explicit Softcap(float cap) : cap(cap), over(reciprocal(cap)) {}

    // Of a logit tanh(z / C), what it becomes, and that by z.
    __device__ float share(float z) const { return tanh_for_bf16(z * over); }
    __device__ float capped(float z) const { return cap * share(z); }
    // tanh(z / C), at most 4e-7 off, for evaluations.
    __device__ float exact_share(float z) const {
        return 1.0f - 2.0f * reciprocal(1.0f + power_of_two(2 * LOG2_E * over * z));
    }
    __device__ static float slope(float share) { return 1.0f - share * share; }
};

// What a logit that is stored as T becomes.
template <class T>
__device__ inline float softcap(float z, float cap);

template <>
__device__ inline float softcap<float>(float z, float cap) {
    return cap * tanhf(z / cap);
}

template <>
__device__ inline float softcap<bf16>(float z, float cap) {
    return Softcap(cap).capped(z);
}
