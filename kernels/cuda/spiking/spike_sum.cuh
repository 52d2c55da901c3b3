// A neuron's sum over signals; and partial sums, which are stored where their token will write its results later.
#pragma once
#include "../vector.cuh"

template <class T, int N>
__device__ inline void add_signal(float (&sum)[N], float weight, const Vector<T, N>& x) {
    float values[N];
    unpack(values, x);
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = __fadd_rn(sum[i], __fmul_rn(weight, values[i]));
}

// Stores a sum. In f32 it is in the slots of slopes; in bf16 its upper halves are there, and its lower halves in the
// slots of spikes.
template <int N>
__device__ inline void leave(float* slope, float*, const float (&sum)[N]) {
    write(slope, sum);
}

template <int N>
__device__ inline void leave(bf16* slope, bf16* spikes, const float (&sum)[N]) {
    Vector<bf16, N> upper, lower;
#pragma unroll
    for (int i = 0; i < N; i++) {
        u32 bits = __float_as_uint(sum[i]);
        upper.x[i].bits = (unsigned short)(bits >> 16);
        lower.x[i].bits = (unsigned short)bits;
    }
    *(Vector<bf16, N>*)slope = upper;
    *(Vector<bf16, N>*)spikes = lower;
}

// Loads it again.
template <int N>
__device__ inline void take_up(float (&sum)[N], const float* slope, const float*) {
    read(sum, slope);
}

template <int N>
__device__ inline void take_up(float (&sum)[N], const bf16* slope, const bf16* spikes) {
    Vector<bf16, N> upper = fetch<bf16, N>(slope), lower = fetch<bf16, N>(spikes);
#pragma unroll
    for (int i = 0; i < N; i++) sum[i] = __uint_as_float((u32)upper.x[i].bits << 16 | lower.x[i].bits);
}
