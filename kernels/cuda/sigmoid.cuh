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

// A few ulp of f32 are nothing to bf16, and a pass over memory has room for few instructions.
template <>
__device__ inline float sigmoid<bf16>(float x) {
    return reciprocal(1.0f + power_of_two(-LOG2_E * x));
}
