// Attention in bf16 by warpgroups (wgmma), otherwise as attention_tensor.cu.
#include "warpgroup.cuh"

// Grid (queries, batch, query tiles). A block is one warpgroup, with 64 queries: of a multiprocessor's blocks some keep
// its tensor cores busy while others are at their softmax.
__device__ inline void attention_by_groups(const AttentionArgs& a) {
#ifdef WARPGROUPS
    LAUNCH_SHARED(pool, 5 * TILE * sizeof(bf16));
    const Work work = a.order.work();
    bf16 *tiles = held((bf16*)pool), *own_queries = tiles + 4 * TILE;
    u32 own = of_warp(threadIdx.x / 32) * 16, head = work.head, key_head = head / a.heads.group();
    u32 size = a.heads.size, width = a.heads.width(), end = a.seq_len;
    u64 first = (u64)work.sequence * end;
    // The longest rows of all first.
    u32 i0 = (gridDim.z - 1 - work.tile) * SIDE, i_end = min(i0 + SIDE, end), row = i0 + own;
    Part keys(a.qkv, first, width, a.heads.key(key_head), size);
    Part values(a.qkv, first, width, a.heads.value(key_head), size);
    auto fetch_tile = [&](u32 stage, u32 j) {
        fetch_swizzled(tiles + 2 * stage * TILE, keys, j, end);
        fetch_swizzled(tiles + (2 * stage + 1) * TILE, values, j, end);
    };
    auto seen = [&](u32 j, u32 j_end) { return a.pattern.any(i0, i_end, j, j_end); };

    u32 j = next_tile<SIDE>(0, i_end, seen), stage = 0;
    fetch_swizzled(own_queries, Part(a.qkv, first, width, a.heads.query(head), size), i0, end);
    fetch_tile(0, j);
    await_tiles();

    Matrix matrices(tiles), left(own_queries);
    float c = a.scale * LOG2_E, largest[2] = {-INFINITY, -INFINITY}, total[2] = {}, sums[8][4] = {};
    while (j < i_end) {
        Matrix tile_keys = matrices.row(2 * stage * SIDE), tile_values = tile_keys.row(SIDE);
        float scores[8][4];
        u32 weights[4][4];
        begin_products();
        start_turned(scores, left, tile_keys);
        u32 next = next_tile<SIDE>(j + SIDE, i_end, seen);
        if (next < i_end) fetch_tile(stage ^ 1, next);
        wait_for_products<0>(scores);
        hide<false>(scores, a.pattern, row, j);
        soften<SIDE>(scores, sums, largest, total, c);
        round_left(weights, scores);
        begin_products();
        start_adding(sums, weights, tile_values);
        wait_for_products<0>(sums);
        await_tiles();
        stage ^= 1;
        j = next;
    }

    finish<SIDE>(a, (Row<SIDE>*)tiles + own, sums, largest, total, first, head, row, end,
                 [&](u32 i) { return ((u64)work.sequence * a.heads.queries + head) * end + i; });
#else
    __trap();
#endif
}

EXPORT_MANY(attention_warpgroup, AttentionArgs, 128, 4, attention_by_groups)
