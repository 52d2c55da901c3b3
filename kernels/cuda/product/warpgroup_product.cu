// Matrix multiplication in bf16 on warpgroups, with tiles copied by the TMA, fused with a linear layer's bias and GELU
// or rotation, or with the exponentials of a softmax. The cases are those of product.cu:
//   NT  A [m, k], B [n, k]   x weight^T, then the bias, then the GELU beside it or the rotation of queries and keys; or
//                            exponentials, with the sums of rows; with capped logits, the stored values are multiplied
//                            by the cap's derivative
//   NN  A [m, k], B [k, n]   out_grad weight, then through the gradient of a GELU, with the sums of columns
// m is a multiple of 64, n of 256 (for a rotation of 192, for exponentials of 8), k of 64 and at least 512.
//
// A block stays on its multiprocessor and computes one tile [128, 256] of C after the other; neighbouring blocks have
// neighbouring columns, so that A's rows are in L2 for all of them. For a rotation a tile has 192 columns, three heads:
// queries, keys and values of equal heads are whole tiles then, and for 4,096 rows and three times 512 columns every
// multiprocessor has at most two tiles, as with tiles of 256, but smaller ones. For exponentials B is large as well,
// and neighbouring blocks have neighbouring rows, sixteen tiles of them, before they continue with other columns.
//
//   fetching thread   | stage 0 | stage 1 | stage 2 | stage 0 ...        64 of k each, of A's rows and of B's
//   warpgroup 0       |  products of rows  0 to  63 |    alternating: while one waits for its own,
//   warpgroup 1         |  products of rows 64 to 127 |  the other's run
//   each of its warps | slice 0 | slice 1 | ... | slice 7 |              of the previous tile, two rows each
//
// A finished tile is stored as bf16 in shared memory, 16 rows for each warp. The remaining work on it, and its stores,
// are done in eight slices during the next tile's first eight stages, so that the tensor cores stay busy.
#include "../head/softcap.cuh"
#include "../pointwise/gelu.cuh"
#include "../powers.cuh"
#include "../tma.cuh"
#include "../vector.cuh"

struct WarpgroupProductArgs {
    alignas(64) u64 left[16];  // tensor map of A: tiles of 128 rows
    u64 right[16];             // of B: tiles of as many rows as C's tiles have columns in NT, of 64 in NN
    bf16* out;                 // [m, n]
    const bf16* bias;          // [n], at most 4096, or null
    const bf16* before_gelu;   // [m, n]: out is multiplied by gelu'(this)
    bf16* activated;           // [m, n]: receives gelu(out), or gelu(before_gelu)
    float* partial;            // [m / 64, n]: sums of out's columns; for exponentials [m, ceil(n / 256)]: of its rows
    const float* at_targets;   // [m]: subtracted from each product of a row before the exponential
    const float* table;        // [positions, 8, 2]: cosine and sine, for the first 16 columns of heads of 64
    u32 m, n, k;
    u32 ids;                   // columns that have exponentials; later columns get zeros
    u32 positions;             // row r is at position r mod this
    u32 parts, turned;         // of each `parts` heads of 64 columns the first `turned` are rotated
    float softcap;             // the cap, for capped logits
    u32 unused[10];
};

static_assert(sizeof(WarpgroupProductArgs) % 64 == 0, "no padding, which the host does not mirror");

enum Then { STORE, TURNED, GELU, GELU_GRAD, GELU_GRAD_AGAIN, POWERS, CAPPED_POWERS };

#ifdef WARPGROUPS

namespace {

constexpr u32 ROWS = 128, DEEP = 64, GROUPS = 2, LEFT = ROWS * DEEP, PANEL = ROWS * DEEP;
constexpr u32 MOST_BIAS = 4096, SLICES = 8, DIMS = 16;

// Columns of a tile; the number of stages that fit in shared memory.
template <Then THEN>
constexpr u32 COLUMNS = THEN == TURNED ? 192 : 256;
template <Then THEN>
constexpr u32 STAGES = THEN == TURNED ? 4 : 3;
template <Then THEN>
constexpr u32 PANELS = COLUMNS<THEN> / DEEP;
template <Then THEN>
constexpr u32 STAGE = LEFT + COLUMNS<THEN> * DEEP;

// Offsets in a block's shared memory, and its size in bytes.
template <Then THEN>
struct Room {
    static constexpr u32 OUT = STAGES<THEN> * STAGE<THEN> * sizeof(bf16), SIDE = OUT + ROWS * COLUMNS<THEN> * sizeof(bf16);
    static constexpr u32 BARRIERS = SIDE + MOST_BIAS * sizeof(float), BYTES = BARRIERS + 2 * STAGES<THEN> * sizeof(u64);
    static_assert(BYTES <= 227 << 10, "what a block may have");
    static_assert(ROWS * 32 <= MOST_BIAS, "room for each lane's part of the sums of powers");
};

typedef Vector<bf16, 8> Eight;

template <Then THEN>
constexpr bool BIASED = THEN == STORE || THEN == TURNED || THEN == GELU;
template <Then THEN>
constexpr bool POWERED = THEN == POWERS || THEN == CAPPED_POWERS;
template <Then THEN>
constexpr bool SUMMED = THEN == GELU_GRAD || THEN == GELU_GRAD_AGAIN;

// C's tiles in the order in which blocks take them.
template <u32 COLUMNS, u32 BAND>
struct Tiles {
    u32 across, down;

    __device__ explicit Tiles(const WarpgroupProductArgs& a)
        : across((a.n + COLUMNS - 1) / COLUMNS), down((a.m + ROWS - 1) / ROWS) {}
    __device__ u32 count() const { return across * down; }
    __device__ u32 row(u32 t) const { return (first(t) + of_band(t) % tall(t)) * ROWS; }
    __device__ u32 column(u32 t) const { return of_band(t) / tall(t) * COLUMNS; }

private:
    // The first row of tiles of a band, the number of its rows, and the tile's index in the band.
    __device__ u32 first(u32 t) const { return t / (BAND * across) * BAND; }
    __device__ u32 tall(u32 t) const { return BAND == 1 ? 1 : min(BAND, down - first(t)); }
    __device__ u32 of_band(u32 t) const { return t % (BAND * across); }
};

template <Then THEN>
using TilesOf = Tiles<COLUMNS<THEN>, POWERED<THEN> ? 16 : 1>;

// The work on a tile after its multiplication. A warp's rows are in shared memory in panels of 64 columns, swizzled; a
// lane has eight columns of a row, if the row has so many.
template <Then THEN>
struct Behind {
    static constexpr u32 COLUMNS = ::COLUMNS<THEN>, EIGHTS = COLUMNS / 8;
    typedef float Sums[EIGHTS][4];

    const WarpgroupProductArgs& a;
    u32 warp;
    bf16* rows;         // the warp's first row in the first panel
    const bf16* panel;  // the warp's first row in the lane's panel
    u32 eighth;         // which eight of the panel's columns the lane has
    float* side;        // the bias, or sums: of each warp's columns, or each lane's part of the sums of its warp's rows
    bool any = false, last = false;  // whether it has rows, and whether no tile follows
    u32 piece = 0, column = 0;
    u64 at = 0;
    float sums[8] = {}, left[2], angles[2][4];
    Eight values[2], before[2][2];  // before: of even slices, and of odd ones
    float* row_sums;
    const float* at_targets;  // of the warp's rows, and of the slice's: subtracted from the products
    float whole[2];

    __device__ Behind(const WarpgroupProductArgs& a, bf16* out, float* side)
        : a(a), warp(of_warp(threadIdx.x / 32)), rows(out + warp * 16 * DEEP), side(side) {
        u32 lane = min(threadIdx.x % 32, EIGHTS - 1);
        panel = held(rows + lane / 8 * PANEL);
        eighth = held(lane % 8);
    }

    // Takes over a tile whose multiplications have ended.
    __device__ void take(const Sums& product, u32 row, u32 column) {
        u32 lane = threadIdx.x % 32;
        row += warp * 16;
        any = row < a.m && (EIGHTS == 32 || lane < EIGHTS);
        at = (u64)row * a.n + column + lane * 8;
        if constexpr (POWERED<THEN>) {
            u32 across = (a.n + COLUMNS - 1) / COLUMNS;
            at_targets = a.at_targets + row;
            row_sums = a.partial + (u64)row * across + column / COLUMNS;
            this->column = column + lane * 8;
        }
        if constexpr (SUMMED<THEN>) {
            piece = row / 64;
            this->column = column;
            if (any)
#pragma unroll
                for (u32 h = 0; h < 2; h++) before[0][h] = fetch<bf16, 8>(a.before_gelu + at + h * a.n);
#pragma unroll
            for (float& sum : sums) sum = 0;
        }
        // All lanes have read the previous slices.
        __syncwarp();
        // Lane l has the address of row l % 16 of the 16 columns' first piece of eight, or of their second.
        bf16* to = rows + lane % 16 * DEEP;
        u32 first = lane / 16 ^ lane % 8;
#pragma unroll
        for (u32 i = 0; i < EIGHTS; i += 2) {
            const u32 four[4] = {both(product[i][0], product[i][1]), both(product[i][2], product[i][3]),
                                 both(product[i + 1][0], product[i + 1][1]), both(product[i + 1][2], product[i + 1][3])};
            store_matrices(to + i / 8 * PANEL + (first ^ i % 8) * 8, four);
        }
        __syncwarp();
    }

    // Rotates queries and keys. A panel is a head, and a lane has both elements of its pairs.
    __device__ void turn(Sums& product, u32 column) const {
#pragma unroll
        for (u32 p = 0; p < PANELS<THEN>; p++) {
            if ((column / DEEP + p) % a.parts >= a.turned) continue;
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                float &low = product[8 * p][e], &high = product[8 * p + 1][e], before = low;
                float cosine = angles[e / 2][e % 2 * 2], sine = angles[e / 2][e % 2 * 2 + 1];
                low = before * cosine - high * sine;
                high = high * cosine + before * sine;
            }
        }
    }

    // Packs a pair as in shared memory. Differences of logits are small where they matter, and there f16 has three more
    // bits.
    __device__ static u32 both(float low, float high) { return POWERED<THEN> ? pack_f16(low, high) : pack(low, high); }

    // Loads the values to subtract for the rows of tile `t`, if it exists.
    __device__ void ask(const TilesOf<THEN>& tiles, u32 t) {
        if constexpr (POWERED<THEN>) {
            if (t >= tiles.count()) return;
            u32 row = tiles.row(t) + warp * 16 + threadIdx.x % 32 / 4;
#pragma unroll
            for (u32 h = 0; h < 2; h++) left[h] = row < a.m ? a.at_targets[row + 8 * h] : 0.0f;
        }
    }

    // Initialises the sums, and loads the angles of the tile's rows.
    __device__ void begin(Sums& product, u32 row, u32 column) {
        if constexpr (SUMMED<THEN>) {
            // Prefetches to L2 for when this tile's multiplications have ended: a lane has 128 bytes of every eighth
            // row.
            u32 lane = threadIdx.x % 32, r = row + warp * 16 + lane / 4;
#pragma unroll
            for (u32 h = 0; h < 2; h++)
                if (r + 8 * h < a.m) prefetch(a.before_gelu + (u64)(r + 8 * h) * a.n + column + lane % 4 * DEEP);
        }
        if constexpr (THEN == TURNED) {
            u32 lane = threadIdx.x % 32;
            row += warp * 16 + lane / 4;
#pragma unroll
            for (u32 h = 0; h < 2; h++) read(angles[h], a.table + (row + 8 * h) % a.positions * DIMS + lane % 4 * 4);
        }
        if constexpr (POWERED<THEN>) {
#pragma unroll
            for (u32 i = 0; i < EIGHTS; i++) {
                product[i][0] = product[i][1] = -left[0];
                product[i][2] = product[i][3] = -left[1];
            }
        }
        if constexpr (BIASED<THEN>) {
            const float* bias = side + column + threadIdx.x % 4 * 2;
#pragma unroll
            for (u32 i = 0; i < EIGHTS; i++) {
                product[i][0] = product[i][2] = bias[8 * i];
                product[i][1] = product[i][3] = bias[8 * i + 1];
            }
        }
    }

    // Reads a slice from shared memory.
    __device__ void bring(u32 slice) {
        u32 row = 2 * slice, piece = eighth ^ row % 8;
        values[0] = fetch<bf16, 8>(panel + row * DEEP + piece * 8);
        values[1] = fetch<bf16, 8>(panel + (row + 1) * DEEP + (piece ^ 1) * 8);
        if constexpr (THEN == CAPPED_POWERS)
            if (any)
#pragma unroll
                for (u32 h = 0; h < 2; h++) whole[h] = at_targets[row + h];
    }

    // Loads the operand of the GELU's gradient for the next slice, a whole step before it is needed: into registers
    // that are compile-time constants, so that they are not copied, which would wait for the loads. Runs after this
    // slice's data has arrived, since waiting for one load may wait for all outstanding loads.
    template <u32 ODD>
    __device__ void ask_for_next(u32 slice) {
        if constexpr (SUMMED<THEN>)
            if (any && slice + 1 < SLICES && !last)
#pragma unroll
                for (u32 h = 0; h < 2; h++) before[1 - ODD][h] = fetch<bf16, 8>(a.before_gelu + at + (2 + h) * a.n);
    }

    // Does the remaining work on a slice.
    template <u32 ODD>
    __device__ void finish(u32 slice) {
        if (!any) return;
        if constexpr (POWERED<THEN>) finish_powers(slice);
        else finish_values<ODD>(slice);
    }

    // All slices of a tile after which no tile follows.
    __device__ void finish_all() {
        last = true;
        if constexpr (SUMMED<THEN>) {
            // The registers of the sums are free: all operands are loaded at once.
            Eight rest[SLICES][2];
#pragma unroll
            for (u32 i = 2; i < 2 * SLICES; i++)
                if (any) rest[i / 2][i % 2] = fetch<bf16, 8>(a.before_gelu + at + i * a.n);
#pragma unroll
            for (u32 slice = 0; slice < SLICES; slice++) {
                bring(slice);
                if (slice > 0) before[0][0] = rest[slice][0], before[0][1] = rest[slice][1];
                finish<0>(slice);
            }
        } else {
            for (u32 slice = 0; slice < SLICES; slice++) {
                bring(slice);
                finish<0>(slice);
            }
        }
    }

    template <u32 ODD>
    __device__ void finish_values(u32 slice) {
        float all_inputs[2][8];
        if constexpr (SUMMED<THEN>) {
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                unpack(all_inputs[h], before[ODD][h]);
#pragma unroll
                for (float& x : all_inputs[h]) arrived(x);
            }
            ask_for_next<ODD>(slice);
        }
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            if constexpr (THEN == STORE || THEN == TURNED) {
                *(Eight*)(a.out + at) = values[h];
            } else {
                float x[8];
                unpack(x, values[h]);
                if constexpr (THEN == GELU) {
                    *(Eight*)(a.out + at) = values[h];
#pragma unroll
                    for (float& y : x) y = gelu<bf16>(y);
                    write(a.activated + at, x);
                } else {
                    float(&inputs)[8] = all_inputs[h];
#pragma unroll
                    for (u32 i = 0; i < 8; i++) {
                        x[i] *= gelu_derivative<bf16>(inputs[i]);
                        sums[i] += x[i];
                    }
                    write(a.out + at, x);
                    if constexpr (THEN == GELU_GRAD_AGAIN) {
#pragma unroll
                        for (float& y : inputs) y = gelu<bf16>(y);
                        write(a.activated + at, inputs);
                    }
                }
            }
            at += a.n;
        }
        if constexpr (SUMMED<THEN>)
            if (slice + 1 == SLICES) add_up();
    }

    // Two rows of exponentials and their sums.
    __device__ void finish_powers(u32 slice) {
        float sum[2] = {};
        Softcap by(a.softcap);
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32* pairs = (const u32*)values[h].x;
            float x[8], shares[8], begin = 0, below = 0, most = by.cap * LOG2_E;
            if constexpr (THEN == CAPPED_POWERS) {
                begin = whole[h] * by.over;
                below = most * tanh_for_bf16(begin) + POWERS_BELOW;
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) unpack_f16(x[2 * i], x[2 * i + 1], pairs[i]);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                if constexpr (THEN == CAPPED_POWERS) {
                    // One instruction each for a multiplication with addition.
                    shares[i] = tanh_for_bf16(x[i] * by.over + begin);
                    x[i] = power_of_bits(shares[i] * most - below);
                } else {
                    x[i] = power_beside_target(x[i]);
                }
            }
            if (column + 8 > a.ids)
#pragma unroll
                for (u32 i = 0; i < 8; i++) x[i] = column + i < a.ids ? x[i] : 0.0f;
#pragma unroll
            for (float y : x) sum[h] += y;
            if constexpr (THEN == CAPPED_POWERS)
#pragma unroll
                for (u32 i = 0; i < 8; i++) x[i] *= by.slope(shares[i]);
            if (column < a.n) write(a.out + at, x);
            at += a.n;
        }
        // The lanes' parts of a row's sums, in pieces of four, swizzled.
        u32 lane = threadIdx.x % 32;
        float* own = side + warp * 16 * 32;
#pragma unroll
        for (u32 h = 0; h < 2; h++) own[(2 * slice + h) * 32 + (lane ^ (2 * slice + h) % 8 * 4)] = sum[h];
        if (slice + 1 < SLICES) return;
        __syncwarp();
        // Two lanes have a row.
        u32 row = lane / 2;
        float all = 0;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            float four[4];
            read(four, own + row * 32 + (lane % 2 * 16 + 4 * j ^ row % 8 * 4));
            all += (four[0] + four[1]) + (four[2] + four[3]);
        }
        all += __shfl_xor_sync(FULL_WARP, all, 1);
        if (lane % 2 == 0) row_sums[(u64)row * ((a.n + COLUMNS - 1) / COLUMNS)] = all;
    }

    // Writes the sums of a warpgroup's rows.
    __device__ void add_up() {
        u32 group = warp / 4, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
        float* own = side + warp * COLUMNS + lane * 8;
        const float low[4] = {sums[0], sums[1], sums[2], sums[3]}, high[4] = {sums[4], sums[5], sums[6], sums[7]};
        write(own, low);
        write(own + 4, high);
        wait_at(1 + GROUPS + group, 128);
        const float* all = side + 4 * group * COLUMNS + 2 * thread;
        float first = 0, second = 0;
#pragma unroll
        for (u32 w = 0; w < 4; w++) first += all[w * COLUMNS], second += all[w * COLUMNS + 1];
        float* to = a.partial + (u64)piece * a.n + column + 2 * thread;
        to[0] = first;
        to[1] = second;
    }
};

// The position of the stages, the next stage, and the phase of its barriers.
template <Then THEN>
struct Stages {
    bf16* first;
    u64* barriers;
    u32 now = 0, phase = 0;

    __device__ bf16* left() const { return first + now * STAGE<THEN>; }
    __device__ bf16* right() const { return left() + LEFT; }
    __device__ u64* full() const { return barriers + 2 * now; }
    __device__ u64* empty() const { return full() + 1; }
    // The barrier for releasing the previous stage.
    __device__ u64* used() const { return barriers + 2 * (now > 0 ? now - 1 : STAGES<THEN> - 1) + 1; }
    __device__ void advance() {
        if (++now < STAGES<THEN>) return;
        now = 0;
        phase ^= 1;
    }
};

template <bool NN, Then THEN>
__device__ inline void fetch_all(const WarpgroupProductArgs& a, Stages<THEN> stages) {
    TilesOf<THEN> tiles(a);
    for (u32 t = blockIdx.x; t < tiles.count(); t += gridDim.x) {
        u32 row = tiles.row(t), column = tiles.column(t);
        for (u32 k = 0; k < a.k; k += DEEP, stages.advance()) {
            wait_for_phase(stages.empty(), stages.phase ^ 1);
            u64* full = stages.full();
            arrive_for_bytes(full, STAGE<THEN> * sizeof(bf16));
            copy_tile(stages.left(), a.left, full, k, row);
            if constexpr (NN) {
                for (u32 p = 0; p < PANELS<THEN>; p++)
                    copy_tile(stages.right() + p * DEEP * DEEP, a.right, full, column + p * DEEP, k);
            } else {
                copy_tile(stages.right(), a.right, full, k, column);
            }
        }
    }
}

template <bool NN, Then THEN>
__device__ inline void multiply_all(const WarpgroupProductArgs& a, Stages<THEN> stages, Behind<THEN> behind) {
    u32 group = of_warp(threadIdx.x / 128);
    TilesOf<THEN> tiles(a);
    // Each turn is a barrier at which its warpgroup waits, and at which the other one arrives.
    u32 own_turn = 1 + group, other_turn = 2 - group;
    typename Behind<THEN>::Sums sums;
    if (group == 1) arrive_at(other_turn, 256);
    behind.ask(tiles, blockIdx.x);
    for (u32 t = blockIdx.x; t < tiles.count(); t += gridDim.x) {
        bool used = false;
        u32 row = tiles.row(t), column = tiles.column(t);
        behind.begin(sums, row, column);
        behind.ask(tiles, t + gridDim.x);
        auto step = [&](u32 k, auto odd) {
            if (k < SLICES) behind.bring(k);
            // All lanes must take the same branch.
            if (__ballot_sync(FULL_WARP, phase_over(stages.full(), stages.phase)) != FULL_WARP) {
                // The fetching thread may be waiting for the previous stage.
                if (used) {
                    await_products<0>();
                    arrive_together(stages.used());
                    used = false;
                }
                wait_for_phase(stages.full(), stages.phase);
            }
            wait_at(own_turn, 256);
            begin_products();
            Matrix left = Matrix(stages.left()).row(64 * group), right = Matrix(stages.right());
#pragma unroll
            for (u32 q = 0; q < DEEP; q += 16) {
                if constexpr (NN)
                    multiply_group_by_columns(sums, left, q, right.row(q), DEEP * DEEP, !SUMMED<THEN> || k || q);
                else
                    multiply_group_by_rows(sums, left, right, q, !SUMMED<THEN> || k || q);
            }
            end_products();
            arrive_at(other_turn, 256);
            if (used) {
                await_products<1>();
                arrive_together(stages.used());
            }
            used = true;
            stages.advance();
            if (k < SLICES) behind.template finish<odd.value>(k);
        };
        u32 steps = a.k / DEEP;
        if constexpr (SUMMED<THEN>) {
#pragma unroll 1
            for (u32 k = 0; k < steps; k += 2) {
                step(k, Count<0>());
                if (k + 1 < steps) step(k + 1, Count<1>());
            }
        } else {
#pragma unroll 1
            for (u32 k = 0; k < steps; k++) step(k, Count<0>());
        }
        wait_for_products<0>(sums);
        arrive_together(stages.used());
        if constexpr (THEN == TURNED) behind.turn(sums, column);
        behind.take(sums, row, column);
    }
    // The other warpgroup's last turn.
    if (group == 0) wait_at(own_turn, 256);
    behind.finish_all();
}

}  // namespace

#endif

// One block on each multiprocessor.
template <bool NN, Then THEN>
__device__ void warpgroup_product(const WarpgroupProductArgs& a) {
#ifdef WARPGROUPS
    LAUNCH_SHARED(shared, Room<THEN>::BYTES);
    unsigned char* pool = held(shared);
    Stages<THEN> stages = {(bf16*)pool, (u64*)(pool + Room<THEN>::BARRIERS)};
    float* side = (float*)(pool + Room<THEN>::SIDE);
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES<THEN>; stage++) {
            start_phases(stages.barriers + 2 * stage, 1);
            start_phases(stages.barriers + 2 * stage + 1, GROUPS * ARRIVALS_OF_A_GROUP);
        }
        show_phases();
    }
    if constexpr (BIASED<THEN>)
        for (u32 i = threadIdx.x; i < a.n; i += blockDim.x) side[i] = a.bias ? load(a.bias[i]) : 0.0f;
    __syncthreads();
    if (threadIdx.x < 128 * GROUPS) {
        take_registers<232>();
        multiply_all<NN, THEN>(a, stages, Behind<THEN>(a, (bf16*)(pool + Room<THEN>::OUT), side));
    } else {
        give_registers<40>();
        if (threadIdx.x == 128 * GROUPS) fetch_all<NN, THEN>(a, stages);
    }
#else
    __trap();
#endif
}

EXPORT_MANY(warpgroup_product_nt, WarpgroupProductArgs, 384, 1, warpgroup_product<false, STORE>)
EXPORT_MANY(warpgroup_product_nt_turned, WarpgroupProductArgs, 384, 1, warpgroup_product<false, TURNED>)
EXPORT_MANY(warpgroup_product_nt_gelu, WarpgroupProductArgs, 384, 1, warpgroup_product<false, GELU>)
EXPORT_MANY(warpgroup_product_nt_powers, WarpgroupProductArgs, 384, 1, warpgroup_product<false, POWERS>)
EXPORT_MANY(warpgroup_product_nt_capped, WarpgroupProductArgs, 384, 1, warpgroup_product<false, CAPPED_POWERS>)
EXPORT_MANY(warpgroup_product_nn, WarpgroupProductArgs, 384, 1, warpgroup_product<true, STORE>)
EXPORT_MANY(warpgroup_product_nn_gelu_grad, WarpgroupProductArgs, 384, 1, warpgroup_product<true, GELU_GRAD>)
EXPORT_MANY(warpgroup_product_nn_gelu_grad_again, WarpgroupProductArgs, 384, 1, warpgroup_product<true, GELU_GRAD_AGAIN>)
