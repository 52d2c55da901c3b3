// The gradient of attention with a window of one block, in bf16 by warpgroups (wgmma): each tile of a stripe is read
// once and written once. Each head of keys has one head of queries.
#include "../stripe.cuh"

#ifdef WARPGROUPS

namespace {

// Keys and values; queries and the gradients of outputs; outputs; the scores' gradients; the rows that a warp writes;
// log-sums and means.
constexpr u32 ROOM = (2 * Stripe::KEYS + 2 * Stripe::QUERIES + 2) * TILE * sizeof(bf16) + SIDE * sizeof(Row<SIDE>) +
                     (Stripe::QUERIES + 1) * SIDE * sizeof(float);
static_assert(2 * (ROOM + 1024) <= 228 << 10, "two blocks a multiprocessor");

}  // namespace

#endif

// Grid (heads, batch, stripes). The queries of tile i are processed with the keys of tile i - 1, then with those of
// tile i, whose sums stay in registers until the queries of tile i + 1 have been processed with them.
__device__ inline void attention_grad_by_stripes(const AttentionGradArgs& a) {
#ifdef WARPGROUPS
    LAUNCH_SHARED(pool, ROOM);
    bf16 *all_keys = (bf16*)pool, *all_values = all_keys + Stripe::KEYS * TILE;
    bf16 *all_queries = all_values + Stripe::KEYS * TILE, *all_grads = all_queries + Stripe::QUERIES * TILE;
    bf16 *outs = all_grads + Stripe::QUERIES * TILE, *score_grads = outs + TILE;
    u32 lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16, head = blockIdx.x;
    Row<SIDE>*all_rows = (Row<SIDE>*)(score_grads + TILE), *rows = all_rows + own;
    float *all_log_sums = (float*)(all_rows + SIDE), *means = all_log_sums + Stripe::QUERIES * SIDE;
    u32 width = a.heads.width(), out_width = a.heads.queries * SIDE, end = a.seq_len;
    u32 query = a.heads.query(head), key = a.heads.key(head), value = a.heads.value(head);
    u64 first = (u64)blockIdx.y * end;
    const float* log_sum = a.log_sum + ((u64)blockIdx.y * a.heads.queries + head) * end;
    auto of_qkv = [&](u32 column) { return HeadRows(a.qkv, first, width, column, end); };
    auto of_out = [&](const void* all) { return HeadRows(all, first, out_width, head * SIDE, end); };
    auto of_qkv_grad = [&](u32 column) { return HeadRows(a.qkv_grad, first, width, column, end); };
    Stripe stripe(end);

    auto fetch_keys = [&](u32 j) {
        u32 stage = j % Stripe::KEYS;
        of_qkv(key).fetch(all_keys + stage * TILE, j);
        of_qkv(value).fetch(all_values + stage * TILE, j);
    };
    auto fetch_queries = [&](u32 i) {
        u32 stage = i % Stripe::QUERIES, r = SIDE * i + threadIdx.x;
        of_qkv(query).fetch(all_queries + stage * TILE, i);
        of_out(a.out_grad).fetch(all_grads + stage * TILE, i);
        of_out(a.out).fetch(outs, i);
        // After the end, queries and gradients are zeros, so they contribute nothing.
        if (threadIdx.x < SIDE) copy_word(&all_log_sums[stage * SIDE + threadIdx.x], log_sum + min(r, end - 1), r < end);
    };

    float c = a.scale * LOG2_E, query_sums[8][4], key_sums[8][4] = {}, value_sums[8][4] = {};
    auto angles_of = [&](u32 tile) {
        TurnBack<SIDE> angles;
        angles.ask(a, SIDE * tile + own);
        return angles;
    };
    // Adds the contributions of the queries of tile i and the keys of tile j to the sums; returns the angles of tile j,
    // whose queries' or keys' sums are then complete.
    auto add_pair = [&](u32 i, u32 j) {
        u32 stage = i % Stripe::QUERIES;
        Matrix queries(all_queries + stage * TILE), grads(all_grads + stage * TILE);
        Matrix keys(all_keys + j % Stripe::KEYS * TILE), values(all_values + j % Stripe::KEYS * TILE);
        float scores[8][4], products[8][4];
        u32 weights[4][4], gradients[4][4];
        begin_products();
        start_turned(scores, keys, queries);
        start_turned(products, values, grads);
        wait_for_products<1>(scores);
        if (i == j) hide_later<true>(scores, own);
        weigh_columns(scores, c, all_log_sums + stage * SIDE);
        wait_for_products<0>(products);
        derive_columns(products, scores, means);
        round_left(weights, scores);
        round_left(gradients, products);
        // All warps are done with the scores' gradients of the last pair.
        __syncthreads();
        put_left(score_grads, gradients, own);
        show_to_products();
        __syncthreads();
        begin_products();
        start_adding(value_sums, weights, grads);
        start_adding(key_sums, gradients, queries);
        start_adding_turned(query_sums, Matrix(score_grads), keys);
        TurnBack<SIDE> angles = angles_of(j);
        wait_for_products<0>(query_sums);
        wait_for_products<0>(key_sums);
        wait_for_products<0>(value_sums);
        return angles;
    };
    auto write_keys = [&](u32 j, const TurnBack<SIDE>& angles) {
        u32 row = SIDE * j + own;
        angles.turn(key_sums, a);
        put<SIDE>(rows, key_sums, a.scale, a.scale);
        of_qkv_grad(key).write(rows, row);
        put<SIDE>(rows, value_sums, 1, 1);
        of_qkv_grad(value).write(rows, row);
    };

    // The queries after the stripe contribute to the keys of its last tile.
    u32 steps_end = min(stripe.last + 1, stripe.tiles);
    if (stripe.first > 0) fetch_keys(stripe.first - 1);
    fetch_keys(stripe.first);
    fetch_queries(stripe.first);
#pragma unroll 1
    for (u32 i = stripe.first; i < steps_end; i++) {
        await_tiles();
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            u32 r = own + lane / 4 + 8 * h;
            float mean = row_dot(all_grads + i % Stripe::QUERIES * TILE, outs, r);
            if (lane % 4 == 0) means[r] = mean;
        }
        __syncthreads();
        if (i + 1 < stripe.last) fetch_keys(i + 1);
        if (i + 1 < steps_end) fetch_queries(i + 1);

        fill(query_sums, 0);
#pragma unroll 1
        for (u32 j = i - min(i, 1); j <= i && j < stripe.last; j++) {
            TurnBack<SIDE> angles = add_pair(i, j);
            if (j == i) {
                angles.turn(query_sums, a);
                put<SIDE>(rows, query_sums, a.scale, a.scale);
                of_qkv_grad(query).write(rows, SIDE * i + own);
                break;
            }
            // The keys before the stripe belong to another block.
            if (i > stripe.first) write_keys(j, angles);
            fill(key_sums, 0);
            fill(value_sums, 0);
        }
    }
    if (stripe.last == stripe.tiles) write_keys(stripe.last - 1, angles_of(stripe.last - 1));
#else
    __trap();
#endif
}

EXPORT_MANY(attention_grad_local, AttentionGradArgs, 128, 2, attention_grad_by_stripes)
