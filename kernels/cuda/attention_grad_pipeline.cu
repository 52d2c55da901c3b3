// The keys' and values' part of the gradient of dense causal attention in long sequences, in bf16 by warpgroups (wgmma)
// with one that fetches for them: 128 keys a block, of which a warpgroup that computes has 64 in registers; queries come
// 64 at a time. Heads of up to 64 elements.
#include "pipeline.cuh"

#ifdef WARPGROUPS

namespace {

constexpr u32 TALL = 128, STAGES = 4;
using Blocks = Pipeline<2, STAGES>;

// Rows of a warpgroup as left factors.
struct Held {
    u32 pairs[4][4];

    // Of a tile, a warp's 16 rows from `row` on.
    __device__ Held(const bf16* tile, u32 row) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 k = 0; k < 4; k++) load_matrices(pairs[k], piece_at(tile, row + lane % 16, 2 * k + lane / 16));
    }

    // Starts sums = these rows times the transposed rows of a tile.
    __device__ void start_turned(float (&sums)[8][4], Matrix tile) const {
#pragma unroll
        for (u32 k = 0; k < 4; k++) multiply_group_by_rows(sums, pairs[k], tile, 16 * k, k > 0);
        end_products();
    }
};

// Keys and values of the block; of each stage queries and gradients, log-sums and means; rows that a warp writes.
constexpr u32 ROOM =
    (2 * 2 + STAGES * 2) * TILE * sizeof(bf16) + 2 * STAGES * SIDE * sizeof(float) + 8 * 16 * sizeof(Row<SIDE>);
static_assert(ROOM <= 227 << 10, "what a block may have");

}  // namespace

#endif

// Grid (keys, batch, tiles of 128 keys).
__device__ inline void attention_grad_keys_by_pipeline(const AttentionGradArgs& a) {
#ifdef WARPGROUPS
    LAUNCH_SHARED(pool, ROOM);
    const Work work = a.order.work();
    bf16 *own_keys = held((bf16*)pool), *own_values = own_keys + 2 * TILE, *tiles = own_values + 2 * TILE;
    // By stage.
    float *log_sums = (float*)(tiles + STAGES * 2 * TILE), *means = log_sums + STAGES * SIDE;
    u32 warp = of_warp(threadIdx.x / 32), key_head = work.head, group = a.heads.group();
    u32 size = a.heads.size, width = a.heads.width(), out_width = a.heads.queries * size, end = a.seq_len;
    u64 first = (u64)work.sequence * end;
    // The longest columns of all first. Of each head of the group the queries that see a key.
    u32 j0 = work.tile * TALL, row = j0 + 16 * warp, each = (end - j0 + SIDE - 1) / SIDE;
    u32 key = a.heads.key(key_head), value = a.heads.value(key_head);
    Blocks blocks{group * each};
    if (blocks.fetches()) {
        Part queries(a.qkv, first, width, a.heads.query(0), size), grads(a.out_grad, first, out_width, 0, size);
        queries.whole &= a.heads.query_stride % 8 == 0;
        fetch_swizzled<TALL>(own_keys, Part(a.qkv, first, width, key, size), j0, end);
        fetch_swizzled<TALL>(own_values, Part(a.qkv, first, width, value, size), j0, end);
        u32 head = key_head * group, i = j0;
        return blocks.fetch_all([&](u32 stage, u32) {
            Part head_queries = queries, head_grads = grads;
            head_queries.first += head * a.heads.query_stride;
            head_grads.first += head * size;
            fetch_swizzled(tiles + 2 * stage * TILE, head_queries, i, end);
            fetch_swizzled(tiles + (2 * stage + 1) * TILE, head_grads, i, end);
            // Beyond the end the queries and gradients are zeros, and so is all that comes of them.
            u32 r = threadIdx.x % SIDE;
            u64 at = ((u64)work.sequence * a.heads.queries + head) * end + min(i + r, end - 1);
            if (threadIdx.x % 128 < SIDE) copy_word(&log_sums[stage * SIDE + r], a.log_sum + at, i + r < end);
            else copy_word(&means[stage * SIDE + r], a.mean + at, i + r < end);
            i += SIDE;
            if (i >= end) i = j0, head++;
        });
    }

    blocks.start();
    blocks.await(0);
    Held keys(own_keys, 16 * warp), values(own_values, 16 * warp);
    Matrix all(tiles);
    float c = a.scale * LOG2_E, key_sums[8][4] = {}, value_sums[8][4] = {}, scores[8][4], products[8][4];
    u32 weights[4][4], gradients[4][4], stage = 0, now = j0;
    auto start = [&](u32 stage) {
        keys.start_turned(scores, all.row(2 * SIDE * stage));
        values.start_turned(products, all.row(2 * SIDE * stage + SIDE));
    };
    auto add = [&](u32 stage) {
        start_adding(value_sums, weights, all.row(2 * SIDE * stage + SIDE));
        start_adding(key_sums, gradients, all.row(2 * SIDE * stage));
    };
    auto weigh = [&](u32 stage) {
        hide<true>(scores, a.pattern, row, now);
        now = now + SIDE < end ? now + SIDE : j0;
        weigh_columns(scores, c, log_sums + stage * SIDE);
    };
    begin_products();
    start(0);
    wait_for_products<1>(scores);
    weigh(0);
    wait_for_products<0>(products);
    derive_columns(products, scores, means);
    round_left(weights, scores);
    round_left(gradients, products);
#pragma unroll 1
    for (u32 t = 1; t < blocks.tiles; t++) {
        u32 next = Blocks::next(stage);
        blocks.await(next);
        start(next);
        add(stage);
        wait_for_products<3>(scores);
        weigh(next);
        wait_for_products<2>(products);
        derive_columns(products, scores, means + next * SIDE);
        wait_for_products<0>(value_sums);
        wait_for_products<0>(key_sums);
        blocks.release(stage, t - 1);
        round_left(weights, scores);
        round_left(gradients, products);
        stage = next;
    }
    begin_products();
    add(stage);
    wait_for_products<0>(value_sums);
    wait_for_products<0>(key_sums);

    Row<SIDE>* rows = (Row<SIDE>*)(means + STAGES * SIDE) + 16 * warp;
    put_back<SIDE>(rows, key_sums, a, first + row);
    write<SIDE>(Part(a.qkv_grad, first, width, key, size), rows, row, end);
    put<SIDE>(rows, value_sums, 1, 1);
    write<SIDE>(Part(a.qkv_grad, first, width, value, size), rows, row, end);
#else
    __trap();
#endif
}

EXPORT_MANY(attention_grad_keys_pipeline, AttentionGradArgs, 384, 1, attention_grad_keys_by_pipeline)
