// Attention with a window of one block, in bf16 by warpgroups (wgmma): each tile of a stripe is read once.
#include "../stripe.cuh"

#ifdef WARPGROUPS

namespace {

// Keys and values, queries, and the rows that a warp writes.
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
#pragma unroll 1
    for (u32 i = stripe.first; i < stripe.last; i++) {
        await_tiles();
        if (i + 1 < stripe.last) fetch_tiles(i + 1);
        Matrix left(all_queries + i % Stripe::QUERIES * TILE);
        u32 row = SIDE * i + own, stages[2] = {(i + Stripe::KEYS - 1) % Stripe::KEYS, i % Stripe::KEYS};
        Matrix keys[2] = {Matrix(all_keys + stages[0] * TILE), Matrix(all_keys + stages[1] * TILE)};
        Matrix values[2] = {Matrix(all_values + stages[0] * TILE), Matrix(all_values + stages[1] * TILE)};
        if (i > 0) attend<2>(a, left, keys, values, rows, outs, log_sum, row);
        else attend<1>(a, left, {keys[1]}, {values[1]}, rows, outs, log_sum, row);
    }
#else
    __trap();
#endif
}

EXPORT_MANY(attention_local, AttentionArgs, 128, 3, attention_by_stripes)
