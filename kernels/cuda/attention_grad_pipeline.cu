// The keys' and values' part of the gradient of dense causal attention in long sequences, in bf16 by warpgroups (wgmma):
// 128 keys a block, of which a warpgroup has 64 in registers; queries come 64 at a time by the tensor memory accelerator, at
// the word of a warp that does nothing else. Heads of up to 64 elements.
#include "tma.cuh"
#include "warpgroup.cuh"

#ifdef WARPGROUPS

namespace {

constexpr u32 TALL = 128, STAGES = 4, GROUPS = 2, COMPUTING = 128 * GROUPS;

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

// Keys and values of the block; of each stage queries and gradients, log-sums and means; rows that a warp writes; when the
// block's own are full, and each stage is full or empty.
constexpr u32 ROOM = (2 * GROUPS + STAGES * 2) * TILE * sizeof(bf16) + 2 * STAGES * SIDE * sizeof(float) +
                     4 * GROUPS * 16 * sizeof(Row<SIDE>) + (1 + 2 * STAGES) * sizeof(u64);
static_assert(ROOM <= 227 << 10, "what a block may have");

}  // namespace

#endif

// Grid (keys, batch, tiles of 128 keys).
__device__ inline void attention_grad_keys_by_pipeline(const AttentionGradTilesArgs& all) {
#ifdef WARPGROUPS
    LAUNCH_SHARED(pool, ROOM);
    const AttentionGradArgs& a = all.grad;
    const Work work = a.order.work();
    bf16 *own_keys = held((bf16*)pool), *own_values = own_keys + GROUPS * TILE, *tiles = own_values + GROUPS * TILE;
    // By stage.
    float *log_sums = (float*)(tiles + STAGES * 2 * TILE), *means = log_sums + STAGES * SIDE;
    Row<SIDE>* all_rows = (Row<SIDE>*)(means + STAGES * SIDE);
    u64 *own_full = (u64*)(all_rows + 4 * GROUPS * 16), *full = own_full + 1, *empty = full + STAGES;
    u32 warp = of_warp(threadIdx.x / 32), lane = threadIdx.x % 32, key_head = work.head, group = a.heads.group();
    u32 size = a.heads.size, width = a.heads.width(), end = a.seq_len;
    u64 first = (u64)work.sequence * end;
    // The longest columns of all first. Of each head of the group the queries that see a key.
    u32 j0 = work.tile * TALL, row = j0 + 16 * warp, count = group * ((end - j0 + SIDE - 1) / SIDE);
    u32 key = a.heads.key(key_head), value = a.heads.value(key_head);
    auto next_stage = [](u32 stage) { return stage + 1 == STAGES ? 0 : stage + 1; };
    if (threadIdx.x == 0) {
        start_phases(own_full, 1);
        // A stage is full with its tiles and with its log-sums and means, empty when all warps are done with it.
        for (u32 s = 0; s < STAGES; s++) start_phases(full + s, 2), start_phases(empty + s, 4 * GROUPS);
        show_phases();
    }
    __syncthreads();
    if (threadIdx.x >= COMPUTING) {
        give_registers<24>();
        if (warp > 4 * GROUPS) return;
        if (lane == 0) {
            arrive_for_bytes(own_full, 2 * GROUPS * TILE * sizeof(bf16));
            for (u32 g = 0; g < GROUPS; g++) {
                copy_head(own_keys + g * TILE, all.qkv, own_full, j0 + SIDE * g, key / size, work.sequence);
                copy_head(own_values + g * TILE, all.qkv, own_full, j0 + SIDE * g, value / size, work.sequence);
            }
        }
        u32 head = key_head * group, i = j0, stage = 0, phase = 0;
        for (u32 t = 0; t < count; t++) {
            wait_for_phase(empty + stage, phase ^ 1);
            if (lane == 0) {
                bf16* to = tiles + 2 * stage * TILE;
                arrive_for_bytes(full + stage, 2 * TILE * sizeof(bf16));
                copy_head(to, all.qkv, full + stage, i, a.heads.query(head) / size, work.sequence);
                copy_head(to + TILE, all.out_grad, full + stage, i, head, work.sequence);
            }
            // Beyond the end the queries and gradients are zeros, and so is all that comes of them.
            u64 at = ((u64)work.sequence * a.heads.queries + head) * end + i;
            for (u32 r = lane; r < SIDE; r += 32) {
                log_sums[stage * SIDE + r] = i + r < end ? a.log_sum[at + r] : 0.0f;
                means[stage * SIDE + r] = i + r < end ? a.mean[at + r] : 0.0f;
            }
            arrive_by_warp(full + stage);
            i += SIDE;
            if (i >= end) i = j0, head++;
            stage = next_stage(stage);
            phase ^= stage == 0;
        }
        return;
    }

    take_registers<240>();
    wait_for_phase(own_full, 0);
    wait_for_phase(full, 0);
    Held keys(own_keys, 16 * warp), values(own_values, 16 * warp);
    Matrix matrices(tiles);
    float c = a.scale * LOG2_E, key_sums[8][4] = {}, value_sums[8][4] = {}, scores[8][4], products[8][4];
    u32 weights[4][4], gradients[4][4], stage = 0, phase = 0, now = j0;
    auto start = [&](u32 stage) {
        keys.start_turned(scores, matrices.row(2 * SIDE * stage));
        values.start_turned(products, matrices.row(2 * SIDE * stage + SIDE));
    };
    auto add = [&](u32 stage) {
        start_adding(value_sums, weights, matrices.row(2 * SIDE * stage + SIDE));
        start_adding(key_sums, gradients, matrices.row(2 * SIDE * stage));
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
    for (u32 t = 1; t < count; t++) {
        u32 next = next_stage(stage);
        phase ^= next == 0;
        wait_for_phase(full + next, phase);
        begin_products();
        start(next);
        add(stage);
        wait_for_products<3>(scores);
        weigh(next);
        wait_for_products<2>(products);
        derive_columns(products, scores, means + next * SIDE);
        wait_for_products<0>(value_sums);
        wait_for_products<0>(key_sums);
        arrive_by_warp(empty + stage);
        round_left(weights, scores);
        round_left(gradients, products);
        stage = next;
    }
    begin_products();
    add(stage);
    wait_for_products<0>(value_sums);
    wait_for_products<0>(key_sums);

    Row<SIDE>* rows = all_rows + 16 * warp;
    put_back<SIDE>(rows, key_sums, a, first + row);
    write<SIDE>(Part(a.qkv_grad, first, width, key, size), rows, row, end);
    put<SIDE>(rows, value_sums, 1, 1);
    write<SIDE>(Part(a.qkv_grad, first, width, value, size), rows, row, end);
#else
    __trap();
#endif
}

EXPORT_MANY(attention_grad_keys_pipeline, AttentionGradTilesArgs, 384, 1, attention_grad_keys_by_pipeline)
