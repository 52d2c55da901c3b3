// Arranges the B matrices of adapters as the blocks of a block diagonal; and the gradient of this.
#include "../common.cuh"

struct SpreadArgs {
    const void* from;  // [rows, narrow], in the gradient [rows, wide]
    void* to;          // the other shape
    u64 count;         // elements of `to`
    u32 narrow, wide;  // columns of a matrix, and of the blocks of all
    u32 first, second; // the first rows of the second part and of the third
    float scale;
    u32 add;           // in the gradient: whether to add to the content
};

// The first column of the block of a row.
__device__ inline u32 block_of(const SpreadArgs& a, u64 row) {
    return ((row >= a.first) + (row >= a.second)) * a.narrow;
}

// One thread for each element of `to`.
template <class T>
__device__ void spread(const SpreadArgs& a) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.count) return;
    u64 row = at / a.wide;
    u32 column = (u32)(at - row * a.wide), begin = block_of(a, row);
    bool inside = column >= begin && column - begin < a.narrow;
    float x = inside ? a.scale * load(((const T*)a.from)[row * a.narrow + column - begin]) : 0.0f;
    ((T*)a.to)[at] = store<T>(x);
}

template <class T>
__device__ void spread_grad(const SpreadArgs& a) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= a.count) return;
    u64 row = at / a.narrow;
    u32 column = (u32)(at - row * a.narrow);
    T* to = (T*)a.to + at;
    float x = a.scale * load(((const T*)a.from)[row * a.wide + block_of(a, row) + column]);
    *to = store<T>(a.add ? load(*to) + x : x);
}

EXPORT_BOTH(spread, SpreadArgs, 256, spread)
EXPORT_BOTH(spread_grad, SpreadArgs, 256, spread_grad)
