// The gradient of causal attention, with probabilities recomputed from the scores' logarithmic sum. One pass computes
// the queries' gradients, one the keys' and values': each block owns its outputs, and nothing is added atomically.
#include "attention.cuh"

// One warp for each row and head. Grid (seq_len, batch), looping over the heads.
template <class T>
__device__ void attention_grad_mean(const AttentionGradArgs& a) {
    u32 lane = threadIdx.x % 32, size = a.heads.size;
    u64 row = (u64)blockIdx.y * a.seq_len + blockIdx.x;
    for (u32 head = threadIdx.x / 32; head < a.heads.queries; head += blockDim.x / 32) {
        u64 at = row * a.heads.queries * size + head * size;
        float sum = 0;
        for (u32 c = lane; c < size; c += 32) sum += load(((const T*)a.out)[at + c]) * load(((const T*)a.out_grad)[at + c]);
        sum = warp_sum(sum);
        if (lane == 0) a.mean[((u64)blockIdx.y * a.heads.queries + head) * a.seq_len + blockIdx.x] = sum;
    }
}

EXPORT_BOTH(attention_grad_mean, AttentionGradArgs, 128, attention_grad_mean)

// Reads a tile of SIDE rows of `part` (columns of a row of `width`), zero beyond the edges.
template <class T, int SIZE, int SIDE>
__device__ inline void fetch(float (&tile)[SIDE][SIZE + 1], const T* rows, u32 first, u32 seq_len, u32 width, u32 part,
                             u32 size) {
    for (u32 e = threadIdx.x; e < SIDE * SIZE; e += 128) {
        u32 r = e / SIZE, c = e % SIZE;
        tile[r][c] = first + r < seq_len && c < size ? load(rows[(u64)(first + r) * width + part + c]) : 0.0f;
    }
}

// Grid (tiles, heads, batch), 128 threads as 8 x 16. The block owns a tile of queries, or (KEYS) of keys; thread (y, x)
// has rows y, y + 8, ... of the tile and iterates over the tiles of the other side.
// Queries: own (q, out_grad), other (k, v):  s = q k, dp = out_grad v, dq = ds k
// Keys:    own (k, v), other (q, out_grad):  s = k q, dp = v out_grad, dk = ds q, dv = p out_grad
template <class T, int SIZE, int SIDE, bool KEYS>
__device__ void attention_grad(const AttentionGradArgs& a) {
    constexpr int OWN = SIDE / 8, SCORES = SIDE < 16 ? 1 : SIDE / 16, COLUMNS = SIZE / 16;
    __shared__ float own1[SIDE][SIZE + 1], own2[SIDE][SIZE + 1], other1[SIDE][SIZE + 1], other2[SIDE][SIZE + 1];
    __shared__ float ds[SIDE][SIDE + 1], p[SIDE][SIDE + 1];
    u32 x = threadIdx.x % 16, y = threadIdx.x / 16;
    u32 size = a.heads.size, width = a.heads.width(), out_width = a.heads.queries * size, group = a.heads.group();
    const T* rows = (const T*)a.qkv + (u64)blockIdx.z * a.seq_len * width;
    const T* grads = (const T*)a.out_grad + (u64)blockIdx.z * a.seq_len * out_width;
    u32 own0 = blockIdx.x * SIDE, own_end = min(own0 + SIDE, a.seq_len);
    u32 key_head = KEYS ? blockIdx.y : blockIdx.y / group;
    u32 k = a.heads.key(key_head), v = a.heads.value(key_head);
    if (KEYS) {
        fetch<T, SIZE, SIDE>(own1, rows, own0, a.seq_len, width, k, size);
        fetch<T, SIZE, SIDE>(own2, rows, own0, a.seq_len, width, v, size);
    } else {
        fetch<T, SIZE, SIDE>(own1, rows, own0, a.seq_len, width, a.heads.query(blockIdx.y), size);
        fetch<T, SIZE, SIDE>(own2, grads, own0, a.seq_len, out_width, blockIdx.y * size, size);
    }
    float sums1[OWN][COLUMNS] = {}, sums2[OWN][COLUMNS] = {};
    auto first_of = [&](u32 i) { return first_seen(a.offsets, (u64)blockIdx.z * a.seq_len, a.seq_len, i); };

    u32 head_end = KEYS ? (key_head + 1) * group : blockIdx.y + 1;
    for (u32 head = KEYS ? key_head * group : blockIdx.y; head < head_end; head++) {
        const float* log_sum = a.log_sum + ((u64)blockIdx.z * a.heads.queries + head) * a.seq_len;
        const float* mean = a.mean + ((u64)blockIdx.z * a.heads.queries + head) * a.seq_len;
        u32 other0 = (KEYS ? own0 : first_of(own0)) / SIDE * SIDE, other_end = KEYS ? a.seq_len : own_end;
        for (; other0 < other_end; other0 += SIDE) {
            u32 tile_end = min(other0 + SIDE, a.seq_len);
            bool seen = KEYS ? a.pattern.any(other0, tile_end, own0, own_end)
                             : a.pattern.any(own0, own_end, other0, tile_end);
            // Queries of later documents see none of these keys.
            if (!seen || (KEYS && first_of(other0) >= own_end)) continue;
            __syncthreads();
            if (KEYS) {
                fetch<T, SIZE, SIDE>(other1, rows, other0, a.seq_len, width, a.heads.query(head), size);
                fetch<T, SIZE, SIDE>(other2, grads, other0, a.seq_len, out_width, head * size, size);
            } else {
                fetch<T, SIZE, SIDE>(other1, rows, other0, a.seq_len, width, k, size);
                fetch<T, SIZE, SIDE>(other2, rows, other0, a.seq_len, width, v, size);
            }
            __syncthreads();
            float scores[OWN][SCORES] = {}, products[OWN][SCORES] = {};
            for (int c = 0; c < SIZE; c++)
#pragma unroll
                for (int s = 0; s < SCORES; s++) {
                    u32 o = (x + 16 * s) % SIDE;
                    float first = other1[o][c], second = other2[o][c];
#pragma unroll
                    for (int r = 0; r < OWN; r++) {
                        scores[r][s] += own1[y + 8 * r][c] * first;
                        products[r][s] += own2[y + 8 * r][c] * second;
                    }
                }
#pragma unroll
            for (int r = 0; r < OWN; r++)
#pragma unroll
                for (int s = 0; s < SCORES; s++) {
                    if (x + 16 * s >= SIDE) continue;
                    u32 own = own0 + y + 8 * r, other = other0 + x + 16 * s;
                    u32 i = KEYS ? other : own, j = KEYS ? own : other;
                    bool active = i < a.seq_len && j >= first_of(i) && a.pattern.sees(i, j);
                    float weight = active ? expf(scores[r][s] * a.scale - log_sum[i]) : 0.0f;
                    p[y + 8 * r][x + 16 * s] = weight;
                    ds[y + 8 * r][x + 16 * s] = active ? weight * (products[r][s] - mean[i]) * a.scale : 0.0f;
                }
            __syncthreads();
            for (int o = 0; o < SIDE; o++)
#pragma unroll
                for (int r = 0; r < OWN; r++) {
                    float d = ds[y + 8 * r][o], weight = p[y + 8 * r][o];
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) {
                        sums1[r][c] += d * other1[o][x + 16 * c];
                        if (KEYS) sums2[r][c] += weight * other2[o][x + 16 * c];
                    }
                }
        }
    }

#pragma unroll
    for (int r = 0; r < OWN; r++) {
        u32 row = own0 + y + 8 * r;
        if (row >= a.seq_len) continue;
        T* grad = (T*)a.qkv_grad + ((u64)blockIdx.z * a.seq_len + row) * width;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            u32 column = x + 16 * c;
            if (column >= size) continue;
            grad[(KEYS ? k : a.heads.query(blockIdx.y)) + column] = store<T>(sums1[r][c]);
            if (KEYS) grad[v + column] = store<T>(sums2[r][c]);
        }
    }
}

// Tiles that fit 48 KiB of shared memory.
#define EXPORT_SIDE(side, KEYS)                                                                        \
    EXPORT(attention_grad_##side##_64_f32, AttentionGradArgs, 128, attention_grad<float, 64, 32, KEYS>)  \
    EXPORT(attention_grad_##side##_128_f32, AttentionGradArgs, 128, attention_grad<float, 128, 16, KEYS>) \
    EXPORT(attention_grad_##side##_256_f32, AttentionGradArgs, 128, attention_grad<float, 256, 8, KEYS>) \
    EXPORT(attention_grad_##side##_64_bf16, AttentionGradArgs, 128, attention_grad<bf16, 64, 32, KEYS>)  \
    EXPORT(attention_grad_##side##_128_bf16, AttentionGradArgs, 128, attention_grad<bf16, 128, 16, KEYS>) \
    EXPORT(attention_grad_##side##_256_bf16, AttentionGradArgs, 128, attention_grad<bf16, 256, 8, KEYS>)

EXPORT_SIDE(queries, false)
EXPORT_SIDE(keys, true)
