// The upper halves of adapters as the blocks on a diagonal, and their gradient.
#include "../common.cuh"

struct SpreadArgs {
    const void* from;  // [rows, narrow], of the gradient [rows, wide]
    void* to;          // the other one
    u64 count;         // elements of `to`
    u32 narrow, wide;  // columns of a matrix, and of the blocks of all
    u32 first, second; // the rows with which the second part and the third begin
    float scale;
    u32 add;           // of the gradient: whether to add to what is there
};

// The column with which the block of a row begins.
__device__ inline u32 block_of(const SpreadArgs& a, u64 row) {
    return ((row >= a.first) + (row >= a.second)) * a.narrow;
}

// A thread an element of `to`.
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
