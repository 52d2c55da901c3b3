// The keys' and values' part of the gradient of dense causal attention in long sequences, in bf16 by warpgroups
// (wgmma): a block has 128 keys, 64 of them in the registers of each warpgroup; queries come 64 at a time by the tensor
// memory accelerator, on the command of a warp that does nothing else. Heads of up to 64 elements.
#include "../tma.cuh"
#include "../warpgroup.cuh"

#ifdef WARPGROUPS

namespace {

constexpr u32 TALL = 128, STAGES = 4, GROUPS = 2, COMPUTING = 128 * GROUPS;

// Rows of a warpgroup as left factors.
struct Held {
    u32 pairs[4][4];

    // Loads a warp's 16 rows of a tile, from `row` on.
    __device__ Held(const bf16* tile, u32 row) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 k = 0; k < 4; k++) load_matrices(pairs[k], piece_at(tile, row + lane % 16, 2 * k + lane / 16));
    }

    // Starts sums = these rows times the transposed rows of a tile, or sums += that.
    __device__ void start_turned(float (&sums)[8][4], Matrix tile, bool add) const {
#pragma unroll
        for (u32 k = 0; k < 4; k++) multiply_group_by_rows(sums, pairs[k], tile, 16 * k, add || k > 0);
        end_products();
    }
};

// Keys and values of an item of work; for each stage queries, gradients of outputs, log-sums, means and offsets; the
// rows that a warp writes; the column sums of a warpgroup's keys and values; barriers for the item's own tiles and for
// full and empty stages; the number of the next item.
constexpr u32 ROOM = (2 * GROUPS + STAGES * 2) * TILE * sizeof(bf16) + 3 * STAGES * SIDE * sizeof(float) +
                     4 * GROUPS * 16 * sizeof(Row<SIDE>) + 2 * GROUPS * sizeof(ColumnSums) + (3 + 2 * STAGES) * sizeof(u64);
static_assert(ROOM <= 227 << 10, "what a block may have");

}  // namespace

#endif

// One block on each multiprocessor takes one item of work after the other: a head of keys, a sequence and 128 of its
// keys. While one warpgroup writes its results, the other computes, and tiles of the next item arrive.
template <bool MASKED>
__device__ inline void attention_grad_keys_by_pipeline(const AttentionGradTilesArgs& all) {
#ifdef WARPGROUPS
    LAUNCH_SHARED(pool, ROOM);
    const AttentionGradArgs& a = all.grad;
    bf16 *own_keys = held((bf16*)pool), *own_values = own_keys + GROUPS * TILE, *tiles = own_values + GROUPS * TILE;
    // For each stage: log-sums to base 2, and minus the means.
    float *log_sums = (float*)(tiles + STAGES * 2 * TILE), *minus_means = log_sums + STAGES * SIDE;
    u32* offsets = (u32*)(minus_means + STAGES * SIDE);
    Row<SIDE>* all_rows = (Row<SIDE>*)(offsets + STAGES * SIDE);
    ColumnSums* columns = (ColumnSums*)(all_rows + 4 * GROUPS * 16);
    u64 *own_full = (u64*)(columns + 2 * GROUPS), *own_empty = own_full + 1, *full = own_empty + 1, *empty = full + STAGES;
    u32* next_work = (u32*)(empty + STAGES);
    u32 warp = of_warp(threadIdx.x / 32), lane = threadIdx.x % 32, group = a.heads.group();
    u32 size = a.heads.size, width = a.heads.width(), end = a.seq_len, batch = a.rows / end;
    u32 tall_tiles = (end + TALL - 1) / TALL, works = a.heads.keys * batch * tall_tiles;
    auto work_of = [&](u32 number) { return a.order.after(number, a.heads.keys, batch, tall_tiles); };
    auto documents_of = [&](const Work& work) { return Documents<MASKED>(a.offsets, (u64)work.sequence * end, end); };
    // The end of the tiles of queries that see keys from `j0` on. The longest columns of a sequence come first.
    auto last_of = [&](const Work& work, u32 j0) {
        if (!MASKED) return end;
        Documents<MASKED> documents = documents_of(work);
        return next_tile<SIDE>(j0, end, [&](u32 i, u32) { return !documents.reach(i, min(j0 + TALL, end)); });
    };
    // The number of these tiles, over all heads of the group.
    auto tiles_of = [&](u32 j0, u32 last) { return group * ((last - j0 + SIDE - 1) / SIDE); };
    auto next_stage = [](u32 stage) { return stage + 1 == STAGES ? 0 : stage + 1; };
    if (threadIdx.x == 0) {
        start_phases(own_full, 1), start_phases(own_empty, 4 * GROUPS);
        // A stage is full when its tiles, log-sums and means have arrived, empty when both warpgroups are done with it.
        for (u32 s = 0; s < STAGES; s++) start_phases(full + s, 2), start_phases(empty + s, 4 * GROUPS);
        show_phases();
    }
    __syncthreads();
    if (threadIdx.x >= COMPUTING) {
        give_registers<24>();
        if (warp > 4 * GROUPS) return;
        u32 stage = 0, phase = 0;
        for (u32 turn = 0;; turn ^= 1) {
            wait_for_phase(own_empty, turn ^ 1);
            if (lane == 0) *next_work = atomicAdd(a.taken, 1);
            __syncwarp();
            u32 number = of_warp(*next_work);
            if (number >= works) {
                if (lane == 0) arrive_for_bytes(own_full, 0);
                return;
            }
            const Work work = work_of(number);
            u32 j0 = work.tile * TALL, key = a.heads.key(work.head) / size, value = a.heads.value(work.head) / size;
            if (lane == 0) {
                arrive_for_bytes(own_full, 2 * GROUPS * TILE * sizeof(bf16));
                for (u32 g = 0; g < GROUPS; g++) {
                    copy_head(own_keys + g * TILE, all.qkv, own_full, j0 + SIDE * g, key, work.sequence);
                    copy_head(own_values + g * TILE, all.qkv, own_full, j0 + SIDE * g, value, work.sequence);
                }
            }
            u32 last = last_of(work, j0), head = work.head * group, i = j0, count = tiles_of(j0, last);
            for (u32 t = 0; t < count; t++) {
                wait_for_phase(empty + stage, phase ^ 1);
                if (lane == 0) {
                    bf16* to = tiles + 2 * stage * TILE;
                    arrive_for_bytes(full + stage, 2 * TILE * sizeof(bf16));
                    copy_head(to, all.qkv, full + stage, i, a.heads.query(head) / size, work.sequence);
                    copy_head(to + TILE, all.out_grad, full + stage, i, head, work.sequence);
                }
                // In the form that the computing warpgroups need. After the end, queries and gradients are zeros, so
                // they contribute nothing.
                u64 at = ((u64)work.sequence * a.heads.queries + head) * end + i;
                for (u32 r = lane; r < SIDE; r += 32) {
                    log_sums[stage * SIDE + r] = i + r < end ? a.log_sum[at + r] * LOG2_E : 0.0f;
                    minus_means[stage * SIDE + r] = i + r < end ? -a.mean[at + r] : 0.0f;
                    if (MASKED) offsets[stage * SIDE + r] = i + r < end ? documents_of(work).offsets[i + r] : 0;
                }
                arrive_by_warp(full + stage);
                i += SIDE;
                if (i >= last) i = j0, head++;
                stage = next_stage(stage);
                phase ^= stage == 0;
            }
        }
    }

    take_registers<240>();
    Matrix matrices(tiles);
    Row<SIDE>* rows = all_rows + 16 * warp;
    float c = a.scale * LOG2_E;
    u32 own = warp / 4, next = 0, phase = 0;
    ColumnSums &of_keys = columns[2 * own], &of_values = columns[2 * own + 1];
#pragma unroll 1
    for (u32 turn = 0;; turn ^= 1) {
        wait_for_phase(own_full, turn);
        u32 number = of_warp(*next_work);
        if (number >= works) return;
        const Work work = work_of(number);
        Held keys(own_keys, 16 * warp), values(own_values, 16 * warp);
        arrive_by_warp(own_empty);
        u32 j0 = work.tile * TALL, row = j0 + 16 * warp, last = last_of(work, j0), count = tiles_of(j0, last), t = 0, now = j0;
        float key_sums[8][4] = {}, value_sums[8][4] = {}, scores[8][4], products[8][4];
        u32 weights[4][4], gradients[4][4];
        auto start = [&](u32 stage) {
            begin_with_columns(products, minus_means + stage * SIDE);
            begin_products();
            keys.start_turned(scores, matrices.row(2 * SIDE * stage), false);
            values.start_turned(products, matrices.row(2 * SIDE * stage + SIDE), true);
        };
        auto add = [&](u32 stage) {
            start_adding(value_sums, weights, matrices.row(2 * SIDE * stage + SIDE));
            start_adding(key_sums, gradients, matrices.row(2 * SIDE * stage));
        };
        auto weigh = [&](u32 stage) {
            hide<true>(scores, a.pattern, row, now);
            hide_before<MASKED>(scores, row, now, offsets + stage * SIDE);
            weigh_columns(scores, c, log_sums + stage * SIDE, 1);
        };
        // Advances past a tile, whose queries begin at `now`.
        auto step = [&] {
            t++;
            next = next_stage(next);
            phase ^= next == 0;
            now = now + SIDE < last ? now + SIDE : j0;
        };
        // Advances to a tile whose queries see this warpgroup's keys: in each head the second warpgroup's keys come
        // after the first tile, and the documents of the first one's keys may end before those of the second. Does not
        // go beyond the stage that is in use: nothing arrives there before it is released.
        auto seek = [&](u32 in_use) {
            while (t < count && next != in_use) {
                wait_for_phase(full + next, phase);
                u32 first = MASKED ? now - min(offsets[next * SIDE], now) : 0;
                if (now >= j0 + SIDE * own && first < j0 + SIDE * (own + 1)) return true;
                arrive_by_warp(empty + next);
                step();
            }
            return false;
        };
#pragma unroll 1
        while (seek(STAGES)) {
            u32 stage = of_warp(next);
            start(stage);
            wait_for_products<1>(scores);
            weigh(stage);
            wait_for_products<0>(products);
            derive(products, scores);
            round_left(weights, scores);
            round_left(gradients, products);
            step();
#pragma unroll 1
            while (seek(stage)) {
                // The compiler cannot derive this: the multiplications' descriptors stay in uniform registers.
                next = of_warp(next);
                start(next);
                add(stage);
                wait_for_products<3>(scores);
                weigh(next);
                wait_for_products<2>(products);
                derive(products, scores);
                wait_for_products<0>(value_sums);
                wait_for_products<0>(key_sums);
                arrive_by_warp(empty + stage);
                round_left(weights, scores);
                round_left(gradients, products);
                stage = next;
                step();
            }
            begin_products();
            add(stage);
            wait_for_products<0>(value_sums);
            wait_for_products<0>(key_sums);
            arrive_by_warp(empty + stage);
            // A run of skipped tiles is longer than the stages only where documents end.
            if (!MASKED) break;
        }

        u64 first = (u64)work.sequence * end;
        u32 key = a.heads.key(work.head), value = a.heads.value(work.head);
        put_back<SIDE>(rows, key_sums, a, first + row);
        write<SIDE>(Part(a.qkv_grad, first, width, key, size), rows, row, end);
        if (a.sums) of_keys.clear(), of_keys.add(rows);
        put<SIDE>(rows, value_sums, 1, 1);
        write<SIDE>(Part(a.qkv_grad, first, width, value, size), rows, row, end);
        if (!a.sums) continue;
        of_values.clear(), of_values.add(rows);
        wait_at(1 + own, 128);
        // The last tile of a sequence may have no keys for the second warpgroup.
        u32 piece = j0 / SIDE + own, pieces = (end + SIDE - 1) / SIDE;
        if (piece < pieces) {
            float* to = a.sums + ((u64)work.sequence * pieces + piece) * width;
            of_keys.put(to + key, size);
            of_values.put(to + value, size);
        }
        // All threads have read the sums.
        wait_at(1 + own, 128);
    }
#else
    __trap();
#endif
}

EXPORT_MANY(attention_grad_keys_pipeline, AttentionGradTilesArgs, 384, 1, attention_grad_keys_by_pipeline<false>)
EXPORT_MANY(attention_grad_keys_pipeline_documents, AttentionGradTilesArgs, 384, 1, attention_grad_keys_by_pipeline<true>)
