// The gradient of attention in bf16 on tensor cores, otherwise as attention_grad.cu: scores and their gradients stay
// in registers, the next tile is copied while one is worked on, and queries and keys are turned back before they are
// written. The queries' pass, which is first, leaves out_grad . out for the keys'.
#include "tiles.cuh"

// Turns back a warp's 16 rows in shared memory; the first is row `row` of all.
template <int SIZE>
__device__ inline void turn_back(Row<SIZE>* rows, const AttentionGradArgs& a, u64 row) {
    u32 pairs = a.dims / 2, position = row % a.period;
    for (u32 e = threadIdx.x % 32; e < 16 * pairs; e += 32) {
        u32 r = e / pairs, at = (position + r) % a.period;
        turn(rows[r], a.table + (u64)at * a.dims, a.dims, e % pairs, true);
    }
    __syncwarp();
}

// Of a warp's 16 rows, those that this lane has products of: out_grad . out, by all its four lanes.
template <int SIZE>
__device__ inline void means(float (&mean)[2], const u32 (&grad)[SIZE / 16][4], const Row<SIZE>* outs) {
    u32 out[SIZE / 16][4];
    load_left<SIZE>(out, outs);
    auto low = [](u32 pair) { return __uint_as_float(pair << 16); };
    auto high = [](u32 pair) { return __uint_as_float(pair & 0xffff0000u); };
#pragma unroll
    for (int h = 0; h < 2; h++) {
        mean[h] = 0;
#pragma unroll
        for (int k = 0; k < SIZE / 16; k++)
#pragma unroll
            for (int m = h; m < 4; m += 2)
                mean[h] += low(grad[k][m]) * low(out[k][m]) + high(grad[k][m]) * high(out[k][m]);
        mean[h] += __shfl_xor_sync(FULL_WARP, mean[h], 1);
        mean[h] += __shfl_xor_sync(FULL_WARP, mean[h], 2);
    }
}

// Grid (query tiles, queries, batch). A warp has 16 queries; the tile's warps share tiles of KEYS keys and values,
// of which they work on PART at a time.
template <int SIZE, int WARPS, int KEYS, int PART>
__device__ void attention_grad_queries(const AttentionGradArgs& a) {
#ifdef TENSOR_CORES
    constexpr u32 QUERIES = 16 * WARPS, THREADS = 32 * WARPS;
    static_assert(QUERIES <= 2 * KEYS, "rows of the queries' tile pass through pairs of tiles");
    alignas(16) __shared__ Row<SIZE> tiles[2][2][KEYS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y, key_head = head / a.heads.group();
    u32 size = a.heads.size, width = a.heads.width(), end = a.seq_len;
    u64 first = (u64)blockIdx.z * end;
    u32 i0 = (gridDim.x - 1 - blockIdx.x) * QUERIES, i_end = min(i0 + QUERIES, end), own = i0 + 16 * warp;
    Part queries(a.qkv, first, width, a.heads.query(head), size);
    Part keys(a.qkv, first, width, a.heads.key(key_head), size);
    Part values(a.qkv, first, width, a.heads.value(key_head), size);
    Part outs(a.out, first, a.heads.queries * size, head * size, size);
    Part grads(a.out_grad, first, a.heads.queries * size, head * size, size);
    auto fetch_tile = [&](u32 stage, u32 j) {
        fetch<SIZE, KEYS, THREADS>(tiles[stage][0], keys, j, end);
        fetch<SIZE, KEYS, THREADS>(tiles[stage][1], values, j, end);
    };
    auto seen_from = [&](u32 j) {
        while (j < i_end && !a.pattern.any(i0, i_end, j, j + KEYS)) j += KEYS;
        return j;
    };

    fetch<SIZE, QUERIES, THREADS>(tiles[0][0], outs, i0, end);
    fetch<SIZE, QUERIES, THREADS>(tiles[1][0], grads, i0, end);
    wait_for_copies();
    __syncthreads();
    u32 query[SIZE / 16][4], grad[SIZE / 16][4];
    float log_sum[2], mean[2];
    load_left<SIZE>(grad, tiles[1][0] + 16 * warp);
    means<SIZE>(mean, grad, tiles[0][0] + 16 * warp);
    __syncthreads();
    u32 j = seen_from(0), stage = 0;
    fetch<SIZE, QUERIES, THREADS>(tiles[1][0], queries, i0, end);
    fetch_tile(0, j);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 i = own + lane / 4 + 8 * h;
        u64 at = ((u64)blockIdx.z * a.heads.queries + head) * end + i;
        log_sum[h] = i < end ? a.log_sum[at] * LOG2_E : 0.0f;
        if (lane % 4 == 0 && i < end) a.mean[at] = mean[h];
    }
    wait_for_copies();
    __syncthreads();
    load_left<SIZE>(query, tiles[1][0] + 16 * warp);
    __syncthreads();

    float c = a.scale * LOG2_E, sums[SIZE / 8][4] = {};
    while (j < i_end) {
        u32 next = seen_from(j + KEYS);
        if (next < i_end) fetch_tile(stage ^ 1, next);
#pragma unroll
        for (int part = 0; part < KEYS; part += PART) {
            if (!a.pattern.any(own, own + 16, j + part, j + part + PART)) continue;
            float scores[PART / 8][4], products[PART / 8][4];
            multiply_turned<SIZE, PART / 8>(scores, query, tiles[stage][0] + part);
            multiply_turned<SIZE, PART / 8>(products, grad, tiles[stage][1] + part);
            hide<false, PART / 8>(scores, a.pattern, own, j + part);
#pragma unroll
            for (int n = 0; n < PART / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    products[n][e] = power_of_two(scores[n][e] * c - log_sum[e / 2]) * (products[n][e] - mean[e / 2]);
            multiply_add<SIZE, PART / 8>(sums, products, tiles[stage][0] + part);
        }
        wait_for_copies();
        __syncthreads();
        stage ^= 1;
        j = next;
    }

    Row<SIZE>* rows = tiles[0][0] + 16 * warp;
    put<SIZE>(rows, sums, a.scale, a.scale);
    turn_back<SIZE>(rows, a, first + own);
    write<SIZE>(Part(a.qkv_grad, first, width, a.heads.query(head), size), rows, own, end);
#endif
}

// Grid (key tiles, keys, batch). A warp has 16 keys and their values; the tile's warps share tiles of QUERIES queries
// and gradients of outputs. HOLD: the warp's values stay in registers, where there is room.
template <int SIZE, int WARPS, int QUERIES, bool HOLD>
__device__ void attention_grad_keys(const AttentionGradArgs& a) {
#ifdef TENSOR_CORES
    constexpr u32 KEYS = 16 * WARPS, THREADS = 32 * WARPS;
    static_assert(KEYS <= (HOLD ? 2 : 4) * QUERIES, "the keys' tile passes through the queries' tiles");
    alignas(16) __shared__ Row<SIZE> tiles[2][2][QUERIES];
    alignas(16) __shared__ Row<SIZE> own_values[HOLD ? 1 : KEYS];
    __shared__ float log_sums[2][QUERIES], means[2][QUERIES];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, key_head = blockIdx.y, group = a.heads.group();
    u32 size = a.heads.size, width = a.heads.width(), end = a.seq_len, head_end = (key_head + 1) * group;
    u64 first = (u64)blockIdx.z * end;
    u32 j0 = blockIdx.x * KEYS, j_end = min(j0 + KEYS, end), own = j0 + 16 * warp;
    auto fetch_tile = [&](u32 stage, u32 head, u32 i) {
        Part queries(a.qkv, first, width, a.heads.query(head), size);
        Part grads(a.out_grad, first, a.heads.queries * size, head * size, size);
        fetch<SIZE, QUERIES, THREADS>(tiles[stage][0], queries, i, end);
        fetch<SIZE, QUERIES, THREADS>(tiles[stage][1], grads, i, end);
        u64 at = ((u64)blockIdx.z * a.heads.queries + head) * end;
        // Beyond the end the queries and gradients are zeros, and so is all that comes of them.
        for (u32 r = threadIdx.x; r < QUERIES; r += THREADS) {
            copy_word(&log_sums[stage][r], a.log_sum + at + min(i + r, end - 1), i + r < end);
            copy_word(&means[stage][r], a.mean + at + min(i + r, end - 1), i + r < end);
        }
    };

    Row<SIZE>* passing_values = HOLD ? tiles[1][0] : own_values;
    fetch<SIZE, KEYS, THREADS>(tiles[0][0], Part(a.qkv, first, width, a.heads.key(key_head), size), j0, end);
    fetch<SIZE, KEYS, THREADS>(passing_values, Part(a.qkv, first, width, a.heads.value(key_head), size), j0, end);
    wait_for_copies();
    __syncthreads();
    u32 key[SIZE / 16][4], value[SIZE / 16][4];
    load_left<SIZE>(key, tiles[0][0] + 16 * warp);
    if (HOLD) load_left<SIZE>(value, passing_values + 16 * warp);
    __syncthreads();

    // The next tile that sees a key: of this head from `i` on, else of the next.
    u32 head = key_head * group, i = j0 / QUERIES * QUERIES, stage = 0;
    auto seek = [&] {
        for (; head < head_end; head++, i = j0 / QUERIES * QUERIES)
            for (; i < end; i += QUERIES)
                if (a.pattern.any(i, min(i + QUERIES, end), j0, j_end)) return;
    };
    seek();
    fetch_tile(0, head, i);
    wait_for_copies();
    __syncthreads();

    float c = a.scale * LOG2_E, key_sums[SIZE / 8][4] = {}, value_sums[SIZE / 8][4] = {};
    while (head < head_end) {
        u32 now = i;
        i += QUERIES;
        seek();
        if (head < head_end) fetch_tile(stage ^ 1, head, i);
        if (a.pattern.any(now, now + QUERIES, own, own + 16)) {
            const Row<SIZE>*queries = tiles[stage][0], *grads = tiles[stage][1];
            float scores[QUERIES / 8][4], products[QUERIES / 8][4];
            multiply_turned<SIZE, QUERIES / 8>(scores, key, queries);
            if (!HOLD) load_left<SIZE>(value, own_values + 16 * warp);
            multiply_turned<SIZE, QUERIES / 8>(products, value, grads);
            hide<true, QUERIES / 8>(scores, a.pattern, own, now);
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    u32 at = 8 * n + lane % 4 * 2 + e % 2;
                    scores[n][e] = power_of_two(scores[n][e] * c - log_sums[stage][at] * LOG2_E);
                    products[n][e] = scores[n][e] * (products[n][e] - means[stage][at]);
                }
            multiply_add<SIZE, QUERIES / 8>(value_sums, scores, grads);
            multiply_add<SIZE, QUERIES / 8>(key_sums, products, queries);
        }
        wait_for_copies();
        __syncthreads();
        stage ^= 1;
    }

    Row<SIZE>* rows = tiles[0][0] + 16 * warp;
    put<SIZE>(rows, key_sums, a.scale, a.scale);
    turn_back<SIZE>(rows, a, first + own);
    write<SIZE>(Part(a.qkv_grad, first, width, a.heads.key(key_head), size), rows, own, end);
    put<SIZE>(rows, value_sums, 1, 1);
    write<SIZE>(Part(a.qkv_grad, first, width, a.heads.value(key_head), size), rows, own, end);
#endif
}

EXPORT(attention_grad_queries_tensor_32, AttentionGradArgs, 128, attention_grad_queries<32, 4, 64, 32>)
EXPORT(attention_grad_queries_tensor_64, AttentionGradArgs, 128, attention_grad_queries<64, 4, 64, 32>)
EXPORT(attention_grad_queries_tensor_128, AttentionGradArgs, 128, attention_grad_queries<128, 4, 32, 32>)
EXPORT(attention_grad_keys_tensor_32, AttentionGradArgs, 128, attention_grad_keys<32, 4, 32, true>)
EXPORT(attention_grad_keys_tensor_64, AttentionGradArgs, 128, attention_grad_keys<64, 4, 32, true>)
EXPORT(attention_grad_keys_tensor_128, AttentionGradArgs, 128, attention_grad_keys<128, 4, 16, false>)
