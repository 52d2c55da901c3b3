// Attention in bf16 on tensor cores, otherwise as attention.cu: scores stay in registers (Dao 2023), keys and values
// of the next tile are copied while one is worked on.
#include "tiles.cuh"

// Grid (query tiles, queries, batch). A warp has 16 queries; the tile's warps share tiles of KEYS keys and values.
template <int SIZE, int WARPS, int KEYS>
__device__ void attention(const AttentionArgs& a) {
#ifdef TENSOR_CORES
    constexpr u32 QUERIES = 16 * WARPS, THREADS = 32 * WARPS;
    static_assert(QUERIES <= 2 * KEYS, "queries pass through the second pair of tiles");
    alignas(16) __shared__ Row<SIZE> tiles[2][2][KEYS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y, key_head = head / a.heads.group();
    u32 size = a.heads.size, width = a.heads.width(), end = a.seq_len;
    u64 first = (u64)blockIdx.z * end;
    // The longest rows first.
    u32 i0 = (gridDim.x - 1 - blockIdx.x) * QUERIES, i_end = min(i0 + QUERIES, end), own = i0 + 16 * warp;
    Part queries(a.qkv, first, width, a.heads.query(head), size);
    Part keys(a.qkv, first, width, a.heads.key(key_head), size);
    Part values(a.qkv, first, width, a.heads.value(key_head), size);
    auto fetch_tile = [&](u32 stage, u32 j) {
        fetch<SIZE, KEYS, THREADS>(tiles[stage][0], keys, j, end);
        fetch<SIZE, KEYS, THREADS>(tiles[stage][1], values, j, end);
    };
    auto seen_from = [&](u32 j) {
        while (j < i_end && !a.pattern.any(i0, i_end, j, j + KEYS)) j += KEYS;
        return j;
    };

    u32 j = seen_from(0), stage = 0;
    fetch<SIZE, QUERIES, THREADS>(tiles[1][0], queries, i0, end);
    fetch_tile(0, j);
    wait_for_copies();
    __syncthreads();
    u32 query[SIZE / 16][4];
    load_left<SIZE>(query, tiles[1][0] + 16 * warp);
    __syncthreads();

    float c = a.scale * LOG2_E;
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {}, sums[SIZE / 8][4] = {};
    while (j < i_end) {
        u32 next = seen_from(j + KEYS);
        if (next < i_end) fetch_tile(stage ^ 1, next);
        if (a.pattern.any(own, own + 16, j, j + KEYS)) {
            float scores[KEYS / 8][4];
            multiply_turned<SIZE, KEYS / 8>(scores, query, tiles[stage][0]);
            hide<false, KEYS / 8>(scores, a.pattern, own, j);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float now = largest[h];
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++) now = fmaxf(now, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
                now = fmaxf(now, __shfl_xor_sync(FULL_WARP, now, 1));
                now = fmaxf(now, __shfl_xor_sync(FULL_WARP, now, 2));
                // Nothing seen yet: keep the powers' arguments numbers.
                float base = now == -INFINITY ? 0.0f : now * c;
                float before = power_of_two(largest[h] * c - base);
                float sum = 0;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 2 * h; e < 2 * h + 2; e++) {
                        scores[n][e] = power_of_two(scores[n][e] * c - base);
                        sum += scores[n][e];
                    }
                total[h] = total[h] * before + sum;
#pragma unroll
                for (int n = 0; n < SIZE / 8; n++) sums[n][2 * h] *= before, sums[n][2 * h + 1] *= before;
                largest[h] = now;
            }
            multiply_add<SIZE, KEYS / 8>(sums, scores, tiles[stage][1]);
        }
        wait_for_copies();
        __syncthreads();
        stage ^= 1;
        j = next;
    }

#pragma unroll
    for (int h = 0; h < 2; h++) {
        total[h] += __shfl_xor_sync(FULL_WARP, total[h], 1);
        total[h] += __shfl_xor_sync(FULL_WARP, total[h], 2);
        u32 i = own + lane / 4 + 8 * h;
        if (lane % 4 == 0 && i < end)
            a.log_sum[((u64)blockIdx.z * a.heads.queries + head) * end + i] = largest[h] * a.scale + logf(total[h]);
    }
    Row<SIZE>* rows = tiles[0][0] + 16 * warp;
    put<SIZE>(rows, sums, 1 / total[0], 1 / total[1]);
    write<SIZE>(Part(a.out, first, a.heads.queries * size, head * size, size), rows, own, end);
#endif
}

EXPORT(attention_tensor_32, AttentionArgs, 128, attention<32, 4, 64>)
EXPORT(attention_tensor_64, AttentionArgs, 128, attention<64, 4, 64>)
EXPORT(attention_tensor_64_8, AttentionArgs, 256, attention<64, 8, 64>)
EXPORT(attention_tensor_128, AttentionArgs, 128, attention<128, 4, 32>)
