// The head and its cross-entropy in bf16 without logits in memory, by warpgroups (wgmma): attention over the vocabulary,
// whose keys and values are both the weight. Widths of up to 128; what is missing to them is zeros.
//
//   losses    x [128 rows] stays, the weight streams by    scores = x W^T -> exp2 -> sums += p W    x's gradient
//   weights   W [128 ids] stays, x streams by              scores = W x^T -> exp2 -> sums += p x    W's gradient
//
// A block has two warpgroups that compute, 64 of the rows that stay each: while one is at its exponentials, the other's
// products keep the tensor cores busy, and so does its own product with the tile before.
#include "../control.cuh"
#include "../pipeline.cuh"

struct FusedHeadArgs {
    const void* x;           // [rows, d], d a multiple of 8
    const void* weight;      // [vocabulary, d]
    const u32* targets;      // [rows]; beyond the ids: no loss, no gradient
    float* losses;           // [rows]
    float* log_sums;         // [rows], to base 2; infinite where there is no target
    void* x_grad;            // [rows, d], or null
    void* weight_grad;       // [vocabulary, d]: f32, or bf16
    const Settings* settings;
    u32 rows, vocabulary, ids, d;
    u32 accumulate;          // whether to add to weight_grad
    u32 reduced;             // whether that is bf16
};

#ifdef WARPGROUPS

namespace {

// Rows of a tile; elements of its panels of 64 columns, and of a tile.
constexpr u32 TALL = 128, PANEL = 64 * TALL, WHOLE = 2 * PANEL, STAGES = 4;
using Blocks = Pipeline<2, STAGES>;

struct Room {
    bf16* own;        // a tile
    bf16* tiles;      // STAGES of them
    float* log_sums;  // [STAGES, TALL]
    u32* targets;     // [STAGES, TALL]

    __device__ explicit Room(unsigned char* pool)
        : own((bf16*)pool),
          tiles(own + WHOLE),
          log_sums((float*)(tiles + STAGES * WHOLE)),
          targets((u32*)(log_sums + STAGES * TALL)) {}
};
constexpr u32 ROOM = (1 + STAGES) * WHOLE * sizeof(bf16) + 2 * STAGES * TALL * sizeof(float);
static_assert(ROOM <= 227 << 10, "what a block may have");

// Starts copying rows [row, row + TALL) of d columns to a tile; zeros beyond the last of `count` and beyond d.
__device__ inline void fetch_tile(bf16* tile, const void* rows, u32 row, u32 count, u32 d) {
    fetch_swizzled<TALL>(tile, Part(rows, 0, d, 0, min(d, SIDE)), row, count);
    fetch_swizzled<TALL>(tile + PANEL, Part(rows, 0, d, SIDE, d - min(d, SIDE)), row, count);
}

// The products of a warpgroup's 64 rows, of tiles.
struct Products {
    Matrix own, tiles;

    __device__ explicit Products(const Room& room)
        : own(Matrix(room.own).row(threadIdx.x / 128 * 64)), tiles(room.tiles) {}

    __device__ void start_scores(float (&scores)[16][4], u32 stage) const {
        Matrix tile = tiles.row(2 * TALL * stage);
#pragma unroll
        for (u32 k = 0; k < 8; k++)
            multiply_group_by_rows(scores, own.row(k / 4 * TALL), tile.row(k / 4 * TALL), k % 4 * 16, k > 0);
        end_products();
    }

    __device__ void start_sums(float (&sums)[16][4], const u32 (&weights)[8][4], u32 stage) const {
        Matrix tile = tiles.row(2 * TALL * stage);
#pragma unroll
        for (u32 k = 0; k < 8; k++) multiply_group_by_columns(sums, weights[k], tile.row(16 * k), PANEL);
        end_products();
    }
};

// Probabilities of ids for a warp's 16 rows, not yet divided by their sums.
struct Powers : Products {
    u32 ids;
    Softmax softmax{LOG2_E};

    __device__ Powers(const Room& room, u32 ids) : Products(room), ids(ids) {}

    __device__ void weigh(float (&scores)[16][4], u32 t, u32) {
        if ((t + 1) * TALL > ids) {
            u32 first = t * TALL + threadIdx.x % 4 * 2;
#pragma unroll
            for (int n = 0; n < 16; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (first + 8 * n + e % 2 >= ids) scores[n][e] = -INFINITY;
        }
        softmax.weigh(scores);
    }

    __device__ void settle(float (&sums)[16][4]) const { softmax.settle(sums); }
};

// Probabilities, less 1 for targets, of a warp's 16 ids from `row` on.
struct Gradient : Products {
    const Room& room;
    u32 row;

    __device__ Gradient(const Room& room, u32 row) : Products(room), room(room), row(row) {}

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

// All tiles' scores for the sums of their powers only.
__device__ inline void weigh_all(const Blocks& blocks, Powers& powers) {
    blocks.start();
    float scores[16][4];
#pragma unroll 1
    for (u32 t = 0, stage = 0; t < blocks.tiles; t++, stage = Blocks::next(stage)) {
        blocks.await(stage);
        powers.start_scores(scores, stage);
        wait_for_products<0>(scores);
        blocks.release(stage, t);
        powers.weigh(scores, t, stage);
    }
}

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
    Blocks blocks{tiles};
    if (blocks.fetches()) {
        fetch_tile(room.own, a.x, first, a.rows, a.d);
        return blocks.fetch_all(
            [&](u32 stage, u32 t) { fetch_tile(room.tiles + stage * WHOLE, a.weight, t * TALL, a.vocabulary, a.d); });
    }

    float sums[16][4] = {};
    Powers powers(room, a.ids);
    if (GRADIENT) compute_all(blocks, sums, powers);
    else weigh_all(blocks, powers);

    const Softmax& softmax = powers.softmax;
    const bf16* weight = (const bf16*)a.weight;
    u32 lane = threadIdx.x % 32;
    float scale = a.settings->loss_scale;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 r = threadIdx.x / 32 * 16 + lane / 4 + 8 * h, row = first + r;
        float total = softmax.row_total(h);
        u32 target = row < a.rows ? a.targets[row] : a.ids;
        bool counts = target < a.ids;
        float at_target = 0;
        // A lane of four has every fourth pair of a row.
#pragma unroll 4
        for (u32 n = 0; n < 16; n++) {
            u32 column = 8 * n + lane % 4 * 2;
            if (!counts || column >= a.d) continue;
            u32 own = *(const u32*)(room.own + n / 8 * PANEL + 64 * r + (n % 8 ^ r % 8) * 8 + column % 8);
            u32 of = *(const u32*)(weight + (u64)target * a.d + column);
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
            u32 of = counts ? *(const u32*)(weight + (u64)target * a.d + column) : 0;
            float left = sums[n][2 * h] * share - low(of), right = sums[n][2 * h + 1] * share - high(of);
            *(u32*)((bf16*)a.x_grad + (u64)row * a.d + column) = counts ? pack(left * scale, right * scale) : 0;
        }
    }
#else
    __trap();
#endif
}

#ifdef WARPGROUPS

// Writes a pair of sums, or adds it to what is there.
template <class T>
__device__ inline void put(T* to, const float (&sums)[2], bool accumulate) {
#pragma unroll
    for (int e = 0; e < 2; e++) to[e] = store<T>(accumulate ? load(to[e]) + sums[e] : sums[e]);
}

#endif

// The gradients of 128 ids' weights.
__device__ inline void head_fused_weights(const FusedHeadArgs& a) {
#ifdef WARPGROUPS
    LAUNCH_SHARED(pool, ROOM);
    Room room(pool);
    u32 first = blockIdx.x * TALL, tiles = (a.rows + TALL - 1) / TALL;
    Blocks blocks{tiles};
    if (blocks.fetches()) {
        fetch_tile(room.own, a.weight, first, a.vocabulary, a.d);
        static_assert(Blocks::FETCHING == TALL, "a thread a row");
        u32 r = threadIdx.x % TALL;
        // Beyond the last row x is zeros, and so is all that comes of it.
        return blocks.fetch_all([&](u32 stage, u32 t) {
            u32 row = t * TALL + r, at = min(row, a.rows - 1);
            fetch_tile(room.tiles + stage * WHOLE, a.x, t * TALL, a.rows, a.d);
            copy_word(room.log_sums + stage * TALL + r, a.log_sums + at, row < a.rows);
            copy_word(room.targets + stage * TALL + r, a.targets + at, true);
        });
    }

    float sums[16][4] = {};
    u32 lane = threadIdx.x % 32, row = first + threadIdx.x / 32 * 16;
    Gradient gradient(room, row);
    compute_all(blocks, sums, gradient);

    float scale = a.settings->loss_scale;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 id = row + lane / 4 + 8 * h;
        if (id >= a.vocabulary) continue;
#pragma unroll
        for (int n = 0; n < 16; n++) {
            u32 column = 8 * n + lane % 4 * 2;
            if (column >= a.d) continue;
            u64 at = (u64)id * a.d + column;
            float factor = id < a.ids ? scale : 0.0f, own[2] = {sums[n][2 * h] * factor, sums[n][2 * h + 1] * factor};
            if (a.reduced) put((bf16*)a.weight_grad + at, own, a.accumulate);
            else put((float*)a.weight_grad + at, own, a.accumulate);
        }
    }
#else
    __trap();
#endif
}

EXPORT_MANY(head_fused, FusedHeadArgs, 384, 1, head_fused_losses<true>)
EXPORT_MANY(head_fused_evaluation, FusedHeadArgs, 384, 1, head_fused_losses<false>)
EXPORT_MANY(head_fused_weight, FusedHeadArgs, 384, 1, head_fused_weights)
