// The cap of logits, C tanh(z / C), and the factor of its gradient.
//
// Logits stored as f32 use the exact tanh. A step in bf16 uses the instruction, whose error relative to a logit is at
// most 2^-11, a quarter of that of rounding to bf16: next to a matrix multiplication there is time for few
// instructions. Loss and gradient are then both those of this tanh, and similar logits have the same error as the
// target's.
#pragma once
#include "../ptx.cuh"

struct Softcap {
    float cap, over;  // C, 1 / C

    __device__ explicit Softcap(float cap) : cap(cap), over(reciprocal(cap)) {}

    // tanh(z / C) of a logit, the capped logit, and its derivative by z.
    __device__ float share(float z) const { return tanh_for_bf16(z * over); }
    __device__ float capped(float z) const { return cap * share(z); }
    // tanh(z / C), with an error of at most 4e-7, for evaluations.
    __device__ float exact_share(float z) const {
        return 1.0f - 2.0f * reciprocal(1.0f + power_of_two(2 * LOG2_E * over * z));
    }
    __device__ static float slope(float share) { return 1.0f - share * share; }
};

// The capped value of a logit that is stored as T.
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
