// An 8-bit copy of a tensor, and the tensor's largest magnitude.
#include "../turned.cuh"

struct QuantiseArgs {
    const void* x;
    unsigned char* codes;       // or null
    unsigned char* transposed;  // [columns, rows]
    const float* scale;
    float* amax;
    u64 count;
    u32 rows, columns;
    u32 wide;  // whether runs of 16 values lie within a row, and all begin at multiples of 16 bytes
};

// Converts `RUN` values to codes; returns the largest magnitude.
template <class T, class F>
__device__ inline float convert_run(u32 (&codes)[RUN / 4], const T* from, float scale) {
    float x[RUN], largest = 0;
    read<RUN>(x, from);
#pragma unroll
    for (u32 i = 0; i < RUN; i++) largest = fmaxf(largest, finite_magnitude(x[i]));
    codes_of_all<F>(codes, x, scale);
    return largest;
}

// Just enough blocks to keep the memory busy, each with several runs, so that few of them update `amax`.
template <class T, class F>
__device__ void quantise(const QuantiseArgs& a) {
    const T* x = (const T*)a.x;
    float scale = *a.scale, seen = seen_by_first(a.amax), largest = 0;
    u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
    u64 runs = a.wide ? a.count / RUN : 0;
#pragma unroll 2
    for (u64 i = first; i < runs; i += step) {
        u32 codes[RUN / 4];
        largest = fmaxf(largest, convert_run<T, F>(codes, x + RUN * i, scale));
        put(a.codes + RUN * i, codes);
    }
    for (u64 i = RUN * runs + first; i < a.count; i += step) {
        float value = load(x[i]);
        largest = fmaxf(largest, finite_magnitude(value));
        a.codes[i] = codes_of<F>(scaled(value, scale), 0, 0, 0) & 0xffu;
    }
    note_largest(a.amax, largest, seen);
}

// The transposed copy, with or without the plain one.
template <class T, class F>
__device__ void quantise_turned(const QuantiseArgs& a) {
    __shared__ CodeTile tile;
    const T* x = (const T*)a.x;
    float scale = *a.scale, seen = seen_by_first(a.amax), largest = 0;
    u32 across = (a.columns + TILE - 1) / TILE;
    u32 row0 = blockIdx.x / across * TILE, column0 = blockIdx.x % across * TILE;
    u32 own = threadIdx.x / 4, run = threadIdx.x % 4 * RUN;
    u32 row = row0 + own, column = column0 + run;
    u32 codes[RUN / 4] = {};
    if (row < a.rows && column < a.columns) {
        u64 at = (u64)row * a.columns + column;
        if (a.wide) {
            largest = convert_run<T, F>(codes, x + at, scale);
            if (a.codes) put(a.codes + at, codes);
        } else {
            for (u32 i = 0; i < RUN && column + i < a.columns; i++) {
                float value = load(x[at + i]);
                largest = fmaxf(largest, finite_magnitude(value));
                u32 code = codes_of<F>(scaled(value, scale), 0, 0, 0) & 0xffu;
                if (a.codes) a.codes[at + i] = code;
                codes[i / 4] |= code << 8 * (i % 4);
            }
        }
    }
    tile.take(own, run, codes);
    __syncthreads();
    if (threadIdx.x < WRITERS)
        tile.turn(threadIdx.x, [&](u32 c, u32 r, const u32(&turned)[RUN / 4]) {
            u32 row = row0 + r, column = column0 + c;
            if (row >= a.rows || column >= a.columns) return;
            unsigned char* to = a.transposed + (u64)column * a.rows + row;
            if (a.wide)
                put(to, turned);
            else
                for (u32 i = 0; i < RUN && row + i < a.rows; i++) to[i] = turned[i / 4] >> 8 * (i % 4) & 0xffu;
        });
    note_largest(a.amax, largest, seen);
}

#define QUANTISE(name, T)                                                              \
    EXPORT(quantise_e4m3_##name, QuantiseArgs, 256, quantise<T, E4m3>)                 \
    EXPORT(quantise_e5m2_##name, QuantiseArgs, 256, quantise<T, E5m2>)                 \
    EXPORT(quantise_turned_e4m3_##name, QuantiseArgs, 256, quantise_turned<T, E4m3>)   \
    EXPORT(quantise_turned_e5m2_##name, QuantiseArgs, 256, quantise_turned<T, E5m2>)

QUANTISE(f32, float)
QUANTISE(bf16, bf16)
