// In-place updates with a factored second moment: of a decoder, whose gradient exists tile by tile, and of the rows of
// an embedding that a batch used. A step whose loss is not finite changes nothing, and a row, a bias or a column whose
// own squares are not finite stays unchanged.
#include "../product/columns.cuh"
#include "../control.cuh"

constexpr float EPS = 1e-12f;

struct FactoredArgs {
    const float* out_grad;  // [rows, vocabulary]
    void* slab;             // [rows, count]: the tile's columns of out_grad
    float* tile;            // [count, columns]: the gradient of rows `first` on; then a block's sums in its first row
    float* weight;          // [vocabulary, columns]
    float* bias;            // [vocabulary]
    float* row_moment;      // [2, vocabulary]: the moments of the rows, and of the biases
    float* column_moment;   // [2, columns]: the moments, and their partial sums
    float* bias_grad;       // [vocabulary]
    float* mean;            // of the column moments
    const Settings* settings;
    const Results* results;
    u32 rows, columns, vocabulary, first, count;
    u32 piece;              // rows of the tile that each block takes
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

// Copies columns of the logits' gradient to a separate matrix, which a matrix multiplication can read. Grid (rows).
template <class T>
__device__ void copy_slab(const FactoredArgs& a) {
    a.wide ? copy_columns<T, WIDE<T>>(a) : copy_columns<T, 1>(a);
}

EXPORT_BOTH(factored_slab, FactoredArgs, 256, copy_slab)

__device__ inline void update_bias(const FactoredArgs& a, u32 v) {
    float grad = a.bias_grad[v], squared = grad * grad, &moment = a.row_moment[a.vocabulary + v];
    if (!finite(squared)) return;
    moment = a.beta2 * moment + (1.0f - a.beta2) * squared;
    a.bias[v] -= a.settings->learning_rate * grad / (sqrtf(moment / a.settings->factored) + EPS);
}

// Threads of a row; the vectors of four elements that each thread has in registers if the row is short enough.
constexpr u32 THREADS = 512, HELD = 4, MOST = THREADS * HELD * 4;

// A block takes some rows of the tile, one after the other, prefetching the next. Rows of at most MOST columns, and
// their weights, are read once and stay in registers.
template <int N, bool HOLDS>
__device__ inline void update_rows(const FactoredArgs& a, float* roots) {
    if (!a.counts()) return;
    u32 begin = blockIdx.x * a.piece, end = min(a.count, begin + a.piece);
    float lr = a.settings->learning_rate, correction = a.settings->factored, mean = *a.mean;
    float inverse = mean > 0 ? 1.0f / mean : 0.0f;
    constexpr u32 KEPT = HOLDS ? HELD : 1;
    float g[KEPT][N], w[KEPT][N], next_g[KEPT][N], next_w[KEPT][N], sums[KEPT][N] = {};
    // Calls `visit(d, k)`: vector k is at column d; the same thread has it in every row.
    auto each = [&](auto visit) {
        if constexpr (HOLDS) {
#pragma unroll
            for (u32 k = 0; k < KEPT; k++)
                if (u32 d = (k * THREADS + threadIdx.x) * N; d < a.columns) visit(d, k);
        } else {
            for (u32 d = threadIdx.x * N; d < a.columns; d += THREADS * N) visit(d, 0u);
        }
    };
    auto gradient = [&](u32 row) { return a.tile + (u64)row * a.columns; };
    auto weight = [&](u32 row) { return a.weight + (u64)(a.first + row) * a.columns; };
    auto ask = [&](u32 row) {
        if (HOLDS && row < end)
            each([&](u32 d, u32 k) { read(next_g[k], gradient(row) + d), read(next_w[k], weight(row) + d); });
    };
    // The divisor of a column's gradients, without the row's factor.
    auto root = [&](u32 d, float (&x)[N]) {
        read(x, a.column_moment + d);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = mean > 0 ? sqrtf(x[i] * inverse) : 1.0f;
    };
    ask(begin);
    for (u32 row = begin + threadIdx.x; row < end; row += THREADS) update_bias(a, a.first + row);
    if constexpr (HOLDS)
        each([&](u32 d, u32) {
            float x[N];
            root(d, x);
            write(roots + d, x);
        });
    for (u32 row = begin; row < end; row++) {
        if constexpr (HOLDS)
            each([&](u32, u32 k) {
#pragma unroll
                for (int i = 0; i < N; i++) g[k][i] = next_g[k][i], w[k][i] = next_w[k][i];
            });
        ask(row + 1);
        float moment = a.row_moment[a.first + row], squares = 0;
        each([&](u32 d, u32 k) {
            if constexpr (!HOLDS) read(g[k], gradient(row) + d);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float square = g[k][i] * g[k][i];
                squares += square;
                if constexpr (HOLDS) sums[k][i] += square;
            }
        });
        squares = block_sum(squares);
        if (!finite(squares)) continue;
        moment = a.beta2 * moment + (1.0f - a.beta2) * (squares / (float)a.columns);
        float own = sqrtf(moment / correction);
        auto scaled = [&](u32 d, float (&x)[N]) {
            float of[N];
            if constexpr (HOLDS) read(of, roots + d);
            else root(d, of);
#pragma unroll
            for (int i = 0; i < N; i++) x[i] *= reciprocal(own * of[i] + EPS);
        };
        squares = 0;
        each([&](u32 d, u32 k) {
            if constexpr (!HOLDS) read(g[k], gradient(row) + d);
            scaled(d, g[k]);
#pragma unroll
            for (int i = 0; i < N; i++) squares += g[k][i] * g[k][i];
        });
        float rms = sqrtf(block_sum(squares) / (float)a.columns), factor = lr * a.rate * (rms > 1 ? 1.0f / rms : 1.0f);
        each([&](u32 d, u32 k) {
            if constexpr (!HOLDS) {
                read(g[k], gradient(row) + d);
                scaled(d, g[k]);
                read(w[k], weight(row) + d);
            }
#pragma unroll
            for (int i = 0; i < N; i++) w[k][i] -= factor * g[k][i];
            write(weight(row) + d, w[k]);
        });
        if (threadIdx.x == 0) a.row_moment[a.first + row] = moment;
    }
    // The sums of squares, which overwrite the gradient: it is no longer needed.
    each([&](u32 d, u32 k) {
        float total[N] = {};
        if constexpr (HOLDS) {
#pragma unroll
            for (int i = 0; i < N; i++) total[i] = sums[k][i];
        } else {
            for (u32 row = begin; row < end; row++) {
                float x[N];
                read(x, gradient(row) + d);
#pragma unroll
                for (int i = 0; i < N; i++) total[i] += x[i] * x[i];
            }
        }
        write(gradient(begin) + d, total);
    });
}

// Grid (count / piece).
__device__ void rows_of_a_tile(const FactoredArgs& a) {
    alignas(16) __shared__ float roots[MOST];
    if (a.wide && a.columns <= MOST) update_rows<4, true>(a, roots);
    else if (a.wide) update_rows<4, false>(a, roots);
    else update_rows<1, false>(a, roots);
}

EXPORT_MANY(factored_rows, FactoredArgs, 512, 1, rows_of_a_tile)

// Adds the tile's sums to those of earlier tiles; after the last tile, updates the columns' moments. Grid (columns /
// 32).
__device__ void add_squares(const FactoredArgs& a) {
    u32 column = blockIdx.x * 32 + threadIdx.x % 32;
    float total[1] = {};
    if (column < a.columns)
#pragma unroll 4
        for (u32 row = threadIdx.x / 32 * a.piece; row < a.count; row += 32 * a.piece)
            total[0] += a.tile[(u64)row * a.columns + column];
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

struct EmbedUpdateArgs {
    const u32* ids;         // [rows]
    const u32* sorted;      // [rows]: the rows in the order of their ids, stable
    float* x_grad;          // [rows, columns]; the first row of each id is overwritten with the sum of the id's rows
    float* table;           // [vocabulary, columns]
    float* moment;          // [vocabulary, 2]
    const Settings* settings;
    const Results* results;
    u32 rows, columns, vocabulary;
    float beta2;
};

// One block for each sorted position, active where an id begins.
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
    // In f64: at first the power is nearly 1.
    float correction = 1.0f - (float)pow((double)a.beta2, (double)uses);
    float root = 1.0f / (sqrtf(moment / correction) + EPS);
    float rms = sqrtf(squares * root * root / (float)a.columns);
    float factor = a.settings->learning_rate * root * (rms > 1 ? 1.0f / rms : 1.0f);
    for (u32 d = threadIdx.x; d < a.columns; d += 256) a.table[(u64)id * a.columns + d] -= factor * own[d];
    __syncthreads();
    if (threadIdx.x == 0) a.moment[2 * id] = moment, a.moment[2 * id + 1] = uses;
}

EXPORT(embed_update, EmbedUpdateArgs, 256, move_rows)
