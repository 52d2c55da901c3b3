// Causal attention over a fused projection with online softmax (Dao et al. 2022), dense or block-sparse.
#include "attention.cuh"

// Grid (query tiles, queries, batch), 128 threads as 8 x 16. Thread (y, x) has rows y, y + 8, ... of the tile of ROWS
// queries: it computes their scores with keys x, x + 16, ... and the outputs' columns x, x + 16, ... Heads are padded
// with zeros to SIZE.
template <class T, int SIZE, int ROWS, int KEYS>
__device__ void attention(const AttentionArgs& a) {
    constexpr int OWN = ROWS / 8, SCORES = KEYS / 16, COLUMNS = SIZE / 16;
    __shared__ float queries[ROWS][SIZE + 1];
    __shared__ float others[KEYS][SIZE + 1];  // keys, then values
    __shared__ float weights[ROWS][KEYS + 1];
    u32 x = threadIdx.x % 16, y = threadIdx.x / 16;
    u32 head = blockIdx.y, key_head = head / a.heads.group(), size = a.heads.size, width = a.heads.width();
    const T* rows = (const T*)a.qkv + (u64)blockIdx.z * a.seq_len * width;
    u32 i0 = blockIdx.x * ROWS, i_end = min(i0 + ROWS, a.seq_len), firsts[OWN];
    auto first_of = [&](u32 i) { return first_seen(a.offsets, (u64)blockIdx.z * a.seq_len, a.seq_len, i); };
#pragma unroll
    for (int r = 0; r < OWN; r++) firsts[r] = first_of(i0 + y + 8 * r);

    for (u32 e = threadIdx.x; e < ROWS * SIZE; e += 128) {
        u32 r = e / SIZE, c = e % SIZE;
        bool there = i0 + r < a.seq_len && c < size;
        queries[r][c] = there ? load(rows[(u64)(i0 + r) * width + a.heads.query(head) + c]) * a.scale : 0.0f;
    }
    float largest[OWN], total[OWN], sums[OWN][COLUMNS] = {};
#pragma unroll
    for (int r = 0; r < OWN; r++) largest[r] = -INFINITY, total[r] = 0;

    for (u32 j0 = first_of(i0) / KEYS * KEYS; j0 < i_end; j0 += KEYS) {
        if (!a.pattern.any(i0, i_end, j0, min(j0 + KEYS, a.seq_len))) continue;
        auto fetch = [&](u32 part) {
            for (u32 e = threadIdx.x; e < KEYS * SIZE; e += 128) {
                u32 r = e / SIZE, c = e % SIZE;
                bool there = j0 + r < a.seq_len && c < size;
                others[r][c] = there ? load(rows[(u64)(j0 + r) * width + part + c]) : 0.0f;
            }
        };
        __syncthreads();
        fetch(a.heads.key(key_head));
        __syncthreads();
        float scores[OWN][SCORES] = {};
        for (int c = 0; c < SIZE; c++) {
            float keys[SCORES];
#pragma unroll
            for (int s = 0; s < SCORES; s++) keys[s] = others[x + 16 * s][c];
#pragma unroll
            for (int r = 0; r < OWN; r++)
#pragma unroll
                for (int s = 0; s < SCORES; s++) scores[r][s] += queries[y + 8 * r][c] * keys[s];
        }
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            float now = largest[r];
#pragma unroll
            for (int s = 0; s < SCORES; s++) {
                u32 i = i0 + y + 8 * r, j = j0 + x + 16 * s;
                if (i >= a.seq_len || j < firsts[r] || !a.pattern.sees(i, j)) scores[r][s] = -INFINITY;
                now = fmaxf(now, scores[r][s]);
            }
            for (int lane = 8; lane > 0; lane /= 2) now = fmaxf(now, __shfl_xor_sync(FULL_WARP, now, lane));
            // No score seen yet: keep exp's arguments finite.
            float base = now == -INFINITY ? 0.0f : now;
            float sum = 0;
#pragma unroll
            for (int s = 0; s < SCORES; s++) {
                float weight = expf(scores[r][s] - base);
                weights[y + 8 * r][x + 16 * s] = weight;
                sum += weight;
            }
            for (int lane = 8; lane > 0; lane /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, lane);
            float before = expf(largest[r] - base);
            total[r] = total[r] * before + sum;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sums[r][c] *= before;
            largest[r] = now;
        }
        __syncthreads();
        fetch(a.heads.value(key_head));
        __syncthreads();
        for (int j = 0; j < KEYS; j++)
#pragma unroll
            for (int r = 0; r < OWN; r++) {
                float weight = weights[y + 8 * r][j];
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) sums[r][c] += weight * others[j][x + 16 * c];
            }
    }

    u32 out_width = a.heads.queries * size;
#pragma unroll
    for (int r = 0; r < OWN; r++) {
        u32 i = i0 + y + 8 * r;
        if (i >= a.seq_len) continue;
        T* out = (T*)a.out + ((u64)blockIdx.z * a.seq_len + i) * out_width + head * size;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            if (x + 16 * c < size) out[x + 16 * c] = store<T>(sums[r][c] / total[r]);
        if (x == 0)
            a.log_sum[((u64)blockIdx.z * a.heads.queries + head) * a.seq_len + i] = largest[r] + logf(total[r]);
    }
}

// Tiles that fit 48 KiB of shared memory.
EXPORT(attention_64_f32, AttentionArgs, 128, attention<float, 64, 64, 32>)
EXPORT(attention_128_f32, AttentionArgs, 128, attention<float, 128, 32, 32>)
EXPORT(attention_256_f32, AttentionArgs, 128, attention<float, 256, 16, 16>)
EXPORT(attention_64_bf16, AttentionArgs, 128, attention<bf16, 64, 64, 32>)
EXPORT(attention_128_bf16, AttentionArgs, 128, attention<bf16, 128, 32, 32>)
EXPORT(attention_256_bf16, AttentionArgs, 128, attention<bf16, 256, 16, 16>)
