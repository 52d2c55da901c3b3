// Declarations shared by all kernels: storage types, reductions over a block, and macros that export kernels.
//
// Values are stored as f32 or bf16 and computed in f32. A kernel takes one struct of arguments, whose fields the host
// mirrors, 8-byte ones first. No float is added atomically: the same inputs give the same bits.
#pragma once

#ifdef CAPFUL_STAND_IN
#include "../stand_in/device.h"
#else
// Waits for all writes of the previous kernel, then lets the next kernel be launched early. The host requests early
// launches only on GPUs that run this code.
__device__ inline void begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The kernel `name` runs `body(args)` in blocks of `threads` threads.
#define EXPORT(name, Args, threads, ...)                                                        \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Args a) { \
        begin();                                                                                 \
        __VA_ARGS__(a);                                                                          \
    }
// As EXPORT, with registers limited so that two blocks fit a multiprocessor.
#define EXPORT_PAIR(name, Args, threads, ...)                                                      \
    extern "C" __global__ void __launch_bounds__(threads, 2) name(const __grid_constant__ Args a) { \
        begin();                                                                                    \
        __VA_ARGS__(a);                                                                             \
    }
// As EXPORT, with registers limited so that `blocks` blocks fit a multiprocessor.
#define EXPORT_MANY(name, Args, threads, blocks, ...)                                                   \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Args a) { \
        begin();                                                                                         \
        __VA_ARGS__(a);                                                                                  \
    }
#endif

// Exports the kernel for both storage types.
#define EXPORT_BOTH(name, Args, threads, body)        \
    EXPORT(name##_f32, Args, threads, body<float>)    \
    EXPORT(name##_bf16, Args, threads, body<bf16>)

#define FULL_WARP 0xffffffffu
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

typedef unsigned int u32;
typedef unsigned long long u64;

// The upper half of an f32.
struct bf16 {
    unsigned short bits;
};

__device__ inline float load(float x) { return x; }
__device__ inline float load(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

template <class T>
__device__ inline T store(float x);

template <>
__device__ inline float store<float>(float x) {
    return x;
}

// Rounds to nearest, ties to even; NaN stays NaN.
template <>
__device__ inline bf16 store<bf16>(float x) {
    u32 bits = __float_as_uint(x);
    u32 rounded = bits + 0x7fffu + ((bits >> 16) & 1);
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return bf16{(unsigned short)(nan ? (bits >> 16) | 0x40u : rounded >> 16)};
}

__device__ inline bool finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

__device__ inline float warp_sum(float x) {
    for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(FULL_WARP, x, lane);
    return x;
}

__device__ inline float warp_max(float x) {
    for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, lane));
    return x;
}

// The sum over a block of whole warps; every thread receives it.
__device__ inline float block_sum(float x) {
    __shared__ float warps[32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    float total = 0;
    for (u32 w = 0; w < blockDim.x / 32; w++) total += warps[w];
    __syncthreads();
    return total;
}
