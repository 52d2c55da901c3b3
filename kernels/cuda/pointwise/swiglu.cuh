// The derivative of SwiGLU.
#pragma once
#include "../fp8.cuh"
#include "../sigmoid.cuh"

// Replaces gate and up with their gradients, and returns SwiGLU's output.
template <class T, int N>
__device__ inline void derive_swiglu(float (&gate)[N], float (&up)[N], float (&out)[N], const float (&out_grad)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        float s = sigmoid<T>(gate[i]), value = gate[i] * s;
        out[i] = up[i] * value;
        gate[i] = out_grad[i] * up[i] * (s + value * (1.0f - s));
        up[i] = out_grad[i] * value;
    }
}
