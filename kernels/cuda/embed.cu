// Looking up rows of a table, and adding gradients back to them in the order of the rows.
#include "common.cuh"

struct EmbedArgs {
    const u32* ids;     // [rows]
    const void* table;  // [vocabulary, columns]
    void* out;          // [rows, columns]
    u32 columns, vocabulary;
};

// A block a row. An id beyond the vocabulary gives NaN, which the loss then shows.
template <class T>
__device__ void embed(const EmbedArgs& a) {
    u32 id = a.ids[blockIdx.x];
    const T* from = (const T*)a.table + (u64)id * a.columns;
    T* to = (T*)a.out + (u64)blockIdx.x * a.columns;
    for (u32 c = threadIdx.x; c < a.columns; c += blockDim.x)
        to[c] = id < a.vocabulary ? from[c] : store<T>(__uint_as_float(0x7fc00000u));
}

EXPORT_BOTH(embed, EmbedArgs, 128, embed)

struct EmbedGradArgs {
    const u32* ids;        // [rows]
    const void* out_grad;  // [rows, columns]
    float* table_grad;     // [vocabulary, columns]
    u32* first;            // [vocabulary]: the first row with this id; all ones before
    u32 rows, columns, vocabulary;
};

// The smallest of integers does not depend on their order.
__device__ void find_first(const EmbedGradArgs& a) {
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < a.rows && a.ids[row] < a.vocabulary) atomicMin(&a.first[a.ids[row]], row);
}

EXPORT(embed_first, EmbedGradArgs, 256, find_first)

// A block a row; the first row of each id finds the others and adds them all up.
template <class T>
__device__ void embed_grad(const EmbedGradArgs& a) {
    __shared__ u32 found[256];
    __shared__ u32 counts[8];
    u32 id = a.ids[blockIdx.x];
    if (id >= a.vocabulary || a.first[id] != blockIdx.x) return;
    float* to = a.table_grad + (u64)id * a.columns;
    const T* grad = (const T*)a.out_grad;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 start = blockIdx.x; start < a.rows; start += 256) {
        u32 row = start + threadIdx.x;
        bool mine = row < a.rows && a.ids[row] == id;
        u32 votes = __ballot_sync(FULL_WARP, mine);
        if (lane == 0) counts[warp] = __popc(votes);
        __syncthreads();
        u32 before = 0, count = 0;
        for (u32 w = 0; w < 8; w++) {
            if (w == warp) before = count;
            count += counts[w];
        }
        if (mine) found[before + __popc(votes & ((1u << lane) - 1))] = row;
        __syncthreads();
        if (count > 0)
            for (u32 c = threadIdx.x; c < a.columns; c += 256) {
                float sum = to[c];
#pragma unroll 4
                for (u32 i = 0; i < count; i++) sum += load(grad[(u64)found[i] * a.columns + c]);
                to[c] = sum;
            }
        __syncthreads();
    }
}

EXPORT_BOTH(embed_grad, EmbedGradArgs, 256, embed_grad)
