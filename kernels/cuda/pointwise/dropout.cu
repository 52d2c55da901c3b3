// Dropout: a training step leaves out random elements.
#include "dropout.cuh"
#include "../vector.cuh"

struct DropoutArgs {
    void* x;       // [rows, vectors], in place
    u64 count;     // vectors
    DropArgs by;
    u32 vectors;   // of a row
    u32 wide;      // whether a vector is 16 bytes, else one value
};

template <class T, int N>
__device__ inline void drop_vector(const DropoutArgs& a) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    // A 32-bit division takes a quarter of the time.
    u32 row = a.count >> 32 ? (u32)(i / a.vectors) : (u32)i / a.vectors, column = ((u32)i - row * a.vectors) * N;
    float x[N];
    read(x, (const T*)a.x + i * N);
    drop(a.by, row, column, x);
    write((T*)a.x + i * N, x);
}

template <class T>
__device__ void drop_all(const DropoutArgs& a) {
    a.wide ? drop_vector<T, WIDE<T>>(a) : drop_vector<T, 1>(a);
}

EXPORT_BOTH(dropout, DropoutArgs, 256, drop_all)
