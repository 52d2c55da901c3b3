// Attention in bf16 by warpgroups (wgmma), with tiles copied by the tensor memory accelerator; otherwise as
// attention_tensor.cu.
#include "../tma.cuh"
#include "../warpgroup.cuh"

// Grid (queries, batch, query tiles). A block is one warpgroup, with 64 queries: some of a multiprocessor's blocks keep
// its tensor cores busy while others compute their softmax. The scores of the next keys are computed concurrently with
// the sums over the current values, whose softmax is complete.
template <bool MASKED>
__device__ inline void attention_by_groups(const AttentionTilesArgs& all) {
#ifdef WARPGROUPS
    // Barriers for each tile of keys and of values, and for the queries.
    constexpr u32 BARRIERS = 5;
    LAUNCH_SHARED(pool, 5 * TILE * sizeof(bf16) + BARRIERS * sizeof(u64));
    const AttentionArgs& a = all.attention;
    const Work work = a.order.work();
    bf16 *tiles = held((bf16*)pool), *keys = tiles, *values = keys + 2 * TILE, *own_queries = values + 2 * TILE;
    u64 *keys_full = (u64*)(own_queries + TILE), *values_full = keys_full + 2, *queries_full = values_full + 2;
    u32 own = of_warp(threadIdx.x / 32) * 16, head = work.head, end = a.seq_len;
    // The longest rows of all heads first.
    u32 i0 = (gridDim.z - 1 - work.tile) * SIDE, i_end = min(i0 + SIDE, end), row = i0 + own;
    u32 key_head = head / a.heads.group(), size = a.heads.size;
    u32 key = a.heads.key(key_head) / size, value = a.heads.value(key_head) / size;
    bool leads = threadIdx.x == 0;
    auto fetch = [&](bf16* to, u64* full, u32 part, u32 row) {
        arrive_for_bytes(full, TILE * sizeof(bf16));
        copy_head(to, all.qkv, full, row, part, work.sequence);
    };
    auto next_of = [&](u32 j) {
        auto seen = [&](u32 j, u32 j_end) { return a.pattern.any(i0, i_end, j, j_end); };
        return next_tile<SIDE>(j, i_end, seen);
    };

    Documents<MASKED> documents(a.offsets, (u64)work.sequence * end, end);
    FirstKeys<MASKED> first_keys(documents, row);
    u32 j = next_of(documents.first_seen(i0) / SIDE * SIDE), next = next_of(j + SIDE);
    if (leads) {
        for (u32 b = 0; b < BARRIERS; b++) start_phases(keys_full + b, 1);
        show_phases();
        fetch(own_queries, queries_full, a.heads.query(head) / size, i0);
        fetch(keys, keys_full, key, j);
        fetch(values, values_full, value, j);
        if (next < i_end) fetch(keys + TILE, keys_full + 1, key, next);
    }
    __syncthreads();

    Matrix left(own_queries), all_keys(keys), all_values(values);
    Softmax softmax{a.scale * LOG2_E};
    float scores[8][4], sums[8][4] = {};
    u32 weights[4][4], stage = 0, phase = 0;
    wait_for_phase(queries_full, 0);
    wait_for_phase(keys_full, 0);
    begin_products();
    start_turned(scores, left, all_keys);
    wait_for_products<0>(scores);
    hide<false>(scores, a.pattern, row, j);
    first_keys.hide(scores, j);
    softmax.weigh(scores);
    round_left(weights, scores);
    while (next < i_end) {
        u32 other = stage ^ 1;
        wait_for_phase(keys_full + other, phase ^ stage);
        wait_for_phase(values_full + stage, phase);
        begin_products();
        start_turned(scores, left, all_keys.row(other * SIDE));
        start_adding(sums, weights, all_values.row(stage * SIDE));
        j = next;
        next = next_of(j + SIDE);
        // All threads are done with these keys and with the values before them.
        __syncthreads();
        if (leads) {
            fetch(values + other * TILE, values_full + other, value, j);
            if (next < i_end) fetch(keys + stage * TILE, keys_full + stage, key, next);
        }
        wait_for_products<1>(scores);
        hide<false>(scores, a.pattern, row, j);
        first_keys.hide(scores, j);
        softmax.weigh(scores);
        wait_for_products<0>(sums);
        softmax.settle(sums);
        round_left(weights, scores);
        phase ^= stage;
        stage = other;
    }
    wait_for_phase(values_full + stage, phase);
    begin_products();
    start_adding(sums, weights, all_values.row(stage * SIDE));
    wait_for_products<0>(sums);
    __syncthreads();

    finish<SIDE>(a, (Row<SIDE>*)tiles + own, sums, softmax, (u64)work.sequence * end, head, row, end,
                 [&](u32 i) { return ((u64)work.sequence * a.heads.queries + head) * end + i; });
#else
    __trap();
#endif
}

EXPORT_MANY(attention_warpgroup, AttentionTilesArgs, 128, 4, attention_by_groups<false>)
EXPORT_MANY(attention_warpgroup_documents, AttentionTilesArgs, 128, 4, attention_by_groups<true>)
