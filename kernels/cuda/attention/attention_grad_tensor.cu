// The gradient of attention in bf16 on tensor cores, otherwise as attention_grad.cu: scores and their gradients stay in
// registers, the next tile is copied while one is processed, and the gradients of queries and keys are rotated back
// before they are written. The queries' pass, which is first, computes out_grad . out for the keys' pass.
#include "../tiles.cuh"

// out_grad . out of 16 rows: each of the rows that this lane has results of, in all four lanes of the row.
template <int SIZE>
__device__ inline void means(float (&mean)[2], Left<SIZE, true>& grads, const Row<SIZE>* outs) {
    auto low = [](u32 pair) { return __uint_as_float(pair << 16); };
    auto high = [](u32 pair) { return __uint_as_float(pair & 0xffff0000u); };
    mean[0] = mean[1] = 0;
#pragma unroll
    for (int k = 0; k < SIZE / 16; k++) {
        const u32(&grad)[4] = grads.at(k);
        u32 out[4];
        load_left<SIZE>(out, outs, 16 * k);
#pragma unroll
        for (int m = 0; m < 4; m++) mean[m % 2] += low(grad[m]) * low(out[m]) + high(grad[m]) * high(out[m]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        mean[h] += __shfl_xor_sync(FULL_WARP, mean[h], 1);
        mean[h] += __shfl_xor_sync(FULL_WARP, mean[h], 2);
    }
}

// Grid (query tiles, queries, batch). A warp has 16 queries; the block's warps share tiles of KEYS keys and values,
// which they process 32 at a time.
template <int SIZE, int WARPS, int KEYS, bool MASKED>
__device__ void attention_grad_queries(const AttentionGradArgs& a) {
#ifdef TENSOR_CORES
    constexpr u32 QUERIES = 16 * WARPS, THREADS = 32 * WARPS;
    constexpr int PART = 32;
    static_assert(QUERIES <= 2 * KEYS, "what the queries need passes through pairs of tiles");
    alignas(16) __shared__ Row<SIZE> tiles[2][2][KEYS];
    u32 lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16, head = blockIdx.y, key_head = head / a.heads.group();
    u32 size = a.heads.size, width = a.heads.width(), out_width = a.heads.queries * size, end = a.seq_len;
    u64 first = (u64)blockIdx.z * end;
    // The longest rows first.
    u32 i0 = (gridDim.x - 1 - blockIdx.x) * QUERIES, i_end = min(i0 + QUERIES, end), row = i0 + own;
    Part queries(a.qkv, first, width, a.heads.query(head), size);
    Part keys(a.qkv, first, width, a.heads.key(key_head), size);
    Part values(a.qkv, first, width, a.heads.value(key_head), size);
    auto fetch_tile = [&](u32 stage, u32 j) {
        fetch<SIZE, KEYS, THREADS>(tiles[stage][0], keys, j, end);
        fetch<SIZE, KEYS, THREADS>(tiles[stage][1], values, j, end);
    };
    auto seen = [&](u32 j, u32 j_end) { return a.pattern.any(i0, i_end, j, j_end); };

    fetch<SIZE, QUERIES, THREADS>(tiles[0][0], Part(a.out, first, out_width, head * size, size), i0, end);
    fetch<SIZE, QUERIES, THREADS>(tiles[1][0], Part(a.out_grad, first, out_width, head * size, size), i0, end);
    wait_for_copies();
    __syncthreads();
    Left<SIZE, true> grad(tiles[1][0] + own);
    float log_sum[2], mean[2];
    means<SIZE>(mean, grad, tiles[0][0] + own);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 i = row + lane / 4 + 8 * h;
        u64 at = ((u64)blockIdx.z * a.heads.queries + head) * end + i;
        log_sum[h] = i < end ? a.log_sum[at] * LOG2_E : 0.0f;
        if (lane % 4 == 0 && i < end) a.mean[at] = mean[h];
    }
    __syncthreads();
    Documents<MASKED> documents(a.offsets, first, end);
    FirstKeys<MASKED> first_keys(documents, row);
    u32 j = next_tile<KEYS>(documents.first_seen(i0) / KEYS * KEYS, i_end, seen), stage = 0;
    fetch<SIZE, QUERIES, THREADS>(tiles[1][0], queries, i0, end);
    fetch_tile(0, j);
    wait_for_copies();
    __syncthreads();
    Left<SIZE, true> query(tiles[1][0] + own);
    __syncthreads();

    float c = a.scale * LOG2_E, sums[SIZE / 8][4] = {};
    while (j < i_end) {
        u32 next = next_tile<KEYS>(j + KEYS, i_end, seen);
        if (next < i_end) fetch_tile(stage ^ 1, next);
#pragma unroll
        for (int part = 0; part < KEYS; part += PART) {
            u32 part_end = j + part + PART;
            if (first_keys.least >= part_end || !a.pattern.any(row, row + 16, j + part, part_end)) continue;
            const Row<SIZE>*part_keys = tiles[stage][0] + part, *part_values = tiles[stage][1] + part;
            float scores[PART / 8][4], products[PART / 8][4];
            multiply_turned(scores, query, part_keys);
            multiply_turned(products, grad, part_values);
            hide<false>(scores, a.pattern, row, j + part);
            first_keys.hide(scores, j + part);
#pragma unroll
            for (int n = 0; n < PART / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    products[n][e] = power_of_two(scores[n][e] * c - log_sum[e / 2]) * (products[n][e] - mean[e / 2]);
            multiply_add<SIZE>(sums, products, part_keys);
        }
        wait_for_copies();
        __syncthreads();
        stage ^= 1;
        j = next;
    }

    Row<SIZE>* rows = tiles[0][0] + own;
    put_back<SIZE>(rows, sums, a, first + row);
    write<SIZE>(Part(a.qkv_grad, first, width, a.heads.query(head), size), rows, row, end);
#else
    __trap();
#endif
}

// Grid (key tiles, keys, batch). A warp has 16 keys and their values; the block's warps share tiles of QUERIES queries
// and gradients of outputs. HELD: the keys are in registers, which saves shared memory.
template <int SIZE, int WARPS, int QUERIES, bool HELD, bool MASKED>
__device__ void attention_grad_keys(const AttentionGradArgs& a) {
#ifdef TENSOR_CORES
    constexpr u32 KEYS = 16 * WARPS, THREADS = 32 * WARPS;
    static_assert(KEYS <= 4 * QUERIES, "held keys and the results pass through the queries' tiles");
    alignas(16) __shared__ Row<SIZE> tiles[2][2][QUERIES];
    alignas(16) __shared__ Row<SIZE> kept[HELD ? 1 : 2][KEYS];
    __shared__ float log_sums[2][QUERIES], means[2][QUERIES];
    __shared__ u32 offsets[MASKED ? 2 : 1][MASKED ? QUERIES : 1];
    u32 lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16, key_head = blockIdx.y, group = a.heads.group();
    u32 size = a.heads.size, width = a.heads.width(), out_width = a.heads.queries * size, end = a.seq_len;
    u64 first = (u64)blockIdx.z * end;
    u32 j0 = blockIdx.x * KEYS, j_end = min(j0 + KEYS, end), row = j0 + own;
    u32 key = a.heads.key(key_head), value = a.heads.value(key_head);
    Documents<MASKED> documents(a.offsets, first, end);
    auto fetch_tile = [&](u32 stage, u32 head, u32 i) {
        fetch<SIZE, QUERIES, THREADS>(tiles[stage][0], Part(a.qkv, first, width, a.heads.query(head), size), i, end);
        fetch<SIZE, QUERIES, THREADS>(tiles[stage][1], Part(a.out_grad, first, out_width, head * size, size), i, end);
        u64 at = ((u64)blockIdx.z * a.heads.queries + head) * end;
        // After the end, queries and gradients are zeros, so they contribute nothing.
        for (u32 r = threadIdx.x; r < QUERIES; r += THREADS) {
            copy_word(&log_sums[stage][r], a.log_sum + at + min(i + r, end - 1), i + r < end);
            copy_word(&means[stage][r], a.mean + at + min(i + r, end - 1), i + r < end);
            if (MASKED) copy_word(&offsets[stage][r], documents.offsets + min(i + r, end - 1), i + r < end);
        }
    };

    Row<SIZE>*own_values = kept[0], *own_keys = HELD ? tiles[0][0] : kept[1];
    fetch<SIZE, KEYS, THREADS>(own_keys, Part(a.qkv, first, width, key, size), j0, end);
    fetch<SIZE, KEYS, THREADS>(own_values, Part(a.qkv, first, width, value, size), j0, end);
    if (HELD) wait_for_copies();
    if (HELD) __syncthreads();
    Left<SIZE, HELD> left_keys(own_keys + own);
    Left<SIZE, false> left_values(own_values + own);
    if (HELD) __syncthreads();

    // Advances from (head, i) to the next tile that sees a key: of this head from `i` on, else of the next head.
    u32 begin = j0 / QUERIES * QUERIES, head = key_head * group, head_end = head + group, i = begin, stage = 0;
    auto seek = [&] {
        auto seen = [&](u32 i, u32 i_end) { return documents.reach(i, j_end) && a.pattern.any(i, i_end, j0, j_end); };
        for (; head < head_end; head++, i = begin)
            if ((i = next_tile<QUERIES>(i, end, seen)) < end) return;
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
        if (a.pattern.any(now, now + QUERIES, row, row + 16)) {
            const Row<SIZE>*queries = tiles[stage][0], *grads = tiles[stage][1];
            float scores[QUERIES / 8][4], products[QUERIES / 8][4];
            multiply_turned(scores, left_keys, queries);
            multiply_turned(products, left_values, grads);
            hide<true>(scores, a.pattern, row, now);
            hide_before<MASKED>(scores, row, now, offsets[MASKED ? stage : 0]);
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    u32 at = 8 * n + lane % 4 * 2 + e % 2;
                    scores[n][e] = power_of_two(scores[n][e] * c - log_sums[stage][at] * LOG2_E);
                    products[n][e] = scores[n][e] * (products[n][e] - means[stage][at]);
                }
            multiply_add<SIZE>(value_sums, scores, grads);
            multiply_add<SIZE>(key_sums, products, queries);
        }
        wait_for_copies();
        __syncthreads();
        stage ^= 1;
    }

    Row<SIZE>* rows = tiles[0][0] + own;
    put_back<SIZE>(rows, key_sums, a, first + row);
    write<SIZE>(Part(a.qkv_grad, first, width, key, size), rows, row, end);
    put<SIZE>(rows, value_sums, 1, 1);
    write<SIZE>(Part(a.qkv_grad, first, width, value, size), rows, row, end);
#else
    __trap();
#endif
}

// For sequences whose length divides a tile's, several in each tile: all rows are one stream, and one pass computes
// both sides. Grid (keys * tiles). A warp has 16 rows, whose keys and queries lie within its SPAN rows.
template <int SIZE, int WARPS, int SPAN>
__device__ void attention_grad_packed(const AttentionGradArgs& a) {
#ifdef TENSOR_CORES
    constexpr u32 TILE = 16 * WARPS, THREADS = 32 * WARPS;
    alignas(16) __shared__ Row<SIZE> keys[TILE], values[TILE], queries[TILE], grads[TILE], outs[TILE];
    __shared__ float log_sums[TILE], all_means[TILE];
    u32 lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16, span = own / SPAN * SPAN, end = a.rows;
    u32 key_head = blockIdx.x % a.heads.keys, i0 = blockIdx.x / a.heads.keys * TILE, row = i0 + own;
    u32 size = a.heads.size, width = a.heads.width(), out_width = a.heads.queries * size, group = a.heads.group();
    u32 key = a.heads.key(key_head), value = a.heads.value(key_head);
    fetch<SIZE, TILE, THREADS>(keys, Part(a.qkv, 0, width, key, size), i0, end);
    fetch<SIZE, TILE, THREADS>(values, Part(a.qkv, 0, width, value, size), i0, end);
    float c = a.scale * LOG2_E, key_sums[SIZE / 8][4] = {}, value_sums[SIZE / 8][4] = {};
    float scores[SPAN / 8][4], products[SPAN / 8][4];
    for (u32 head = key_head * group; head < (key_head + 1) * group; head++) {
        fetch<SIZE, TILE, THREADS>(queries, Part(a.qkv, 0, width, a.heads.query(head), size), i0, end);
        fetch<SIZE, TILE, THREADS>(grads, Part(a.out_grad, 0, out_width, head * size, size), i0, end);
        fetch<SIZE, TILE, THREADS>(outs, Part(a.out, 0, out_width, head * size, size), i0, end);
        // After the end, queries and gradients are zeros, so they contribute nothing.
        for (u32 r = threadIdx.x; r < TILE; r += THREADS)
            log_sums[r] = i0 + r < end ? a.log_sum[place(i0 + r, a.seq_len, a.heads.queries, head)] * LOG2_E : 0.0f;
        wait_for_copies();
        __syncthreads();
        {
            Left<SIZE, true> grad(grads + own);
            Left<SIZE, false> query(queries + own);
            float mean[2], sums[SIZE / 8][4] = {};
            means<SIZE>(mean, grad, outs + own);
            if (lane % 4 == 0) all_means[own + lane / 4] = mean[0], all_means[own + lane / 4 + 8] = mean[1];
            multiply_turned(scores, query, keys + span);
            multiply_turned(products, grad, values + span);
            hide_others<false>(scores, a.seq_len, own, span);
            float log_sum[2] = {log_sums[own + lane / 4], log_sums[own + lane / 4 + 8]};
#pragma unroll
            for (int n = 0; n < SPAN / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    products[n][e] = power_of_two(scores[n][e] * c - log_sum[e / 2]) * (products[n][e] - mean[e / 2]);
            multiply_add<SIZE>(sums, products, keys + span);
            // Each warp has its own rows of the outputs' tile, and is done with them.
            __syncwarp();
            put_back<SIZE>(outs + own, sums, a, row);
            write<SIZE>(Part(a.qkv_grad, 0, width, a.heads.query(head), size), outs + own, row, end);
        }
        __syncthreads();
        Left<SIZE, false> left_keys(keys + own), left_values(values + own);
        multiply_turned(scores, left_keys, queries + span);
        multiply_turned(products, left_values, grads + span);
        hide_others<true>(scores, a.seq_len, own, span);
#pragma unroll
        for (int n = 0; n < SPAN / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                u32 at = span + 8 * n + lane % 4 * 2 + e % 2;
                scores[n][e] = power_of_two(scores[n][e] * c - log_sums[at]);
                products[n][e] = scores[n][e] * (products[n][e] - all_means[at]);
            }
        multiply_add<SIZE>(value_sums, scores, grads + span);
        multiply_add<SIZE>(key_sums, products, queries + span);
        // The next head's rows overwrite these.
        __syncthreads();
    }
    put_back<SIZE>(queries + own, key_sums, a, row);
    write<SIZE>(Part(a.qkv_grad, 0, width, key, size), queries + own, row, end);
    put<SIZE>(grads + own, value_sums, 1, 1);
    write<SIZE>(Part(a.qkv_grad, 0, width, value, size), grads + own, row, end);
#else
    __trap();
#endif
}

EXPORT_MANY(attention_grad_queries_tensor_32, AttentionGradArgs, 128, 5, attention_grad_queries<32, 4, 64, false>)
EXPORT_MANY(attention_grad_queries_tensor_32_documents, AttentionGradArgs, 128, 5, attention_grad_queries<32, 4, 64, true>)
EXPORT_MANY(attention_grad_queries_tensor_64, AttentionGradArgs, 128, 4, attention_grad_queries<64, 4, 64, false>)
EXPORT_MANY(attention_grad_queries_tensor_64_documents, AttentionGradArgs, 128, 4, attention_grad_queries<64, 4, 64, true>)
EXPORT_MANY(attention_grad_queries_tensor_128, AttentionGradArgs, 128, 2, attention_grad_queries<128, 4, 32, false>)
EXPORT_MANY(attention_grad_queries_tensor_128_documents, AttentionGradArgs, 128, 2, attention_grad_queries<128, 4, 32, true>)
EXPORT_MANY(attention_grad_keys_tensor_32, AttentionGradArgs, 128, 5, attention_grad_keys<32, 4, 32, false, false>)
EXPORT_MANY(attention_grad_keys_tensor_32_documents, AttentionGradArgs, 128, 5, attention_grad_keys<32, 4, 32, false, true>)
EXPORT_MANY(attention_grad_keys_tensor_64, AttentionGradArgs, 128, 4, attention_grad_keys<64, 4, 32, false, false>)
EXPORT_MANY(attention_grad_keys_tensor_64_documents, AttentionGradArgs, 128, 4, attention_grad_keys<64, 4, 32, false, true>)
EXPORT_MANY(attention_grad_keys_tensor_128, AttentionGradArgs, 128, 2, attention_grad_keys<128, 4, 16, true, false>)
EXPORT_MANY(attention_grad_keys_tensor_128_documents, AttentionGradArgs, 128, 2, attention_grad_keys<128, 4, 16, true, true>)
EXPORT_MANY(attention_grad_packed_32_16, AttentionGradArgs, 128, 5, attention_grad_packed<32, 4, 16>)
EXPORT_MANY(attention_grad_packed_32_32, AttentionGradArgs, 128, 4, attention_grad_packed<32, 4, 32>)
EXPORT_MANY(attention_grad_packed_64_16, AttentionGradArgs, 128, 4, attention_grad_packed<64, 4, 16>)
EXPORT_MANY(attention_grad_packed_64_32, AttentionGradArgs, 128, 3, attention_grad_packed<64, 4, 32>)
EXPORT_MANY(attention_grad_packed_128_16, AttentionGradArgs, 64, 4, attention_grad_packed<128, 2, 16>)
EXPORT_MANY(attention_grad_packed_128_32, AttentionGradArgs, 64, 4, attention_grad_packed<128, 2, 32>)
