// AdamW of a matrix with a factored second moment, one factor for the row and one for the column. Three passes: sums of
// squares, the factors, the update. A norm or a loss that is not finite leaves everything unchanged except scratch.
#include "../product/columns.cuh"
#include "moved.cuh"

struct AdamWFactoredArgs {
    MovedArgs moved;        // of the matrix, followed by padding
    void* first;            // [count]
    float* sides;           // [rows + columns]: the moments of rows, then of columns
    float* column_sums;     // [bands, columns]
    float* row_sums;        // [pieces, rows]
    float* inverse;         // 1 / mean of the rows' moments
    u32 rows, columns;
    u32 band, bands;        // rows of a band, and the number of bands
    u32 pieces;             // of a row
    float beta1, beta2, eps;

    __device__ bool counts() const {
        return finite(sqrtf(moved.results->squared_norm)) && finite(moved.results->loss);
    }

    // The moment, from its old value `before` and the sum of `count` squared gradients.
    __device__ float moment(float before, float sum, u32 count) const {
        float clip = fminf(moved.settings->clip / (sqrtf(moved.results->squared_norm) + 1e-6f), 1.0f);
        return beta2 * before + (1.0f - beta2) * (sum * (clip * clip) / (float)count);
    }
};

// Columns of a piece, columns of it for each lane, and warps of a block.
constexpr u32 PIECE = 512, HELD = PIECE / 32, WARPS = 8;

// One block for each piece of a band's rows; a warp takes one row at a time. Grid (bands, pieces).
template <class T>
__device__ void sum_squares(const AdamWFactoredArgs& a) {
    u32 lane = threadIdx.x % 32, first = blockIdx.y * PIECE;
    u32 begin = blockIdx.x * a.band, end = min(begin + a.band, a.rows);
    float sums[HELD] = {};
    for (u32 row = begin + threadIdx.x / 32; row < end; row += WARPS) {
        const T* g = (const T*)a.moved.gradient + (u64)row * a.columns;
        float own = 0;
#pragma unroll
        for (u32 k = 0; k < HELD; k++) {
            u32 column = first + 32 * k + lane;
            float x = column < a.columns ? load(g[column]) : 0.0f;
            own += x * x;
            sums[k] += x * x;
        }
        own = warp_sum(own);
        if (lane == 0) a.row_sums[(u64)blockIdx.y * a.rows + row] = own;
    }
    add_rows<WARPS>(sums, [&](u32 k, u32 x, float total) {
        u32 column = first + 32 * k + x;
        if (column < a.columns) a.column_sums[(u64)blockIdx.x * a.columns + column] = total;
    });
}

EXPORT_BOTH(adamw_factored_sums, AdamWFactoredArgs, 256, sum_squares)

// The first block updates all row moments, each other block 32 column moments. Grid (1 + columns / 32).
__device__ void move_sides(const AdamWFactoredArgs& a) {
    if (!a.counts()) return;
    if (blockIdx.x == 0) {
        float all = 0;
        for (u32 row = threadIdx.x; row < a.rows; row += 1024) {
            float sum = 0;
            for (u32 piece = 0; piece < a.pieces; piece++) sum += a.row_sums[(u64)piece * a.rows + row];
            float moment = a.moment(a.sides[row], sum, a.columns);
            a.sides[row] = moment;
            all += moment;
        }
        all = block_sum(all);
        if (threadIdx.x == 0) *a.inverse = all > 0.0f ? (float)a.rows / all : 0.0f;
        return;
    }
    u32 first = (blockIdx.x - 1) * 32, column = first + threadIdx.x % 32;
    float total[1] = {};
    if (column < a.columns)
#pragma unroll 4
        for (u32 band = threadIdx.x / 32; band < a.bands; band += 32)
            total[0] += a.column_sums[(u64)band * a.columns + column];
    add_rows<32>(total, [&](u32, u32 x, float sum) {
        float* moment = a.sides + a.rows + first + x;
        if (first + x < a.columns) *moment = a.moment(*moment, sum, a.rows);
    });
}

EXPORT(adamw_factored_sides, AdamWFactoredArgs, 1024, move_sides)

// For weights `T` and gradients `G`, with moments `M`.
template <class T, class G, class M, int N>
__device__ inline void update(const AdamWFactoredArgs& a, u64 at, float clip, bool has) {
    const Settings& settings = *a.moved.settings;
    float rate = settings.learning_rate * a.moved.rate, step = rate / settings.corrections[a.moved.group][0];
    float root = 1.0f / sqrtf(settings.corrections[a.moved.group][1]), keep = 1.0f - rate * (a.moved.decay * settings.decay);
    u32 row = (u32)(at / a.columns), column = (u32)(at - (u64)row * a.columns);
    const float* columns = a.sides + a.rows;
    // The elements after the matrix are padding.
    auto side = [&] { return row < a.rows ? a.sides[row] * *a.inverse : 0.0f; };
    float of_row = side(), m[N];
    M::read(m, a.first, at, has);
    if (has) move<T, G, N>(a.moved, at, clip, [&](int i, float w, float g) {
        if (row >= a.rows) return w;
        m[i] = a.beta1 * m[i] + (1.0f - a.beta1) * g;
        float v = of_row * columns[column];
        if (++column == a.columns) {
            column = 0, row++;
            of_row = side();
        }
        return w * keep - step * m[i] / (sqrtf(v) * root + a.eps);
    });
    M::write(a.first, at, m, has);
}

template <class T, class G, bool CODED>
__device__ void adamw_factored(const AdamWFactoredArgs& a) {
    each_moved<T, CODED>(a.moved, [&](auto n, u64 at, float clip, bool has) {
        if constexpr (CODED) update<T, G, Moments8, n.value>(a, at, clip, has);
        else update<T, G, Plain, n.value>(a, at, clip, has);
    });
}

EXPORT_RULE(adamw_factored, AdamWFactoredArgs)
