// SwiGLU, silu(gate) up with silu(x) = x / (1 + exp(-x)), and its gradient, which overwrites gate and up.
#include "swiglu.cuh"

struct SwiGluArgs {
    void* gate_up;  // [rows, 2 d]: the gate, then up; in the gradient: overwritten with their gradients
    void* single;   // [rows, d]: the output, or its gradient
    void* again;    // [rows, d]: in the gradient: receives the output, or null
    CopyArgs copy;  // of the output; in the gradient: of both gradients
    unsigned char* kept;  // [rows, 2 d] E4M3: gate and up for the gradient, in kernels that save or read them
    u64 count;      // rows times vectors
    u32 d, vectors; // vectors of a row of d
    u32 wide;       // whether a vector is 16 bytes, else one value
};

// Each thread has a vector: calls `visit(gate, single)` with its offsets.
template <int N, class Visit>
__device__ inline void each_pair(const SwiGluArgs& a, Visit visit) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    u64 row = i / a.vectors;
    u32 column = (u32)(i - row * a.vectors) * N;
    visit(row * 2 * a.d + column, row * a.d + column);
}

// The codes of N neighbouring values.
template <int N>
struct alignas(N) Codes {
    u32 words[N / 4];
};

// Converts neighbouring values to codes and stores them.
template <int N>
__device__ inline void keep(unsigned char* codes, const float (&x)[N]) {
    if constexpr (N == 1) {
        *codes = codes_of<E4m3>(scaled(x[0], 1), 0, 0, 0) & 0xffu;
    } else {
        Codes<N> out;
        codes_of_all<E4m3>(out.words, x, 1);
        *(Codes<N>*)codes = out;
    }
}

template <int N>
__device__ inline void recall(float (&x)[N], const unsigned char* codes) {
    if constexpr (N == 1) {
        x[0] = value_of_e4m3(*codes);
    } else {
        Codes<N> in = *(const Codes<N>*)codes;
#pragma unroll
        for (int i = 0; i < N / 4; i++) expand_all(x + 4 * i, in.words[i]);
    }
}

template <class T, int N, bool KEPT, class F>
__device__ inline void forward(const SwiGluArgs& a, Copier<F>& copier) {
    each_pair<N>(a, [&](u64 wide, u64 single) {
        const T* gates = (const T*)a.gate_up + wide;
        float gate[N], up[N];
        read(gate, gates);
        read(up, gates + a.d);
        if constexpr (KEPT) keep(a.kept + wide, gate), keep(a.kept + wide + a.d, up);
#pragma unroll
        for (int i = 0; i < N; i++) up[i] *= gate[i] * sigmoid<T>(gate[i]);
        write_rounded((T*)a.single + single, up);
        copier.put(single, up);
    });
}

template <class T, int N, bool KEPT, class F>
__device__ inline void backward(const SwiGluArgs& a, Copier<F>& copier) {
    each_pair<N>(a, [&](u64 wide, u64 single) {
        T *gates = (T*)a.gate_up + wide, *ups = gates + a.d;
        float gate[N], up[N], out_grad[N], again[N];
        if constexpr (KEPT) {
            recall(gate, a.kept + wide);
            recall(up, a.kept + wide + a.d);
        } else {
            read(gate, gates);
            read(up, ups);
        }
        read(out_grad, (const T*)a.single + single);
        derive_swiglu<T>(gate, up, again, out_grad);
        if (a.again) write((T*)a.again + single, again);
        write_rounded(gates, gate);
        write_rounded(ups, up);
        copier.put(wide, gate);
        copier.put(wide + a.d, up);
    });
}

template <class T, class F, bool KEPT = false>
__device__ void swiglu(const SwiGluArgs& a) {
    Copier<F> copier(a.copy);
    a.wide ? forward<T, WIDE<T>, KEPT>(a, copier) : forward<T, 1, KEPT>(a, copier);
    copier.finish(a.copy);
}

template <class T, class F, bool KEPT = false>
__device__ void swiglu_grad(const SwiGluArgs& a) {
    Copier<F> copier(a.copy);
    a.wide ? backward<T, WIDE<T>, KEPT>(a, copier) : backward<T, 1, KEPT>(a, copier);
    copier.finish(a.copy);
}

EXPORT(swiglu_f32, SwiGluArgs, 256, swiglu<float, Uncopied>)
EXPORT(swiglu_bf16, SwiGluArgs, 256, swiglu<bf16, Uncopied>)
EXPORT(swiglu_e4m3_f32, SwiGluArgs, 256, swiglu<float, E4m3>)
EXPORT(swiglu_e4m3_bf16, SwiGluArgs, 256, swiglu<bf16, E4m3>)
EXPORT(swiglu_kept_f32, SwiGluArgs, 256, swiglu<float, Uncopied, true>)
EXPORT(swiglu_kept_bf16, SwiGluArgs, 256, swiglu<bf16, Uncopied, true>)
EXPORT(swiglu_grad_f32, SwiGluArgs, 256, swiglu_grad<float, Uncopied>)
EXPORT(swiglu_grad_bf16, SwiGluArgs, 256, swiglu_grad<bf16, Uncopied>)
EXPORT(swiglu_grad_e5m2_f32, SwiGluArgs, 256, swiglu_grad<float, E5m2>)
EXPORT(swiglu_grad_e5m2_bf16, SwiGluArgs, 256, swiglu_grad<bf16, E5m2>)
EXPORT(swiglu_grad_kept_f32, SwiGluArgs, 256, swiglu_grad<float, Uncopied, true>)
EXPORT(swiglu_grad_kept_bf16, SwiGluArgs, 256, swiglu_grad<bf16, Uncopied, true>)
