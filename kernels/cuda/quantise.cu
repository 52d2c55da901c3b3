// A copy of a tensor in 8 bits, and the largest of its magnitudes.
#include "fp8.cuh"

struct QuantiseArgs {
    const void* x;
    unsigned char* codes;
    unsigned char* transposed;  // [columns, rows]
    const float* scale;
    float* amax;
    u64 count;
    u32 rows, columns;
    u32 wide;  // whether 16 values at a time lie within a row, and all begin at multiples of 16 bytes
};

// What a thread converts at a time: the codes are 16 bytes.
constexpr int RUN = 16;

// `RUN` values as codes; gives the largest magnitude.
template <class T, class F>
__device__ inline float convert_run(u32 (&codes)[RUN / 4], const T* from, float scale) {
    float x[RUN], largest = 0;
    read<RUN>(x, from);
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        largest = fmaxf(largest, finite_magnitude(x[i]));
        x[i] *= scale;
    }
#pragma unroll
    for (int i = 0; i < RUN / 4; i++) codes[i] = codes_of<F>(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    return largest;
}

__device__ inline void put(unsigned char* to, const u32 (&codes)[RUN / 4]) {
    Vector<u32, RUN / 4> out;
#pragma unroll
    for (int i = 0; i < RUN / 4; i++) out.x[i] = codes[i];
    *(Vector<u32, RUN / 4>*)to = out;
}

// As many blocks as keep the memory busy take turns, so that few of them meet at `amax`.
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
        a.codes[i] = codes_of<F>(value * scale, 0, 0, 0) & 0xffu;
    }
    note_largest(a.amax, largest, seen);
}

// The transposed copy too, by tiles in shared memory: [64, 64], rows 4 bytes longer so that columns of words lie in
// different banks.
constexpr u32 TILE = 64, PITCH = TILE + 4;

template <class T, class F>
__device__ void quantise_turned(const QuantiseArgs& a) {
    __shared__ u32 words[TILE * PITCH / 4];
    unsigned char* tile = (unsigned char*)words;
    const T* x = (const T*)a.x;
    float scale = *a.scale, seen = seen_by_first(a.amax), largest = 0;
    u32 across = (a.columns + TILE - 1) / TILE;
    u32 row0 = blockIdx.x / across * TILE, column0 = blockIdx.x % across * TILE;
    // 256 threads: one a row of 64 and a run of it.
    u32 own = threadIdx.x / 4, run = threadIdx.x % 4 * RUN;
    u32 row = row0 + own, column = column0 + run;
    u32 codes[RUN / 4] = {};
    if (row < a.rows && column < a.columns) {
        u64 at = (u64)row * a.columns + column;
        if (a.wide) {
            largest = convert_run<T, F>(codes, x + at, scale);
            put(a.codes + at, codes);
        } else {
            for (u32 i = 0; i < RUN && column + i < a.columns; i++) {
                float value = load(x[at + i]);
                largest = fmaxf(largest, finite_magnitude(value));
                u32 code = codes_of<F>(value * scale, 0, 0, 0) & 0xffu;
                a.codes[at + i] = code;
                codes[i / 4] |= code << 8 * (i % 4);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < RUN / 4; i++) words[(own * PITCH + run) / 4 + i] = codes[i];
    __syncthreads();
    // Now a thread has a run of a column.
    row = row0 + run, column = column0 + own;
    if (row < a.rows && column < a.columns) {
        u64 at = (u64)column * a.rows + row;
#pragma unroll
        for (int i = 0; i < RUN / 4; i++) {
            codes[i] = 0;
            for (int j = 0; j < 4; j++) codes[i] |= (u32)tile[(run + 4 * i + j) * PITCH + own] << 8 * j;
        }
        if (a.wide)
            put(a.transposed + at, codes);
        else
            for (u32 i = 0; i < RUN && row + i < a.rows; i++) a.transposed[at + i] = codes[i / 4] >> 8 * (i % 4) & 0xffu;
    }
    note_largest(a.amax, largest, seen);
}

#define QUANTISE(name, T)                                                              \
    EXPORT(quantise_e4m3_##name, QuantiseArgs, 256, quantise<T, E4m3>)                 \
    EXPORT(quantise_e5m2_##name, QuantiseArgs, 256, quantise<T, E5m2>)                 \
    EXPORT(quantise_turned_e4m3_##name, QuantiseArgs, 256, quantise_turned<T, E4m3>)   \
    EXPORT(quantise_turned_e5m2_##name, QuantiseArgs, 256, quantise_turned<T, E5m2>)

QUANTISE(f32, float)
QUANTISE(bf16, bf16)
