// The rotation of queries and keys, all rows in place.
#include "heads.cuh"
#include "../vector.cuh"

struct RotateArgs {
    void* rows;          // [count, width]: rotated in place
    const float* table;  // [positions, dims / 2, 2]: cosine and sine
    u64 count;           // rows times heads times vectors
    u32 dims, positions;
    u32 inverse;
    u32 vectors;         // vectors of half of a head's rotated elements
    u32 wide;            // whether a vector is 16 bytes, else one value
    Heads heads;
};

// Each thread rotates a vector of pairs: elements i and i + dims / 2 of a head.
template <class T, int N>
__device__ inline void rotate_pairs(const RotateArgs& a) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    u32 each = (a.heads.queries + a.heads.keys) * a.vectors;
    // A 32-bit division takes a quarter of the time.
    u64 row = a.count >> 32 ? i / each : (u32)i / each;
    u32 of_row = (u32)(i - row * each), head = of_row / a.vectors, first = of_row % a.vectors * N;
    u32 at = head < a.heads.queries ? a.heads.query(head) : a.heads.key(head - a.heads.queries);
    T* lows = (T*)a.rows + row * a.heads.width() + at + first;
    float low[N], high[N], angles[2 * N];
    read(low, lows);
    read(high, lows + a.dims / 2);
    const float* table = a.table + (u64)((u32)row % a.positions) * a.dims + 2 * first;
    if constexpr (N > 1) read(angles, table);
    else angles[0] = table[0], angles[1] = table[1];
#pragma unroll
    for (int e = 0; e < N; e++) {
        float cosine = angles[2 * e], sine = a.inverse ? -angles[2 * e + 1] : angles[2 * e + 1], before = low[e];
        low[e] = before * cosine - high[e] * sine;
        high[e] = high[e] * cosine + before * sine;
    }
    write(lows, low);
    write(lows + a.dims / 2, high);
}

template <class T>
__device__ void rotate(const RotateArgs& a) {
    a.wide ? rotate_pairs<T, WIDE<T>>(a) : rotate_pairs<T, 1>(a);
}

EXPORT_BOTH(rotate, RotateArgs, 256, rotate)
