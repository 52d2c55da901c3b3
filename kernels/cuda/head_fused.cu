// The head and its cross-entropy in bf16 without logits in memory, by warpgroups (wgmma): attention over the vocabulary,
// whose keys and values are both the weight. Widths of up to 128; what is missing to them is zeros.
//
//   losses    x [128 rows] stays, the weight streams by    scores = x W^T -> exp2 -> sums += p W    x's gradient
//   weights   W [128 ids] stays, x streams by              scores = W x^T -> exp2 -> sums += p x    W's gradient
//
// A block has two warpgroups that compute, 64 of the rows that stay each, and one that fetches: while one is at its
// exponentials, the other's products keep the tensor cores busy, and so does its own product with the tile before.
#include "control.cuh"
#include "wgmma.cuh"

struct FusedHeadArgs {
    const void* x;           // [rows, d], d a multiple of 8
    const void* weight;      // [vocabulary, d]
    const u32* targets;      // [rows]; beyond the ids: no loss, no gradient
    float* losses;           // [rows]
    float* log_sums;         // [rows], to base 2; infinite where there is no target
    void* x_grad;            // [rows, d], or null
    float* weight_grad;      // [vocabulary, d]
    const Settings* settings;
    u32 rows, vocabulary, ids, d;
    u32 accumulate;          // whether to add to weight_grad
};

#ifdef WARPGROUPS

namespace {

// Rows of a tile; elements of its panels of 64 columns, and of a tile.
constexpr u32 TALL = 128, PANEL = 64 * TALL, TILE = 2 * PANEL;
constexpr u32 STAGES = 4, AHEAD = 1;
// Threads.
constexpr u32 COMPUTING = 256, FETCHING = 128;

// Rows of d bf16.
struct Rows {
    const bf16* first;
    u32 count, d;
};

struct Room {
    bf16* own;        // a tile
    bf16* tiles;      // STAGES of them
    float* log_sums;  // [STAGES, TALL]
    u32* targets;     // [STAGES, TALL]

    __device__ explicit Room(unsigned char* pool)
        : own((bf16*)pool),
          tiles(own + TILE),
          log_sums((float*)(tiles + STAGES * TILE)),
          targets((u32*)(log_sums + STAGES * TALL)) {}
};
constexpr u32 ROOM = (1 + STAGES) * TILE * sizeof(bf16) + 2 * STAGES * TALL * sizeof(float);
static_assert(ROOM <= 227 << 10, "what a block may have");

// Barriers: a stage is full for a warpgroup; a stage is empty.
__device__ inline u32 full(u32 stage, u32 group) { return 1 + 2 * stage + group; }
__device__ inline u32 empty(u32 stage) { return 1 + 2 * STAGES + stage; }

// Starts copying rows [row, row + TALL) to a tile; zeros beyond the last row and column.
__device__ inline void fetch_tile(bf16* tile, const Rows& from, u32 row) {
    constexpr u32 STEP = FETCHING / 16;
    u32 thread = threadIdx.x - COMPUTING, r = thread / 16, c = thread % 16;
    u32 end = c * 8 < from.d && row < from.count ? from.count - row : 0;
    const bf16* piece = from.first + (u64)(row + r) * from.d + c * 8;
    bf16* panel = tile + c / 8 * PANEL;
    static_assert(STEP % 8 == 0, "a thread's pieces lie alike in their rows");
    panel += (c % 8 ^ r % 8) * 8;
#pragma unroll 4
    for (; r < TALL; r += STEP, piece += STEP * from.d)
        copy_piece(panel + 64 * r, r < end ? piece : from.first, r < end);
}

// The warpgroup that fetches: its block's own rows from `row` on, then all others in turn, and what `with` does beside them.
template <class With>
__device__ inline void fetch_all(const Room& room, const Rows& own, u32 row, const Rows& others, u32 tiles, With with) {
    give_registers<40>();
    auto show = [&](u32 stage) {
        show_to_products();
        arrive_at(full(stage, 0), COMPUTING / 2 + FETCHING);
        arrive_at(full(stage, 1), COMPUTING / 2 + FETCHING);
    };
    fetch_tile(room.own, own, row);
    for (u32 t = 0; t < tiles; t++) {
        u32 stage = t % STAGES;
        if (t >= STAGES) wait_at(empty(stage), COMPUTING + FETCHING);
        fetch_tile(room.tiles + stage * TILE, others, t * TALL);
        with(stage, t * TALL);
        end_copies();
        if (t < AHEAD) continue;
        wait_for_earlier_copies<AHEAD>();
        show((t - AHEAD) % STAGES);
    }
    wait_for_copies();
    for (u32 t = tiles < AHEAD ? 0 : tiles - AHEAD; t < tiles; t++) show(t % STAGES);
}

// Starts scores = 64 rows times the transposed rows of a tile.
__device__ inline void start_scores(float (&scores)[16][4], Matrix own, Matrix tile) {
#pragma unroll
    for (u32 k = 0; k < 8; k++)
        multiply_group_by_rows(scores, own.row(k / 4 * TALL), tile.row(k / 4 * TALL), k % 4 * 16, k > 0);
    end_products();
}

// Starts sums += weights times the rows of a tile.
__device__ inline void start_sums(float (&sums)[16][4], const u32 (&weights)[8][4], Matrix tile) {
#pragma unroll
    for (u32 k = 0; k < 8; k++) multiply_group_by_columns(sums, weights[k], tile.row(16 * k), PANEL);
    end_products();
}

// Rounds a warp's 16 rows to a left factor.
__device__ inline void round_left(u32 (&pairs)[8][4], const float (&sums)[16][4]) {
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float(&low)[4] = sums[2 * k], (&high)[4] = sums[2 * k + 1];
        pairs[k][0] = pack(low[0], low[1]), pairs[k][1] = pack(low[2], low[3]);
        pairs[k][2] = pack(high[0], high[1]), pairs[k][3] = pack(high[2], high[3]);
    }
}

// A warpgroup that computes. `turn` makes weights of a tile's scores and `settle` brings the sums so far to them.
template <bool SUMS, class Turn>
__device__ inline void compute_all(const Room& room, u32 tiles, float (&sums)[16][4], Turn& turn) {
    take_registers<232>();
    u32 group = threadIdx.x / 128, stage = 0;
    Matrix own = Matrix(room.own).row(64 * group), all(room.tiles);
    float scores[16][4];
    u32 weights[8][4];
    auto await = [&](u32 stage) {
        wait_at(full(stage, group), COMPUTING / 2 + FETCHING);
        begin_products();
    };
    // The last tiles' room is not wanted again.
    auto release = [&](u32 stage, u32 t) {
        if (t + STAGES < tiles) arrive_at(empty(stage), COMPUTING + FETCHING);
    };
    await(0);
    start_scores(scores, own, all);
    wait_for_products<0>(scores);
    if (!SUMS) release(0, 0);
    turn.weigh(scores, 0, 0);
    if (SUMS) round_left(weights, scores);
#pragma unroll 1
    for (u32 t = 1; t < tiles; t++) {
        u32 next = stage + 1 == STAGES ? 0 : stage + 1;
        await(next);
        start_scores(scores, own, all.row(2 * TALL * next));
        if (SUMS) {
            start_sums(sums, weights, all.row(2 * TALL * stage));
            wait_for_products<1>(scores);
            turn.weigh(scores, t, next);
            wait_for_products<0>(sums);
            release(stage, t - 1);
            turn.settle(sums);
            round_left(weights, scores);
        } else {
            wait_for_products<0>(scores);
            release(next, t);
            turn.weigh(scores, t, next);
        }
        stage = next;
    }
    if (!SUMS) return;
    begin_products();
    start_sums(sums, weights, all.row(2 * TALL * stage));
    wait_for_products<0>(sums);
}

// Online softmax of a warp's 16 rows. Weights are relative to the largest score so far or to one that is exceeded by
// less than 2^8: sums are brought to larger ones no more often than that.
struct Softmax {
    u32 ids;
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {}, before[2] = {1, 1};
    bool raised = false;

    __device__ void weigh(float (&scores)[16][4], u32 t, u32) {
        if ((t + 1) * TALL > ids) {
            u32 first = t * TALL + threadIdx.x % 4 * 2;
#pragma unroll
            for (int n = 0; n < 16; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (first + 8 * n + e % 2 >= ids) scores[n][e] = -INFINITY;
        }
        float now[2], base[2], sum[4] = {};
        bool larger = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            // Two halves at a time, so that neither waits for the other.
            float other = scores[0][2 * h];
            now[h] = largest[h];
#pragma unroll
            for (int n = 0; n < 16; n++)
                now[h] = fmaxf(now[h], scores[n][2 * h + 1]), other = fmaxf(other, scores[n][2 * h]);
            now[h] = fmaxf(now[h], other);
            now[h] = fmaxf(now[h], __shfl_xor_sync(FULL_WARP, now[h], 1));
            now[h] = fmaxf(now[h], __shfl_xor_sync(FULL_WARP, now[h], 2));
            larger |= (now[h] - largest[h]) * LOG2_E > 8.0f;
        }
        raised = __ballot_sync(FULL_WARP, larger) != 0;
        if (raised)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                before[h] = power_of_two((largest[h] - now[h]) * LOG2_E);
                largest[h] = now[h];
                total[h] *= before[h];
            }
#pragma unroll
        for (int h = 0; h < 2; h++) base[h] = largest[h] * LOG2_E;
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                scores[n][e] = power_of_two(scores[n][e] * LOG2_E - base[e / 2]);
                sum[e] += scores[n][e];
            }
#pragma unroll
        for (int h = 0; h < 2; h++) total[h] += sum[2 * h] + sum[2 * h + 1];
    }

    __device__ void settle(float (&sums)[16][4]) const {
        if (!raised) return;
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[n][e] *= before[e / 2];
    }
};

// Probabilities, less 1 for targets, of a warp's 16 ids from `row` on.
struct Gradient {
    const Room& room;
    u32 row;

    __device__ void weigh(float (&scores)[16][4], u32, u32 stage) const {
        u32 lane = threadIdx.x % 32;
        const float* log_sums = room.log_sums + stage * TALL + lane % 4 * 2;
        const u32* targets = room.targets + stage * TALL;
        bool met = false;
#pragma unroll
        for (u32 i = 0; i < 4; i++) met |= targets[lane + 32 * i] - row < 16;
#pragma unroll
        for (int n = 0; n < 16; n++) {
            float sums[2] = {log_sums[8 * n], log_sums[8 * n + 1]};
#pragma unroll
            for (int e = 0; e < 4; e++) scores[n][e] = power_of_two(scores[n][e] * LOG2_E - sums[e % 2]);
        }
        if (!__ballot_sync(FULL_WARP, met)) return;
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (targets[8 * n + lane % 4 * 2 + e % 2] == row + lane / 4 + e / 2 * 8) scores[n][e] -= 1;
    }

    __device__ void settle(float (&)[16][4]) const {}
};

// Two elements that follow each other.
__device__ inline float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

}  // namespace

#endif

// Losses of 128 rows, and their gradients.
template <bool GRADIENT>
__device__ inline void head_fused_losses(const FusedHeadArgs& a) {
#ifdef WARPGROUPS
    LAUNCH_SHARED(pool, ROOM);
    Room room(pool);
    u32 first = blockIdx.x * TALL, tiles = (a.ids + TALL - 1) / TALL;
    Rows x{(const bf16*)a.x, a.rows, a.d}, weight{(const bf16*)a.weight, a.vocabulary, a.d};
    if (threadIdx.x >= COMPUTING) return fetch_all(room, x, first, weight, tiles, [](u32, u32) {});

    float sums[16][4] = {};
    Softmax softmax{a.ids};
    compute_all<GRADIENT>(room, tiles, sums, softmax);

    u32 lane = threadIdx.x % 32;
    float scale = a.settings->loss_scale;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 r = threadIdx.x / 32 * 16 + lane / 4 + 8 * h, row = first + r;
        float total = softmax.total[h];
        total += __shfl_xor_sync(FULL_WARP, total, 1);
        total += __shfl_xor_sync(FULL_WARP, total, 2);
        u32 target = row < a.rows ? a.targets[row] : a.ids;
        bool counts = target < a.ids;
        float at_target = 0;
        // A lane of four has every fourth pair of a row.
#pragma unroll 4
        for (u32 n = 0; n < 16; n++) {
            u32 column = 8 * n + lane % 4 * 2;
            if (!counts || column >= a.d) continue;
            u32 own = *(const u32*)(room.own + n / 8 * PANEL + 64 * r + (n % 8 ^ r % 8) * 8 + column % 8);
            u32 of = *(const u32*)(weight.first + (u64)target * a.d + column);
            at_target += low(own) * low(of) + high(own) * high(of);
        }
        at_target += __shfl_xor_sync(FULL_WARP, at_target, 1);
        at_target += __shfl_xor_sync(FULL_WARP, at_target, 2);
        if (row >= a.rows) continue;
        if (lane % 4 == 0) {
            a.losses[row] = counts ? softmax.largest[h] + logf(total) - at_target : 0.0f;
            if (GRADIENT) a.log_sums[row] = counts ? softmax.largest[h] * LOG2_E + log2f(total) : INFINITY;
        }
        if (!GRADIENT) continue;
        float share = 1 / total;
#pragma unroll
        for (int n = 0; n < 16; n++) {
            u32 column = 8 * n + lane % 4 * 2;
            if (column >= a.d) continue;
            u32 of = counts ? *(const u32*)(weight.first + (u64)target * a.d + column) : 0;
            float left = sums[n][2 * h] * share - low(of), right = sums[n][2 * h + 1] * share - high(of);
            *(u32*)((bf16*)a.x_grad + (u64)row * a.d + column) = counts ? pack(left * scale, right * scale) : 0;
        }
    }
#else
    __trap();
#endif
}

// The gradients of 128 ids' weights.
__device__ inline void head_fused_weights(const FusedHeadArgs& a) {
#ifdef WARPGROUPS
    LAUNCH_SHARED(pool, ROOM);
    Room room(pool);
    u32 first = blockIdx.x * TALL, tiles = (a.rows + TALL - 1) / TALL;
    Rows x{(const bf16*)a.x, a.rows, a.d}, weight{(const bf16*)a.weight, a.vocabulary, a.d};
    if (threadIdx.x >= COMPUTING) {
        // Beyond the last row x is zeros, and so is all that comes of it.
        static_assert(FETCHING == TALL, "a thread a row");
        u32 r = threadIdx.x - COMPUTING;
        return fetch_all(room, weight, first, x, tiles, [&](u32 stage, u32 row) {
            u32 at = min(row + r, a.rows - 1);
            copy_word(room.log_sums + stage * TALL + r, a.log_sums + at, row + r < a.rows);
            copy_word(room.targets + stage * TALL + r, a.targets + at, true);
        });
    }

    float sums[16][4] = {};
    u32 lane = threadIdx.x % 32, row = first + threadIdx.x / 32 * 16;
    Gradient gradient{room, row};
    compute_all<true>(room, tiles, sums, gradient);

    float scale = a.settings->loss_scale;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 id = row + lane / 4 + 8 * h;
        if (id >= a.vocabulary) continue;
#pragma unroll
        for (int n = 0; n < 16; n++) {
            u32 column = 8 * n + lane % 4 * 2;
            if (column >= a.d) continue;
            float* to = a.weight_grad + (u64)id * a.d + column;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float own = id < a.ids ? sums[n][2 * h + e] * scale : 0.0f;
                to[e] = a.accumulate ? to[e] + own : own;
            }
        }
    }
#else
    __trap();
#endif
}

EXPORT_MANY(head_fused, FusedHeadArgs, 384, 1, head_fused_losses<true>)
EXPORT_MANY(head_fused_evaluation, FusedHeadArgs, 384, 1, head_fused_losses<false>)
EXPORT_MANY(head_fused_weight, FusedHeadArgs, 384, 1, head_fused_weights)
