// The gradient of attention in bf16 by warpgroups (wgmma), otherwise as attention_grad_tensor.cu.
#include "../tma.cuh"
#include "../warpgroup.cuh"

// Grid (queries, batch, query tiles). A block is one warpgroup, with 64 queries. The tensor memory accelerator copies
// the tiles.
template <bool MASKED>
__device__ inline void attention_grad_queries_by_groups(const AttentionGradTilesArgs& all) {
#ifdef WARPGROUPS
    // Barriers for each pair of tiles, and for the block's own tiles.
    constexpr u32 BARRIERS = 3;
    LAUNCH_SHARED(pool, 6 * TILE * sizeof(bf16) + BARRIERS * sizeof(u64));
    const AttentionGradArgs& a = all.grad;
    const Work work = a.order.work();
    bf16 *tiles = held((bf16*)pool), *own_queries = tiles + 4 * TILE, *own_grads = own_queries + TILE;
    u64 *full = (u64*)(own_grads + TILE), *own_full = full + 2;
    // The outputs are first in the slots of the second pair of tiles.
    bf16* own_outs = tiles + 2 * TILE;
    u32 lane = threadIdx.x % 32, own = of_warp(threadIdx.x / 32) * 16, head = work.head;
    u32 size = a.heads.size, width = a.heads.width(), out_width = a.heads.queries * size, end = a.seq_len;
    u64 first = (u64)work.sequence * end;
    // The longest rows of all heads first.
    u32 i0 = (gridDim.z - 1 - work.tile) * SIDE, i_end = min(i0 + SIDE, end), row = i0 + own;
    u32 key_head = head / a.heads.group();
    u32 query = a.heads.query(head), key = a.heads.key(key_head) / size, value = a.heads.value(key_head) / size;
    bool leads = threadIdx.x == 0;
    auto fetch_tile = [&](u32 stage, u32 j) {
        arrive_for_bytes(full + stage, 2 * TILE * sizeof(bf16));
        copy_head(tiles + 2 * stage * TILE, all.qkv, full + stage, j, key, work.sequence);
        copy_head(tiles + (2 * stage + 1) * TILE, all.qkv, full + stage, j, value, work.sequence);
    };
    auto next_of = [&](u32 j) {
        auto seen = [&](u32 j, u32 j_end) { return a.pattern.any(i0, i_end, j, j_end); };
        return next_tile<SIDE>(j, i_end, seen);
    };

    Documents<MASKED> documents(a.offsets, first, end);
    FirstKeys<MASKED> first_keys(documents, row);
    u32 j = next_of(documents.first_seen(i0) / SIDE * SIDE), next = next_of(j + SIDE), stage = 0, phase = 0;
    if (leads) {
        if (blockIdx.x + blockIdx.y + blockIdx.z == 0) *a.taken = 0;
        for (u32 b = 0; b < BARRIERS; b++) start_phases(full + b, 1);
        show_phases();
        arrive_for_bytes(own_full, 2 * TILE * sizeof(bf16));
        copy_head(own_queries, all.qkv, own_full, i0, query / size, work.sequence);
        copy_head(own_grads, all.out_grad, own_full, i0, head, work.sequence);
        fetch_tile(0, j);
    }
    fetch_swizzled(own_outs, Part(a.out, first, out_width, head * size, size), i0, end);
    await_tiles();
    wait_for_phase(own_full, 0);
    float log_sum[2], mean[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        mean[h] = row_dot(own_grads, own_outs, own + lane / 4 + 8 * h);
        u32 i = row + lane / 4 + 8 * h;
        u64 at = ((u64)work.sequence * a.heads.queries + head) * end + i;
        log_sum[h] = i < end ? a.log_sum[at] * LOG2_E : 0.0f;
        if (lane % 4 == 0 && i < end) a.mean[at] = mean[h];
    }

    Matrix matrices(tiles), left_queries(own_queries), left_grads(own_grads);
    float c = a.scale * LOG2_E, sums[8][4] = {};
    while (j < i_end) {
        Matrix tile_keys = matrices.row(2 * stage * SIDE), tile_values = tile_keys.row(SIDE);
        float scores[8][4], products[8][4];
        u32 gradients[4][4];
        begin_with_rows(products, mean);
        wait_for_phase(full + stage, phase);
        begin_products();
        start_turned(scores, left_queries, tile_keys);
        start_turned(products, left_grads, tile_values, true);
        // All threads are done with the previous tiles, and at first with the outputs.
        __syncthreads();
        if (leads && next < i_end) fetch_tile(stage ^ 1, next);
        wait_for_products<1>(scores);
        hide<false>(scores, a.pattern, row, j);
        first_keys.hide(scores, j);
        weigh_rows(scores, c, log_sum);
        wait_for_products<0>(products);
        derive(products, scores);
        round_left(gradients, products);
        begin_products();
        start_adding(sums, gradients, tile_keys);
        j = next;
        next = next_of(j + SIDE);
        wait_for_products<0>(sums);
        phase ^= stage;
        stage ^= 1;
    }
    __syncthreads();

    Row<SIDE>* rows = (Row<SIDE>*)tiles + own;
    put_back<SIDE>(rows, sums, a, first + row);
    write<SIDE>(Part(a.qkv_grad, first, width, query, size), rows, row, end);
    if (a.sums) {
        ColumnSums& columns = *(ColumnSums*)(tiles + 2 * TILE);
        columns.clear();
        columns.add(rows);
        __syncthreads();
        columns.put(a.sums + ((u64)work.sequence * gridDim.z + i0 / SIDE) * width + query, size);
    }
#else
    __trap();
#endif
}

// Grid (keys, batch, key tiles). A block is one warpgroup, with 64 keys and their values.
template <bool MASKED>
__device__ inline void attention_grad_keys_by_groups(const AttentionGradArgs& a) {
#ifdef WARPGROUPS
    LAUNCH_SHARED(pool, 6 * TILE * sizeof(bf16) + 4 * SIDE * sizeof(float) + 2 * SIDE * sizeof(u32));
    const Work work = a.order.work();
    bf16 *tiles = held((bf16*)pool), *own_keys = tiles + 4 * TILE, *own_values = own_keys + TILE;
    // For each stage.
    float *log_sums = (float*)(own_values + TILE), *means = log_sums + 2 * SIDE;
    u32* offsets = (u32*)(means + 2 * SIDE);
    u32 lane = threadIdx.x % 32, own = of_warp(threadIdx.x / 32) * 16, key_head = work.head, group = a.heads.group();
    u32 size = a.heads.size, width = a.heads.width(), out_width = a.heads.queries * size, end = a.seq_len;
    u64 first = (u64)work.sequence * end;
    // The longest columns of all heads first.
    u32 j0 = work.tile * SIDE, j_end = min(j0 + SIDE, end), row = j0 + own;
    u32 key = a.heads.key(key_head), value = a.heads.value(key_head);
    Part queries(a.qkv, first, width, a.heads.query(0), size), grads(a.out_grad, first, out_width, 0, size);
    queries.whole &= a.heads.query_stride % 8 == 0;
    Documents<MASKED> documents(a.offsets, first, end);
    auto fetch_tile = [&](u32 stage, u32 head, u32 i) {
        Part head_queries = queries, head_grads = grads;
        head_queries.first += head * a.heads.query_stride;
        head_grads.first += head * size;
        fetch_swizzled(tiles + 2 * stage * TILE, head_queries, i, end);
        fetch_swizzled(tiles + (2 * stage + 1) * TILE, head_grads, i, end);
        u64 at = ((u64)work.sequence * a.heads.queries + head) * end;
        // After the end, queries and gradients are zeros, so they contribute nothing.
        if (u32 r = threadIdx.x; r < SIDE) {
            copy_word(&log_sums[stage * SIDE + r], a.log_sum + at + min(i + r, end - 1), i + r < end);
            copy_word(&means[stage * SIDE + r], a.mean + at + min(i + r, end - 1), i + r < end);
            if (MASKED) copy_word(&offsets[stage * SIDE + r], documents.offsets + min(i + r, end - 1), i + r < end);
        }
    };
    // As await_tiles; also converts the log_sums to base 2.
    auto await = [&](u32 stage) {
        wait_for_copies();
        if (threadIdx.x < SIDE) log_sums[stage * SIDE + threadIdx.x] *= LOG2_E;
        show_to_products();
        __syncthreads();
    };

    // Advances from (head, i) to the next tile that sees a key: of this head from `i` on, else of the next head.
    u32 begin = j0 / SIDE * SIDE, head = key_head * group, head_end = head + group, i = begin, stage = 0;
    auto seek = [&] {
        auto seen = [&](u32 i, u32 i_end) { return documents.reach(i, j_end) && a.pattern.any(i, i_end, j0, j_end); };
        for (; head < head_end; head++, i = begin)
            if ((i = next_tile<SIDE>(i, end, seen)) < end) return;
    };
    seek();
    fetch_swizzled(own_keys, Part(a.qkv, first, width, key, size), j0, end);
    fetch_swizzled(own_values, Part(a.qkv, first, width, value, size), j0, end);
    fetch_tile(0, head, i);
    await(0);

    Matrix matrices(tiles), left_keys(own_keys), left_values(own_values);
    float c = a.scale * LOG2_E, key_sums[8][4] = {}, value_sums[8][4] = {};
    while (head < head_end) {
        Matrix tile_queries = matrices.row(2 * stage * SIDE), tile_grads = tile_queries.row(SIDE);
        float scores[8][4], products[8][4];
        u32 weights[4][4], gradients[4][4];
        begin_products();
        start_turned(scores, left_keys, tile_queries);
        start_turned(products, left_values, tile_grads);
        u32 now = i;
        i += SIDE;
        seek();
        if (head < head_end) fetch_tile(stage ^ 1, head, i);
        wait_for_products<1>(scores);
        hide<true>(scores, a.pattern, row, now);
        hide_before<MASKED>(scores, row, now, offsets + stage * SIDE);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                u32 at = stage * SIDE + 8 * n + lane % 4 * 2 + e % 2;
                scores[n][e] = power_of_two(scores[n][e] * c - log_sums[at]);
            }
        wait_for_products<0>(products);
        derive_columns(products, scores, means + stage * SIDE);
        // Rounded only now, for lack of registers.
        round_left(weights, scores);
        round_left(gradients, products);
        begin_products();
        start_adding(value_sums, weights, tile_grads);
        start_adding(key_sums, gradients, tile_queries);
        wait_for_products<0>(value_sums);
        wait_for_products<0>(key_sums);
        await(stage ^ 1);
        stage ^= 1;
    }

    Row<SIDE>* rows = (Row<SIDE>*)tiles + own;
    put_back<SIDE>(rows, key_sums, a, first + row);
    write<SIDE>(Part(a.qkv_grad, first, width, key, size), rows, row, end);
    put<SIDE>(rows, value_sums, 1, 1);
    write<SIDE>(Part(a.qkv_grad, first, width, value, size), rows, row, end);
#else
    __trap();
#endif
}

EXPORT_MANY(attention_grad_queries_warpgroup, AttentionGradTilesArgs, 128, 4, attention_grad_queries_by_groups<false>)
EXPORT_MANY(attention_grad_queries_warpgroup_documents, AttentionGradTilesArgs, 128, 4, attention_grad_queries_by_groups<true>)
EXPORT_MANY(attention_grad_keys_warpgroup, AttentionGradArgs, 128, 3, attention_grad_keys_by_groups<false>)
EXPORT_MANY(attention_grad_keys_warpgroup_documents, AttentionGradArgs, 128, 3, attention_grad_keys_by_groups<true>)
