// Activations to blocks of 8 bits, and back.
#include "../optimizer/states.cuh"

struct CompressArgs {
    const void* x;  // [count]
    void* out;      // [count], in blocks; zeros after the last number
    u64 count;
};

struct ExpandArgs {
    const void* codes;  // [count], in blocks
    void* out;          // [count]
    u64 count;
};

// Each thread has 16 bytes of numbers; all threads of a block's part of a warp run, even after the last number.
template <class T>
__device__ void compress(const CompressArgs& a) {
    constexpr int N = WIDE<T>;
    u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * N;
    const T* x = (const T*)a.x + at;
    float numbers[N] = {};
    if (at + N <= a.count) {
        read(numbers, x);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) numbers[i] = at + i < a.count ? load(x[i]) : 0.0f;
    }
    u64 padded = (a.count + BLOCK - 1) / BLOCK * BLOCK;
    Moments8::write(a.out, at, numbers, at < padded);
}

template <class T>
__device__ void expand(const ExpandArgs& a) {
    constexpr int N = WIDE<T>;
    u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (at >= a.count) return;
    T* out = (T*)a.out + at;
    float numbers[N];
    Moments8::read(numbers, a.codes, at, true);
    if (at + N <= a.count) {
        write(out, numbers);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (at + i < a.count) out[i] = store<T>(numbers[i]);
        }
    }
}

EXPORT_BOTH(compress, CompressArgs, 256, compress)
EXPORT_BOTH(expand, ExpandArgs, 256, expand)
