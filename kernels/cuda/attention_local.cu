// Attention with a short window, in bf16 by warpgroups (wgmma): of a stripe of tiles each comes once. Heads of up to 64
// elements.
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
    u32 own = threadIdx.x / 32 * 16, head = blockIdx.x, key_head = head / a.heads.group();
    Row<SIDE>* rows = (Row<SIDE>*)(all_queries + Stripe::QUERIES * TILE) + own;
    u32 size = a.heads.size, width = a.heads.width(), end = a.seq_len;
    u64 first = (u64)blockIdx.y * end;
    Part queries(a.qkv, first, width, a.heads.query(head), size);
    Part keys(a.qkv, first, width, a.heads.key(key_head), size);
    Part values(a.qkv, first, width, a.heads.value(key_head), size);
    Stripe stripe(end);
    auto fetch_keys = [&](u32 j) {
        fetch_swizzled(all_keys + j % Stripe::KEYS * TILE, keys, SIDE * j, end);
        fetch_swizzled(all_values + j % Stripe::KEYS * TILE, values, SIDE * j, end);
    };
    auto fetch_tiles = [&](u32 i) {
        fetch_swizzled(all_queries + i % Stripe::QUERIES * TILE, queries, SIDE * i, end);
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
        float largest[2] = {-INFINITY, -INFINITY}, total[2] = {}, sums[8][4] = {};
        u32 row = SIDE * i + own;
#pragma unroll 1
        for (u32 j = i - min(i, 1); j <= i; j++) {
            float scores[8][4];
            u32 weights[4][4];
            begin_products();
            start_turned(scores, left, Matrix(all_keys + j % Stripe::KEYS * TILE));
            wait_for_products<0>(scores);
            hide<false>(scores, a.pattern, row, SIDE * j);
            soften<SIDE>(scores, sums, largest, total, c);
            round_left(weights, scores);
            begin_products();
            start_adding(sums, weights, Matrix(all_values + j % Stripe::KEYS * TILE));
            wait_for_products<0>(sums);
        }
        finish<SIDE>(a, rows, sums, largest, total, first, head, row, end,
                     [&](u32 i) { return ((u64)blockIdx.y * a.heads.queries + head) * end + i; });
    }
#else
    __trap();
#endif
}

EXPORT_MANY(attention_local, AttentionArgs, 128, 3, attention_by_stripes)
