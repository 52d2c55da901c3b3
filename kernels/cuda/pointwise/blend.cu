// Blends the embedding into the residual stream; and the gradient of this.
#include "../vector.cuh"

struct BlendArgs {
    void* x;              // [count]
    const void* first;    // [count]
    const void* scalars;  // [2], or null
    void* x_grad;         // [count]: in the gradient only
    void* first_grad;     // [count]: in the gradient only
    float* partial;       // [pieces, 2]: in the gradient only: partial sums
    u64 count, piece;
    u32 add;              // whether to add to first_grad
    u32 wide;             // whether all of them have whole vectors of 16 bytes
};

// e^s and t; 1 without scalars.
struct Factors {
    float keep = 1, add = 1;

    template <class T>
    __device__ explicit Factors(const T* scalars) {
        if (scalars) keep = expf(load(scalars[0])), add = load(scalars[1]);
    }
};

template <class T, int N>
__device__ inline void blend_vector(const BlendArgs& a) {
    u64 at = ((u64)blockIdx.x * 256 + threadIdx.x) * N;
    if (at >= a.count) return;
    Factors by((const T*)a.scalars);
    float x[N], first[N];
    read(x, (T*)a.x + at);
    read(first, (const T*)a.first + at);
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = by.keep * x[i] + by.add * first[i];
    write((T*)a.x + at, x);
}

template <class T>
__device__ void blend(const BlendArgs& a) {
    a.wide ? blend_vector<T, WIDE<T>>(a) : blend_vector<T, 1>(a);
}

// One block for each piece.
template <class T, int N>
__device__ inline void blend_piece(const BlendArgs& a) {
    Factors by((const T*)a.scalars);
    float sums[2] = {};
    u64 start = blockIdx.x * a.piece, end = start + a.piece < a.count ? start + a.piece : a.count;
#pragma unroll 2
    for (u64 at = start + threadIdx.x * N; at < end; at += 256 * N) {
        float x[N], first[N], g[N], to[N];
        read(x, (const T*)a.x + at);
        read(first, (const T*)a.first + at);
        read(g, (const T*)a.x_grad + at);
        if (a.add) read(to, (const T*)a.first_grad + at);
#pragma unroll
        for (int i = 0; i < N; i++) {
            sums[0] += g[i] * (x[i] - by.add * first[i]);
            sums[1] += g[i] * first[i];
            to[i] = by.add * g[i] + (a.add ? to[i] : 0.0f);
            g[i] *= by.keep;
        }
        write((T*)a.first_grad + at, to);
        write((T*)a.x_grad + at, g);
    }
    for (int i = 0; i < 2; i++) {
        float sum = block_sum(sums[i]);
        if (threadIdx.x == 0) a.partial[blockIdx.x * 2 + i] = sum;
    }
}

template <class T>
__device__ void blend_grad(const BlendArgs& a) {
    a.wide ? blend_piece<T, WIDE<T>>(a) : blend_piece<T, 1>(a);
}

EXPORT_BOTH(blend, BlendArgs, 256, blend)
EXPORT_BOTH(blend_grad, BlendArgs, 256, blend_grad)
