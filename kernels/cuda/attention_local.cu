// Attention with a window of one block, in bf16 by warpgroups (wgmma): of a stripe of tiles each comes once.
#include "stripe.cuh"

#ifdef WARPGROUPS

namespace {

// Keys and values, queries, and rows that a warp writes.
constexpr u32 ROOM = (2 * Stripe::KEYS + Stripe::QUERIES) * TILE * sizeof(bf16) + SIDE * sizeof(Row<SIDE>);
static_assert(3 * (ROOM + 1024) <= 228 << 10, "three blocks a multiprocessor");

}  // namespace

#endif

// Grid (queries, batch, stripes). A block is one warpgroup.
__device__ inline void attention_by_stripes(const AttentionArgs& a) {
#ifdef WARPGROUPS
    LAUNCH_SHARED(pool, ROOM);
    bf16 *all_keys = (bf16*)pool, *all_values = all_keys + Stripe::KEYS * TILE;
    bf16* all_queries = all_values + Stripe::KEYS * TILE;
    u32 lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16, head = blockIdx.x, key_head = head / a.heads.group();
    Row<SIDE>* rows = (Row<SIDE>*)(all_queries + Stripe::QUERIES * TILE) + own;
    u32 width = a.heads.width(), end = a.seq_len;
    u64 first = (u64)blockIdx.y * end;
    HeadRows queries(a.qkv, first, width, a.heads.query(head), end), keys(a.qkv, first, width, a.heads.key(key_head), end);
    HeadRows values(a.qkv, first, width, a.heads.value(key_head), end);
    HeadRows outs(a.out, first, a.heads.queries * SIDE, head * SIDE, end);
    float* log_sum = a.log_sum + ((u64)blockIdx.y * a.heads.queries + head) * end;
    Stripe stripe(end);
    auto fetch_keys = [&](u32 j) {
        u32 stage = j % Stripe::KEYS;
        keys.fetch(all_keys + stage * TILE, j);
        values.fetch(all_values + stage * TILE, j);
    };
    auto fetch_tiles = [&](u32 i) {
        queries.fetch(all_queries + i % Stripe::QUERIES * TILE, i);
        fetch_keys(i);
    };

    if (stripe.first > 0) fetch_keys(stripe.first - 1);
    fetch_tiles(stripe.first);
    float c = a.scale * LOG2_E;
#pragma unroll 1
    for (u32 i = stripe.first; i < stripe.last; i++) {
        await_tiles();
        if (i + 1 < stripe.last) fetch_tiles(i + 1);
        Matrix left(all_queries + i % Stripe::QUERIES * TILE);
        // The first tile has none before it: it takes that place itself, all hidden.
        u32 row = SIDE * i + own, stages[2] = {(i - min(i, 1)) % Stripe::KEYS, i % Stripe::KEYS};
        float scores[2][8][4], largest[2], total[2] = {};
        begin_products();
        start_turned(scores[0], left, Matrix(all_keys + stages[0] * TILE));
        start_turned(scores[1], left, Matrix(all_keys + stages[1] * TILE));
        wait_for_products<1>(scores[0]);
        if (i == 0) fill(scores[0], -INFINITY);
        wait_for_products<0>(scores[1]);
        hide_later<false>(scores[1], own);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float of_first = largest_of(scores[0], h, -INFINITY);
            largest[h] = largest_of_row(largest_of(scores[1], h, of_first));
        }
        float sums[8][4] = {};
        // The second half's weights are made while the first half's product runs.
#pragma unroll
        for (u32 t = 0; t < 2; t++) {
            u32 weights[4][4];
            make_weights(scores[t], largest, total, c);
            round_left(weights, scores[t]);
            begin_products();
            start_adding(sums, weights, Matrix(all_values + stages[t] * TILE));
        }
        wait_for_products<0>(sums);
        float inverse[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            total[h] += __shfl_xor_sync(FULL_WARP, total[h], 1);
            total[h] += __shfl_xor_sync(FULL_WARP, total[h], 2);
            inverse[h] = reciprocal(total[h]);
            u32 r = row + lane / 4 + 8 * h;
            if (lane % 4 == 0 && r < end) log_sum[r] = largest[h] * a.scale + logf(total[h]);
        }
        put<SIDE>(rows, sums, inverse[0], inverse[1]);
        outs.write(rows, row);
    }
#else
    __trap();
#endif
}

EXPORT_MANY(attention_local, AttentionArgs, 128, 3, attention_by_stripes)
