// The sigmoid.
#pragma once
#include "ptx.cuh"

// 1 / (1 + exp(-x)) of a value that is stored as T.
template <class T>
__device__ inline float sigmoid(float x);

template <>
__device__ inline float sigmoid<float>(float x) {
    return 1.0f / (1.0f + expf(-x));
}

// An error of a few ulp of f32 is negligible for bf16, and a memory-bound pass has time for few instructions.
template <>
__device__ inline float sigmoid<bf16>(float x) {
    return reciprocal(1.0f + power_of_two(-LOG2_E * x));
}
