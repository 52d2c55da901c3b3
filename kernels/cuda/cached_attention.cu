// Attention of one new token over the keys and values of those before it.
#include "heads.cuh"

struct CachedAttentionArgs {
    void* qkv;            // [width]: queries and keys are turned in place
    void* cache;          // [2, context, keys * size]
    const u32* cursor;    // the token's position; at or beyond the context nothing happens
    const float* table;   // [positions, dims / 2, 2]
    void* out;            // [queries * size]
    u32 context, dims;
    float scale;
    Heads heads;
    Pattern pattern;
};

// One block: turns the row and stores its keys and values at the cursor.
template <class T>
__device__ void cached_attention_store(const CachedAttentionArgs& a) {
    u32 now = *a.cursor, size = a.heads.size, columns = a.heads.keys * size;
    if (now >= a.context) return;
    T *row = (T*)a.qkv, *cache = (T*)a.cache;
    rotate_row(row, a.table + (u64)now * a.dims, a.heads, a.dims, false);
    __syncthreads();
    for (u32 e = threadIdx.x; e < columns; e += blockDim.x) {
        u32 head = e / size, c = e % size;
        cache[(u64)now * columns + e] = row[a.heads.key(head) + c];
        cache[((u64)a.context + now) * columns + e] = row[a.heads.value(head) + c];
    }
}

EXPORT_BOTH(cached_attention_store, CachedAttentionArgs, 256, cached_attention_store)

constexpr int WARPS = 8, LARGEST_SIZE = 256;

// A block a query head. Each warp has a running softmax over every eighth position; they are joined in order.
template <class T>
__device__ void cached_attention(const CachedAttentionArgs& a) {
    __shared__ float largest_of[WARPS], total_of[WARPS], sums_of[WARPS][LARGEST_SIZE];
    u32 now = *a.cursor, size = a.heads.size, columns = a.heads.keys * size;
    if (now >= a.context) return;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x;
    u32 at = head / a.heads.group() * size;
    const T* query = (const T*)a.qkv + a.heads.query(head);
    const T *keys = (const T*)a.cache + at, *values = keys + (u64)a.context * columns;
    float largest = -INFINITY, total = 0, sums[LARGEST_SIZE / 32] = {};
    for (u32 j = warp; j <= now; j += WARPS) {
        if (!a.pattern.sees(now, j)) continue;
        float score = 0;
        for (u32 c = lane; c < size; c += 32) score += load(query[c]) * load(keys[(u64)j * columns + c]);
        score = warp_sum(score) * a.scale;
        float next = fmaxf(largest, score), before = expf(largest - next), weight = expf(score - next);
        largest = next;
        total = total * before + weight;
#pragma unroll
        for (u32 e = 0; e < LARGEST_SIZE / 32; e++) {
            u32 c = lane + 32 * e;
            if (c < size) sums[e] = sums[e] * before + weight * load(values[(u64)j * columns + c]);
        }
    }
    if (lane == 0) largest_of[warp] = largest, total_of[warp] = total;
    for (u32 e = 0; e < LARGEST_SIZE / 32; e++) sums_of[warp][lane + 32 * e] = sums[e];
    __syncthreads();
    float top = -INFINITY, all = 0;
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, largest_of[w]);
    for (int w = 0; w < WARPS; w++) all += total_of[w] * expf(largest_of[w] - top);
    for (u32 c = threadIdx.x; c < size; c += blockDim.x) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += sums_of[w][c] * expf(largest_of[w] - top);
        ((T*)a.out)[head * size + c] = store<T>(sum / all);
    }
}

EXPORT_BOTH(cached_attention, CachedAttentionArgs, 256, cached_attention)
