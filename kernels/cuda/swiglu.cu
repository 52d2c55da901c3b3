// SwiGLU, silu(gate) up with silu(x) = x / (1 + exp(-x)), and its gradient, which takes the place of gate and up.
#include "vector.cuh"

struct SwiGluArgs {
    void* gate_up;  // [rows, 2 d]: the gate, then up; of the gradient: their gradients
    void* narrow;   // [rows, d]: what comes out, or its gradient
    u64 count;      // rows times vectors
    u32 d, vectors; // vectors of a row of d
    u32 wide;       // whether a vector is 16 bytes, else one value
};

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

// A thread a vector: calls `visit(gate, up, narrow)` with where they lie.
template <class T, int N, class Visit>
__device__ inline void each_pair(const SwiGluArgs& a, Visit visit) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    u64 row = i / a.vectors;
    u32 column = (u32)(i - row * a.vectors) * N;
    T* gate = (T*)a.gate_up + row * 2 * a.d + column;
    visit(gate, gate + a.d, (T*)a.narrow + row * a.d + column);
}

template <class T, int N>
__device__ inline void forward(const SwiGluArgs& a) {
    each_pair<T, N>(a, [](const T* gates, const T* ups, T* outs) {
        float gate[N], up[N];
        read(gate, gates);
        read(up, ups);
#pragma unroll
        for (int i = 0; i < N; i++) up[i] *= gate[i] * sigmoid<T>(gate[i]);
        write(outs, up);
    });
}

template <class T, int N>
__device__ inline void backward(const SwiGluArgs& a) {
    each_pair<T, N>(a, [](T* gates, T* ups, const T* out_grads) {
        float gate[N], up[N], out_grad[N];
        read(gate, gates);
        read(up, ups);
        read(out_grad, out_grads);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float s = sigmoid<T>(gate[i]), value = gate[i] * s;
            gate[i] = out_grad[i] * up[i] * (s + value * (1.0f - s));
            up[i] = out_grad[i] * value;
        }
        write(gates, gate);
        write(ups, up);
    });
}

template <class T>
__device__ void swiglu(const SwiGluArgs& a) {
    a.wide ? forward<T, WIDE<T>>(a) : forward<T, 1>(a);
}

template <class T>
__device__ void swiglu_grad(const SwiGluArgs& a) {
    a.wide ? backward<T, WIDE<T>>(a) : backward<T, 1>(a);
}

EXPORT_BOTH(swiglu, SwiGluArgs, 256, swiglu)
EXPORT_BOTH(swiglu_grad, SwiGluArgs, 256, swiglu_grad)
