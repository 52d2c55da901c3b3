// The head and its cross-entropy in bf16 without logits in memory, by warpgroups (wgmma): attention over the
// vocabulary, with the weight as both keys and values. Widths of up to 128; smaller widths are padded with zeros.
//
//   losses    x [128 rows] stays, the weight streams by    scores = x W^T -> exp2 -> sums += p W    x's gradient
//   weights   W [128 ids] stays, x streams by              scores = W x^T -> exp2 -> sums += p x    W's gradient
//
// A block has two warpgroups that compute, each with 64 of the stationary rows: while one computes its exponentials,
// the other's multiplications keep the tensor cores busy, as does its own multiplication with the previous tile.
#include "softcap.cuh"
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
    float softcap;           // C of C tanh(z / C), at most 40, in the kernels with a cap
};

#ifdef WARPGROUPS

namespace {

// Rows of a tile; elements of a panel of 64 columns, and of a tile.
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

// Starts copying rows [row, row + TALL) of d columns to a tile; zeros after the last of `count` rows and beyond d.
__device__ inline void fetch_tile(bf16* tile, const void* rows, u32 row, u32 count, u32 d) {
    fetch_swizzled<TALL>(tile, Part(rows, 0, d, 0, min(d, SIDE)), row, count);
    fetch_swizzled<TALL>(tile + PANEL, Part(rows, 0, d, SIDE, d - min(d, SIDE)), row, count);
}

// The multiplications of a warpgroup's 64 rows with tiles.
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

    __device__ Powers(const Room& room, const FusedHeadArgs& a) : Products(room), ids(a.ids) {}

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

    // The base of a row's exponentials, and their sum.
    __device__ float base(int h) const { return softmax.largest[h]; }
    __device__ float row_total(int h) const { return softmax.row_total(h); }
    // The capped logit, and its derivative by the logit.
    __device__ static float logit(float z) { return z; }
    __device__ static float slope(float) { return 1; }
};

// As Powers, for capped logits; multiplied with the derivative of the capped logit by the logit, which x's gradient
// needs. No capped logit is larger than C, so exponentials relative to C's need no maximum of a row: the least, of -C,
// is exp(-2 C), a normal number.
template <bool GRADIENT>
struct CappedPowers : Products {
    u32 ids;
    Softcap by;
    float most, total[2] = {};  // the exponent of C's exponential, to base 2

    __device__ CappedPowers(const Room& room, const FusedHeadArgs& a)
        : Products(room), ids(a.ids), by(a.softcap), most(a.softcap * LOG2_E) {}

    __device__ void weigh(float (&scores)[16][4], u32 t, u32) {
        u32 first = t * TALL + threadIdx.x % 4 * 2;
        bool whole = (t + 1) * TALL <= ids;
        float sum[4] = {};
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float share = share_of(scores[n][e]), power = power_of_two(most * share - most);
                if (!whole && first + 8 * n + e % 2 >= ids) power = 0;
                sum[e] += power;
                scores[n][e] = power * by.slope(share);
            }
#pragma unroll
        for (int h = 0; h < 2; h++) total[h] += sum[2 * h] + sum[2 * h + 1];
    }

    __device__ void settle(float (&)[16][4]) const {}

    __device__ float base(int) const { return by.cap; }
    __device__ float row_total(int h) const {
        float sum = total[h];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        return sum + __shfl_xor_sync(FULL_WARP, sum, 2);
    }
    __device__ float logit(float z) const { return by.cap * share_of(z); }
    __device__ float slope(float z) const { return by.slope(share_of(z)); }

private:
    __device__ float share_of(float z) const { return GRADIENT ? by.share(z) : by.exact_share(z); }
};

template <bool GRADIENT, bool CAPPED>
struct PowersOf {
    typedef Powers Type;
};
template <bool GRADIENT>
struct PowersOf<GRADIENT, true> {
    typedef CappedPowers<GRADIENT> Type;
};

// Probabilities, minus 1 for targets, of a warp's 16 ids from `row` on; for capped logits times the derivative of the
// capped logit by the logit.
template <bool CAPPED>
struct Gradient : Products {
    const Room& room;
    u32 row;
    Softcap by;

    __device__ Gradient(const Room& room, u32 row, float cap) : Products(room), room(room), row(row), by(cap) {}

    __device__ void weigh(float (&scores)[16][4], u32, u32 stage) const {
        u32 lane = threadIdx.x % 32;
        const float* log_sums = room.log_sums + stage * TALL + lane % 4 * 2;
        const u32* targets = room.targets + stage * TALL;
        bool met = false;
#pragma unroll
        for (u32 i = 0; i < 4; i++) met |= targets[lane + 32 * i] - row < 16;
        met = __ballot_sync(FULL_WARP, met) != 0;
        if constexpr (CAPPED) {
            if (met) weigh_capped<true>(scores, log_sums, targets);
            else weigh_capped<false>(scores, log_sums, targets);
        } else {
            weigh_plain(scores, log_sums, targets, met);
        }
    }

    __device__ void settle(float (&)[16][4]) const {}

private:
    __device__ void weigh_plain(float (&scores)[16][4], const float* log_sums, const u32* targets, bool met) const {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < 16; n++) {
            float sums[2] = {log_sums[8 * n], log_sums[8 * n + 1]};
#pragma unroll
            for (int e = 0; e < 4; e++) scores[n][e] = power_of_two(scores[n][e] * LOG2_E - sums[e % 2]);
        }
        if (!met) return;
#pragma unroll
        for (int n = 0; n < 16; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (targets[8 * n + lane % 4 * 2 + e % 2] == row + lane / 4 + e / 2 * 8) scores[n][e] -= 1;
    }

    template <bool MET>
    __device__ void weigh_capped(float (&scores)[16][4], const float* log_sums, const u32* targets) const {
        // Which ids are targets: determined before, since the registers have no room for targets and scores together.
        u32 lane = threadIdx.x % 32, own[2] = {};
        float most = by.cap * LOG2_E;
        if (MET)
#pragma unroll
            for (int i = 0; i < 64; i++) {
                bool is = targets[i / 4 * 8 + lane % 4 * 2 + i % 2] == row + lane / 4 + i % 4 / 2 * 8;
                own[i / 32] |= (u32)is << i % 32;
            }
#pragma unroll
        for (int n = 0; n < 16; n++) {
            float sums[2] = {log_sums[8 * n], log_sums[8 * n + 1]};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float share = by.share(scores[n][e]), part = power_of_two(most * share - sums[e % 2]);
                if (MET && own[n / 8] >> (n % 8 * 4 + e) & 1) part -= 1;
                scores[n][e] = part * by.slope(share);
            }
        }
    }
};

// Computes the scores of all tiles only for the sums of their exponentials.
template <class Powers>
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

// Two consecutive elements.
__device__ inline float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

}  // namespace

#endif

// The losses of 128 rows, and their gradients.
template <bool GRADIENT, bool CAPPED>
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
    typename PowersOf<GRADIENT, CAPPED>::Type powers(room, a);
    if (GRADIENT) compute_all(blocks, sums, powers);
    else weigh_all(blocks, powers);

    const bf16* weight = (const bf16*)a.weight;
    u32 lane = threadIdx.x % 32;
    float scale = a.settings->loss_scale;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 r = threadIdx.x / 32 * 16 + lane / 4 + 8 * h, row = first + r;
        float total = powers.row_total(h);
        u32 target = row < a.rows ? a.targets[row] : a.ids;
        bool counts = target < a.ids;
        float at_target = 0;
        // Each of four lanes has every fourth pair of a row.
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
            a.losses[row] = counts ? powers.base(h) + logf(total) - powers.logit(at_target) : 0.0f;
            if (GRADIENT) a.log_sums[row] = counts ? powers.base(h) * LOG2_E + log2f(total) : INFINITY;
        }
        if (!GRADIENT) continue;
        float share = 1 / total, slope = powers.slope(at_target);
#pragma unroll
        for (int n = 0; n < 16; n++) {
            u32 column = 8 * n + lane % 4 * 2;
            if (column >= a.d) continue;
            u32 of = counts ? *(const u32*)(weight + (u64)target * a.d + column) : 0;
            float left = sums[n][2 * h] * share - slope * low(of);
            float right = sums[n][2 * h + 1] * share - slope * high(of);
            *(u32*)((bf16*)a.x_grad + (u64)row * a.d + column) = counts ? pack(left * scale, right * scale) : 0;
        }
    }
#else
    __trap();
#endif
}

#ifdef WARPGROUPS

// Writes a pair of sums, or adds it to the content.
template <class T>
__device__ inline void put(T* to, const float (&sums)[2], bool accumulate) {
#pragma unroll
    for (int e = 0; e < 2; e++) to[e] = store<T>(accumulate ? load(to[e]) + sums[e] : sums[e]);
}

#endif

// The gradients of 128 ids' weights.
template <bool CAPPED>
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
        // After the last row x is zeros, so those rows contribute nothing.
        return blocks.fetch_all([&](u32 stage, u32 t) {
            u32 row = t * TALL + r, at = min(row, a.rows - 1);
            fetch_tile(room.tiles + stage * WHOLE, a.x, t * TALL, a.rows, a.d);
            copy_word(room.log_sums + stage * TALL + r, a.log_sums + at, row < a.rows);
            copy_word(room.targets + stage * TALL + r, a.targets + at, true);
        });
    }

    float sums[16][4] = {};
    u32 lane = threadIdx.x % 32, row = first + threadIdx.x / 32 * 16;
    Gradient<CAPPED> gradient(room, row, a.softcap);
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

EXPORT_MANY(head_fused, FusedHeadArgs, 384, 1, head_fused_losses<true, false>)
EXPORT_MANY(head_fused_evaluation, FusedHeadArgs, 384, 1, head_fused_losses<false, false>)
EXPORT_MANY(head_fused_weight, FusedHeadArgs, 384, 1, head_fused_weights<false>)
EXPORT_MANY(head_fused_capped, FusedHeadArgs, 384, 1, head_fused_losses<true, true>)
EXPORT_MANY(head_fused_capped_evaluation, FusedHeadArgs, 384, 1, head_fused_losses<false, true>)
EXPORT_MANY(head_fused_capped_weight, FusedHeadArgs, 384, 1, head_fused_weights<true>)
