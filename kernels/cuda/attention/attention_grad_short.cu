// The gradient of dense causal attention in sequences of up to 128 tokens, in bf16 by warpgroups (wgmma) with another
// warpgroup that fetches for them: a sequence's keys and values stay on the chip, and the queries, gradients and
// outputs of each of their heads are read once. Heads of up to 64 elements. Where few heads of queries share keys, a
// block processes one sequence's head after the other, and the next one's tiles arrive meanwhile.
//
// Each of a head's three pairs of tiles is processed once, by the warpgroup that has its keys. That warpgroup writes
// the scores' gradients to shared memory, from which the second warpgroup, which has one pair instead of two, computes
// the queries' gradients. With a single head each warpgroup computes those of its own tile, since there is no next head
// that the first one could begin with.
//
//              queries 0   queries 1
//   keys 0     first       first        keys' and values' gradients: along a row, in registers
//   keys 1                 second       queries' gradients: down a column, by the second
#include "../pipeline.cuh"

#ifdef WARPGROUPS

namespace {

constexpr u32 TALL = 128, BOTH = 2 * TILE;

// Keys and values, of this many heads; for each stage queries, gradients and outputs, and log-sums; the scores'
// gradients of three pairs; for each warpgroup the means of two heads; the rows that a warp writes; and, with room for
// several heads, for each warpgroup the column sums of its queries, keys and values.
template <u32 STAGES, u32 HEADS>
constexpr u32 ROOM = (HEADS * 2 + STAGES * 3) * BOTH * sizeof(bf16) + 3 * TILE * sizeof(bf16) +
                     (STAGES + 4) * TALL * sizeof(float) + 8 * 16 * sizeof(Row<SIDE>) +
                     (HEADS > 1 ? 2 * 3 * sizeof(ColumnSums) : 0);

}  // namespace

#endif

// A block takes every gridDim.x-th of all heads of keys of all sequences; with room for only one head's keys, it takes
// one.
template <u32 STAGES, u32 HEADS>
__device__ inline void attention_grad_of_short(const AttentionGradArgs& a) {
#ifdef WARPGROUPS
    using Blocks = Pipeline<2, STAGES>;
    // Barriers after the pipeline's: one of a warpgroup by itself; one for when the first warpgroup has written the
    // scores' gradients of a tile of queries, and one for when the second is done with them.
    constexpr u32 OWN = 1 + STAGES * 3, LEFT = OWN + 2, DONE = LEFT + 2;
    static_assert(DONE + 2 <= 16, "the barriers of a block");
    constexpr u32 BYTES = ROOM<STAGES, HEADS>;
    static_assert(BYTES <= 227 << 10, "what a block may have");
    LAUNCH_SHARED(shared, BYTES);
    unsigned char* pool = held(shared);
    bf16 *all_own = (bf16*)pool, *stages = all_own + HEADS * 2 * BOTH, *score_grads = stages + STAGES * 3 * BOTH;
    // For each stage; then for each warpgroup.
    float *log_sums = (float*)(score_grads + 3 * TILE), *all_means = log_sums + STAGES * TALL;
    u32 group = a.heads.group(), size = a.heads.size, width = a.heads.width();
    u32 out_width = a.heads.queries * size, end = a.seq_len, all = a.heads.keys * (a.rows / end);
    // The index of the block's `n`th head of keys.
    auto number = [&](u32 n) { return blockIdx.x + n * gridDim.x; };
    Blocks blocks{(all - blockIdx.x + gridDim.x - 1) / gridDim.x * group};
    if (blocks.fetches()) {
        static_assert(Blocks::FETCHING == TALL, "a thread a row");
        return blocks.fetch_all([&](u32 stage, u32 t) {
            u32 n = t / group, key_head = number(n) % a.heads.keys, sequence = number(n) / a.heads.keys;
            u64 first = (u64)sequence * end;
            if (t % group == 0) {
                bf16* own = all_own + n % HEADS * 2 * BOTH;
                fetch_swizzled<TALL>(own, Part(a.qkv, first, width, a.heads.key(key_head), size), 0, end);
                fetch_swizzled<TALL>(own + BOTH, Part(a.qkv, first, width, a.heads.value(key_head), size), 0, end);
            }
            u32 head = key_head * group + t % group, r = threadIdx.x % TALL;
            bf16* to = stages + stage * 3 * BOTH;
            fetch_swizzled<TALL>(to, Part(a.qkv, first, width, a.heads.query(head), size), 0, end);
            fetch_swizzled<TALL>(to + BOTH, Part(a.out_grad, first, out_width, head * size, size), 0, end);
            fetch_swizzled<TALL>(to + 2 * BOTH, Part(a.out, first, out_width, head * size, size), 0, end);
            // After the end, queries and gradients are zeros, so they contribute nothing.
            u64 at = ((u64)sequence * a.heads.queries + head) * end + min(r, end - 1);
            copy_word(&log_sums[stage * TALL + r], a.log_sum + at, r < end);
        });
    }

    blocks.start();
    u32 lane = threadIdx.x % 32, warp = of_warp(threadIdx.x / 32), own = warp / 4, row = 16 * warp, quarter = warp % 4 * 16;
    Row<SIDE>* rows = (Row<SIDE>*)(all_means + 4 * TALL) + 16 * warp;
    // The column sums of its queries, keys and values.
    bool summing = HEADS > 1 && a.sums;
    ColumnSums* sums = (ColumnSums*)((Row<SIDE>*)(all_means + 4 * TALL) + 2 * SIDE) + 3 * own;
    if (summing)
        for (u32 part = 0; part < 3; part++) sums[part].clear();
    float c = a.scale * LOG2_E;
    // The tiles of queries whose gradients this warpgroup computes.
    u32 begin = group > 1 ? 0 : own, made_end = group > 1 ? 2 * own : own + 1, stage = 0, done = 0;
#pragma unroll 1
    for (u32 n = 0; done < blocks.tiles; n++) {
        u32 key_head = number(n) % a.heads.keys;
        u64 first = (u64)(number(n) / a.heads.keys) * end;
        const bf16* keys = all_own + n % HEADS * 2 * BOTH;
        Matrix all_keys(keys), all_values(keys + BOTH);
        float key_sums[8][4] = {}, value_sums[8][4] = {}, scores[8][4], products[8][4];
        u32 weights[4][4], gradients[4][4];
        TurnBack<SIDE> angles;
        auto ask = [&](u32 i) {
            if (TurnBack<SIDE>::paired(a)) angles.ask(a, first + i * SIDE + quarter);
        };
        for (u32 t = 0; t < group; t++, done++, stage = Blocks::next(stage)) {
            u32 head = key_head * group + t;
            const bf16* queries = stages + stage * 3 * BOTH;
            const float* row_sums = log_sums + stage * TALL;
            // Alternating buffers: some warps may still read the last head's.
            float* means = all_means + (2 * own + done % 2) * TALL;
            Matrix all_queries(queries), all_grads(queries + BOTH);
            blocks.await(stage);
            // For the queries from this warpgroup's tile on: the first warpgroup processes both tiles.
            for (u32 i = own; i < 2; i++)
#pragma unroll
                for (u32 h = 0; h < 2; h++) {
                    u32 r = i * SIDE + quarter + lane / 4 + 8 * h;
                    float mean = row_dot(queries + BOTH, queries + 2 * BOTH, r);
                    if (lane % 4 == 0) means[r] = mean;
                }
            wait_at(OWN + own, 128);

#pragma unroll 1
            for (u32 i = own; i < 2; i++) {
                begin_products();
                start_turned(scores, all_keys.row(own * SIDE), all_queries.row(i * SIDE));
                start_turned(products, all_values.row(own * SIDE), all_grads.row(i * SIDE));
                wait_for_products<1>(scores);
                hide<true>(scores, a.pattern, row, i * SIDE);
                weigh_columns(scores, c, row_sums + i * SIDE);
                wait_for_products<0>(products);
                derive_columns(products, scores, means + i * SIDE);
                round_left(weights, scores);
                round_left(gradients, products);
                // Whether the second warpgroup reads this tile: it must be done with the last head's.
                bool shown = own == 0 && (group > 1 || i == 1);
                if (shown && done > 0) wait_at(DONE + i, 256);
                put_left(score_grads + (own + i) * TILE, gradients, quarter);
                show_to_products();
                if (shown) arrive_at(LEFT + i, 256);
                begin_products();
                start_adding(value_sums, weights, all_grads.row(i * SIDE));
                start_adding(key_sums, gradients, all_queries.row(i * SIDE));
                ask(begin);
                wait_for_products<0>(value_sums);
                wait_for_products<0>(key_sums);
            }
            // The stage of a group's last head is released later, together with the keys.
            if (t + 1 < group) blocks.release(stage, done);
#pragma unroll 1
            for (u32 i = begin; i < made_end; i++) {
                // After the first of these barriers, the gradients of the own warps are visible too.
                if (own == 0) wait_at(OWN, 128);
                else wait_at(LEFT + i, 256);
                // Separate from the scores' registers: rotating those back would keep all multiplications from
                // overlapping.
                float made[8][4];
#pragma unroll 1
                for (u32 j = 0; j <= i; j++) {
                    begin_products();
                    start_adding_turned(made, Matrix(score_grads + (i + j) * TILE), all_keys.row(j * SIDE), j > 0);
                    wait_for_products<0>(made);
                }
                if (own == 1 && done + 1 < blocks.tiles) arrive_at(DONE + i, 256);
                if (t + 1 == group && i + 1 == made_end) blocks.release(stage, done);
                put_back<SIDE, true>(rows, made, a, first + i * SIDE + quarter, angles);
                if (i + 1 < made_end) ask(i + 1);
                write<SIDE>(Part(a.qkv_grad, first, width, a.heads.query(head), size), rows, i * SIDE + quarter, end);
                if (summing) sums[0].add(rows);
            }
            // With several heads the first warpgroup computes no queries' gradients.
            if (t + 1 == group && begin == made_end) blocks.release(stage, done);
        }

        // Of the same rows as the last queries, so with the same angles.
        put_back<SIDE, true>(rows, key_sums, a, first + row, angles);
        write<SIDE>(Part(a.qkv_grad, first, width, a.heads.key(key_head), size), rows, row, end);
        if (summing) sums[1].add(rows);
        put<SIDE>(rows, value_sums, 1, 1);
        write<SIDE>(Part(a.qkv_grad, first, width, a.heads.value(key_head), size), rows, row, end);
        if (summing) sums[2].add(rows);
    }
    if (!summing) return;
    wait_at(OWN + own, 128);
    u32 head = blockIdx.x % a.heads.keys;
    float* to = a.sums + (u64)(blockIdx.x / a.heads.keys * 2 + own) * width;
    sums[0].put(to + a.heads.query(head), size);
    sums[1].put(to + a.heads.key(head), size);
    sums[2].put(to + a.heads.value(head), size);
#else
    __trap();
#endif
}

EXPORT_MANY(attention_grad_short, AttentionGradArgs, 384, 1, attention_grad_of_short<3, 1>)
EXPORT_MANY(attention_grad_short_stream, AttentionGradArgs, 384, 1, attention_grad_of_short<2, 2>)
