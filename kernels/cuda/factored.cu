// Updates in place with a factored second moment: of a decoder, whose gradient exists tile by tile, and of the rows of
// an embedding that a batch used. A step whose loss is not finite changes nothing, and a row, a bias or a column whose own
// squares are not finite stays as it is.
#include "columns.cuh"
#include "control.cuh"

constexpr float EPS = 1e-12f;

struct FactoredArgs {
    const float* out_grad;  // [rows, vocabulary]
    void* slab;             // [rows, count]: the tile's columns of it
    const float* tile;      // [count, columns]: the gradient of rows `first` on
    float* weight;          // [vocabulary, columns]
    float* bias;            // [vocabulary]
    float* row_moment;      // [2, vocabulary]: of the rows, of the biases
    float* column_moment;   // [2, columns]: the moments, their sums under way
    float* bias_grad;       // [vocabulary]
    float* partial;         // [pieces, columns]
    float* mean;            // of the column moments
    const Settings* settings;
    const Results* results;
    u32 rows, columns, vocabulary, first, count;
    u32 piece, pieces;      // of the tile's rows
    u32 wide;               // whether rows begin at multiples of 16 bytes
    float beta2, rate;

    __device__ bool counts() const { return finite(results->loss); }
};

// One block.
__device__ void column_mean(const FactoredArgs& a) {
    float sum = 0;
    for (u32 d = threadIdx.x; d < a.columns; d += 1024) sum += a.column_moment[d];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *a.mean = sum / (float)a.columns;
}

EXPORT(factored_mean, FactoredArgs, 1024, column_mean)

template <class T, int N>
__device__ inline void copy_columns(const FactoredArgs& a) {
    const float* from = a.out_grad + (u64)blockIdx.x * a.vocabulary + a.first;
    T* to = (T*)a.slab + (u64)blockIdx.x * a.count;
    for (u32 i = threadIdx.x * N; i < a.count; i += 256 * N) {
        float x[N];
        read(x, from + i);
        write(to + i, x);
    }
}

// Columns of the logits' gradient as a matrix of their own, which a product can read. Grid (rows).
template <class T>
__device__ void copy_slab(const FactoredArgs& a) {
    a.wide ? copy_columns<T, WIDE<T>>(a) : copy_columns<T, 1>(a);
}

EXPORT_BOTH(factored_slab, FactoredArgs, 256, copy_slab)

template <int N>
__device__ inline void square_sums(const FactoredArgs& a) {
    u32 column = (blockIdx.x * 32 + threadIdx.x % 32) * N, end = min(a.count, (blockIdx.y + 1) * a.piece);
    float sums[N] = {};
    if (column < a.columns)
#pragma unroll 4
        for (u32 row = blockIdx.y * a.piece + threadIdx.x / 32; row < end; row += 8) {
            float g[N];
            read(g, a.tile + (u64)row * a.columns + column);
#pragma unroll
            for (int i = 0; i < N; i++) sums[i] += g[i] * g[i];
        }
    write_piece<1, N>(sums, a.partial, a.columns);
}

// Grid (columns / 32 N, pieces).
__device__ void squares(const FactoredArgs& a) { a.wide ? square_sums<4>(a) : square_sums<1>(a); }

EXPORT(factored_squares, FactoredArgs, 256, squares)

// The tile's sums, added to those before; behind the last tile the columns' moments. Grid (columns / 32).
__device__ void add_squares(const FactoredArgs& a) {
    u32 column = blockIdx.x * 32 + threadIdx.x % 32;
    float total[1] = {};
    if (column < a.columns)
        for (u32 p = threadIdx.x / 32; p < a.pieces; p += 32) total[0] += a.partial[(u64)p * a.columns + column];
    add_rows<32>(total, [&](u32, u32 x, float sum) {
        u32 d = blockIdx.x * 32 + x;
        if (d >= a.columns || !a.counts()) return;
        float& under_way = a.column_moment[a.columns + d];
        under_way = a.first == 0 ? sum : under_way + sum;
        if (a.first + a.count == a.vocabulary && finite(under_way))
            a.column_moment[d] =
                a.beta2 * a.column_moment[d] + (1.0f - a.beta2) * (under_way / (float)a.vocabulary);
    });
}

EXPORT(factored_columns, FactoredArgs, 1024, add_squares)

// By one thread.
__device__ inline void update_bias(const FactoredArgs& a, u32 v) {
    float grad = a.bias_grad[v], squared = grad * grad, &moment = a.row_moment[a.vocabulary + v];
    if (!finite(squared)) return;
    moment = a.beta2 * moment + (1.0f - a.beta2) * squared;
    a.bias[v] -= a.settings->learning_rate * grad / (sqrtf(moment / a.settings->correction2) + EPS);
}

// Vectors of N of a row that a thread keeps in registers.
constexpr u32 HELD = 8;

// A block a row of the tile. Rows of at most 256 HELD N columns are read once, with their weights, and held.
template <int N, bool HOLDS>
__device__ inline void update_row(const FactoredArgs& a) {
    if (!a.counts()) return;
    u32 v = a.first + blockIdx.x;
    const float* from = a.tile + (u64)blockIdx.x * a.columns;
    float* weight = a.weight + (u64)v * a.columns;
    float squares = 0, lr = a.settings->learning_rate, correction = a.settings->correction2, mean = *a.mean;
    constexpr u32 KEPT = HOLDS ? HELD : 1;
    float g[KEPT][N], w[KEPT][N];
    // Calls `visit(d, k)`: vector k lies at column d.
    auto each = [&](auto visit) {
        if constexpr (HOLDS) {
#pragma unroll
            for (u32 k = 0; k < KEPT; k++)
                if (u32 d = (k * 256 + threadIdx.x) * N; d < a.columns) visit(d, k);
        } else {
            for (u32 d = threadIdx.x * N; d < a.columns; d += 256 * N) visit(d, 0u);
        }
    };
    if constexpr (HOLDS)
        each([&](u32 d, u32 k) { read(g[k], from + d), read(w[k], weight + d); });
    each([&](u32 d, u32 k) {
        if constexpr (!HOLDS) read(g[k], from + d);
#pragma unroll
        for (int i = 0; i < N; i++) squares += g[k][i] * g[k][i];
    });
    squares = block_sum(squares);
    if (threadIdx.x == 0) update_bias(a, v);
    if (!finite(squares)) return;
    float moment = a.beta2 * a.row_moment[v] + (1.0f - a.beta2) * (squares / (float)a.columns);
    float scale = moment / correction, inverse = mean > 0 ? 1.0f / mean : 0.0f;
    auto scaled = [&](u32 d, float(&x)[N]) {
        float column[N];
        read(column, a.column_moment + d);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] /= sqrtf(scale * (mean > 0 ? column[i] * inverse : 1.0f)) + EPS;
    };
    squares = 0;
    each([&](u32 d, u32 k) {
        if constexpr (!HOLDS) read(g[k], from + d);
        scaled(d, g[k]);
#pragma unroll
        for (int i = 0; i < N; i++) squares += g[k][i] * g[k][i];
    });
    float rms = sqrtf(block_sum(squares) / (float)a.columns), factor = lr * a.rate * (rms > 1 ? 1.0f / rms : 1.0f);
    each([&](u32 d, u32 k) {
        if constexpr (!HOLDS) {
            read(g[k], from + d);
            scaled(d, g[k]);
            read(w[k], weight + d);
        }
#pragma unroll
        for (int i = 0; i < N; i++) w[k][i] -= factor * g[k][i];
        write(weight + d, w[k]);
    });
    if (threadIdx.x == 0) a.row_moment[v] = moment;
}

__device__ void update_rows(const FactoredArgs& a) {
    if (a.wide && a.columns <= 256 * HELD * 4) update_row<4, true>(a);
    else if (a.wide) update_row<4, false>(a);
    else update_row<1, false>(a);
}

EXPORT_MANY(factored_rows, FactoredArgs, 256, 3, update_rows)

struct EmbedUpdateArgs {
    const u32* ids;         // [rows]
    const u32* sorted;      // [rows]: the rows by their ids, those of an id in their order
    float* x_grad;          // [rows, columns]; the first row of an id becomes the sum of all
    float* table;           // [vocabulary, columns]
    float* moment;          // [vocabulary, 2]
    const Settings* settings;
    const Results* results;
    u32 rows, columns, vocabulary;
    float beta2;
};

// A block a place, at work where an id begins.
__device__ void move_rows(const EmbedUpdateArgs& a) {
    u32 place = blockIdx.x, first = a.sorted[place], id = a.ids[first];
    if (id >= a.vocabulary || !finite(a.results->loss) || (place > 0 && a.ids[a.sorted[place - 1]] == id)) return;
    __shared__ u32 end;
    if (threadIdx.x == 0) {
        u32 to = place + 1;
        while (to < a.rows && a.ids[a.sorted[to]] == id) to++;
        end = to;
    }
    __syncthreads();
    float* own = a.x_grad + (u64)first * a.columns;
    float squares = 0;
    for (u32 d = threadIdx.x; d < a.columns; d += 256) {
        float g = own[d];
#pragma unroll 8
        for (u32 at = place + 1; at < end; at++) g += a.x_grad[(u64)a.sorted[at] * a.columns + d];
        own[d] = g;
        squares += g * g;
    }
    squares = block_sum(squares);
    if (!finite(squares)) return;
    float before = a.moment[2 * id], uses = a.moment[2 * id + 1] + 1.0f;
    float moment = a.beta2 * before + (1.0f - a.beta2) * (squares / (float)a.columns);
    // As many digits as there are: at first the power is nearly 1.
    float correction = 1.0f - (float)pow((double)a.beta2, (double)uses);
    float root = 1.0f / (sqrtf(moment / correction) + EPS);
    float rms = sqrtf(squares * root * root / (float)a.columns);
    float factor = a.settings->learning_rate * root * (rms > 1 ? 1.0f / rms : 1.0f);
    for (u32 d = threadIdx.x; d < a.columns; d += 256) a.table[(u64)id * a.columns + d] -= factor * own[d];
    __syncthreads();
    if (threadIdx.x == 0) a.moment[2 * id] = moment, a.moment[2 * id + 1] = uses;
}

EXPORT(embed_update, EmbedUpdateArgs, 256, move_rows)
