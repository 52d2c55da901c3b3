// The factors of the rows of orthogonalised matrices: first the sums of their squares, then v and the factors.
#include "cut.cuh"

struct RowFactorsArgs {
    const void* x;   // [matrices, m, n], m <= n
    float* squares;  // of the whole parameter: v, one number for each row
    float* factors;  // [matrices, rows]: the sums, then the factors
    const Results* results;
    CutArgs cut;  // the positions of v: matrices of one column
    u32 m, n;     // a row of the parameter is a column of x where it has n of them and not m
    float share;  // the weight of a new mean in v
    float floor;  // the least value of v in the division
};

// The rows and columns of x that a block of 256 threads sums.
constexpr u32 ROWS = 8, COLUMNS = TILE;

// One warp for each row. Grid (pieces of m, matrices).
template <class T>
__device__ void sum_rows(const RowFactorsArgs& a) {
    u32 r = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (r >= a.m) return;
    const T* x = (const T*)a.x + ((u64)blockIdx.y * a.m + r) * a.n;
    constexpr u32 N = WIDE<T>;
    float sum = 0;
    // 16 bytes at a time where the row begins at a multiple of 16 bytes.
    u32 middle = (u64)x % 16 == 0 ? a.n - a.n % N : 0;
#pragma unroll 4
    for (u32 c = N * lane; c < middle; c += N * 32) {
        float some[N];
        read(some, x + c);
#pragma unroll
        for (u32 i = 0; i < N; i++) sum += some[i] * some[i];
    }
    for (u32 c = middle + lane; c < a.n; c += 32) sum += load(x[c]) * load(x[c]);
    sum = warp_sum(sum);
    if (lane == 0) a.factors[(u64)blockIdx.y * a.m + r] = sum;
}

EXPORT_BOTH(row_factors_rows, RowFactorsArgs, 256, sum_rows)

// Eight sums for each column, then those in order. Grid (pieces of n, matrices).
template <class T>
__device__ void sum_columns(const RowFactorsArgs& a) {
    __shared__ float sums[ROWS][COLUMNS];
    u32 first = blockIdx.x * COLUMNS, y = threadIdx.x / 32;
    const T* x = (const T*)a.x + (u64)blockIdx.y * a.m * a.n + first;
    for (u32 c = threadIdx.x % 32; c < COLUMNS; c += 32) {
        float sum = 0;
        if (first + c < a.n) {
#pragma unroll 8
            for (u32 r = y; r < a.m; r += ROWS) {
                float one = load(x[(u64)r * a.n + c]);
                sum += one * one;
            }
        }
        sums[y][c] = sum;
    }
    __syncthreads();
    u32 c = threadIdx.x;
    if (c >= COLUMNS || first + c >= a.n) return;
    float sum = 0;
    for (u32 i = 0; i < ROWS; i++) sum += sums[i][c];
    a.factors[(u64)blockIdx.y * a.n + first + c] = sum;
}

EXPORT_BOTH(row_factors_columns, RowFactorsArgs, 256, sum_columns)

// Grid (1, matrices). A thread processes the same rows both times.
__device__ void finish(const RowFactorsArgs& a) {
    u32 rows = a.cut.rows;
    float* factors = a.factors + (u64)blockIdx.y * rows;
    bool skipped = !finite(sqrtf(a.results->squared_norm)) || !finite(a.results->loss);
    float columns = (float)(rows == a.m ? a.n : a.m), before = 0, after = 0;
    for (u32 r = threadIdx.x; r < rows && !skipped; r += 256) {
        float sum = factors[r], *v = a.squares + row_of(a.cut, blockIdx.y, r);
        float moved = *v + (sum / columns - *v) * a.share, divisor = fmaxf(moved, a.floor);
        *v = moved;
        before += sum;
        after += sum / divisor;
        factors[r] = divisor;
    }
    before = block_sum(before);
    after = block_sum(after);
    float squared = after > 0.0f ? before / after : 0.0f;
    for (u32 r = threadIdx.x; r < rows; r += 256) factors[r] = skipped ? 0.0f : sqrtf(squared / factors[r]);
}

EXPORT(row_factors_finish, RowFactorsArgs, 256, finish)
