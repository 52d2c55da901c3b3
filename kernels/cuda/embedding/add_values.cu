// Adds rows of a value table to the values of attention, and computes the gradients of both.
#include "../attention/heads.cuh"
#include "../vector.cuh"

struct AddValuesArgs {
    const u32* ids;     // [rows]
    const void* table;  // [vocabulary, keys * size]
    const void* gain;   // [1]
    void* qkv;          // [rows, width]; in the gradient: the gradient of queries, keys and values
    void* out;          // [rows, keys * size]; in the gradient: the gain times the values' part of qkv
    float* partial;     // [pieces]; in the gradient: the partial sums of the gain's gradient
    u32 rows, piece, vocabulary;
    u32 wide;  // whether all of them have whole vectors of 16 bytes
    Heads heads;
};

// One warp for each row, `N` neighbouring values for each lane: calls `visit(index in a table's row, index in the
// projection's)`.
template <int N, class Visit>
__device__ inline void each_value(const AddValuesArgs& a, Visit visit) {
    u32 columns = a.heads.keys * a.heads.size;
    for (u32 c = threadIdx.x % 32 * N; c < columns; c += 32 * N) {
        u32 head = c / a.heads.size;
        visit(c, a.heads.value(head) + c - head * a.heads.size);
    }
}

// An id beyond the vocabulary gives NaN, which the loss then shows.
template <class T, int N>
__device__ inline void add_row(const AddValuesArgs& a) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= a.rows) return;
    u32 id = a.ids[row];
    float gain = id < a.vocabulary ? load(*(const T*)a.gain) : __uint_as_float(0x7fc00000u);
    const T* from = (const T*)a.table + (u64)(id < a.vocabulary ? id : 0) * a.heads.keys * a.heads.size;
    T* to = (T*)a.qkv + (u64)row * a.heads.width();
    each_value<N>(a, [&](u32 c, u32 place) {
        float x[N], v[N];
        read(x, from + c);
        read(v, to + place);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] += gain * x[i];
        write(to + place, v);
    });
}

// Grid rows / 8.
template <class T>
__device__ void add_values(const AddValuesArgs& a) {
    a.wide ? add_row<T, WIDE<T>>(a) : add_row<T, 1>(a);
}

// One block for each piece of the rows.
template <class T, int N>
__device__ inline void take_rows(const AddValuesArgs& a) {
    float gain = load(*(const T*)a.gain), sum = 0;
    u32 end = min(a.rows, (blockIdx.x + 1) * a.piece), columns = a.heads.keys * a.heads.size;
    for (u32 row = blockIdx.x * a.piece + threadIdx.x / 32; row < end; row += 8) {
        const T* table = (const T*)a.table + (u64)min(a.ids[row], a.vocabulary - 1) * columns;
        const T* from = (const T*)a.qkv + (u64)row * a.heads.width();
        T* to = (T*)a.out + (u64)row * columns;
        each_value<N>(a, [&](u32 c, u32 place) {
            float x[N], d[N];
            read(x, table + c);
            read(d, from + place);
#pragma unroll
            for (int i = 0; i < N; i++) sum += d[i] * x[i], d[i] *= gain;
            write(to + c, d);
        });
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

template <class T>
__device__ void add_values_grad(const AddValuesArgs& a) {
    a.wide ? take_rows<T, WIDE<T>>(a) : take_rows<T, 1>(a);
}

EXPORT_BOTH(add_values, AddValuesArgs, 256, add_values)
EXPORT_BOTH(add_values_grad, AddValuesArgs, 256, add_values_grad)
