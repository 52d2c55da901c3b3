// Instructions for which CUDA C++ has no function, each with its equivalent for the stand-in driver. Tensor cores take
// bf16 from compute capability 8.0 on; below that, a kernel that needs them only traps, and the host never launches it.
#pragma once
#include "common.cuh"

#if defined(CAPFUL_STAND_IN) || __CUDA_ARCH__ >= 800
#define TENSOR_CORES 1
#endif

#if !defined(CAPFUL_STAND_IN) && __CUDA_ARCH__ >= 890
#define EIGHT_BIT_UNITS 1
#endif

// Warpgroup multiplications need sm_90a; the host uses them on those GPUs only.
#if defined(CAPFUL_STAND_IN) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WARPGROUPS 1
#endif

// Shared memory beyond the static limit of a kernel: its size is set at launch. Such a kernel has no other shared
// memory.
#ifdef CAPFUL_STAND_IN
#define LAUNCH_SHARED(name, bytes) alignas(1024) __shared__ unsigned char name[bytes]
#else
#define LAUNCH_SHARED(name, bytes) extern __shared__ __align__(1024) unsigned char name[]
#endif

// For the parts of a kernel with many phases: each part can use all registers, and values of other parts are not kept
// in registers.
#ifdef CAPFUL_STAND_IN
#define NOINLINE inline
#else
#define NOINLINE __noinline__
#endif

#ifdef CAPFUL_STAND_IN
#define PTX(meaning, ...) meaning
#else
#define PTX(meaning, ...) __VA_ARGS__
#endif

// Fetches the 128 bytes around an address into L2.
__device__ inline void prefetch(const void* from) {
    PTX((void)from, asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from))));
}

// A pointer to shared memory that stays in a register: otherwise the compiler recomputes it at each use.
template <class T>
__device__ inline T* held(T* shared) {
    PTX(return shared, u32 at = (u32)__cvta_generic_to_shared(shared); asm volatile("" : "+r"(at));
        return (T*)__cvta_shared_to_generic(at));
}

// A value that stays in a register.
__device__ inline u32 held(u32 x) {
    PTX((void)0, asm volatile("" : "+r"(x)));
    return x;
}

// Marks a value as loaded from memory: later accesses are not moved before this.
__device__ inline void arrived(float& x) { PTX((void)x, asm volatile("" : "+f"(x)::"memory")); }

// Tells the compiler that a value is the same in all lanes of a warp.
__device__ inline u32 of_warp(u32 x) {
    PTX(return x, return __shfl_sync(0xffffffffu, x, 0));
}

// Keeps the compiler from splitting an address in global memory, so that adding to it is one instruction.
__device__ inline void opaque(const char*& address) {
    PTX((void)address, asm volatile("" : "+l"(address)); __builtin_assume(__isGlobal(address)));
}

#ifdef CAPFUL_STAND_IN

namespace stand_in {

inline uint64_t join(u32 low, u32 high) { return (uint64_t)high << 32 | low; }

inline float half_of(u32 pair, int upper) { return load(bf16{(unsigned short)(pair >> 16 * upper)}); }

// Lane `lane` receives from the rows whose addresses the eight lanes of a matrix passed.
inline void load_matrices(u32 (&to)[4], const bf16* row, bool turned) {
    const Words* rows = warp_exchange((uint64_t)row, __FILE__, __LINE__);
    u32 lane = threadIdx.x % 32;
    for (int m = 0; m < 4; m++) {
        auto at = [&](u32 r, u32 c) { return (u32)((const bf16*)rows[8 * m + r].word[0])[c].bits; };
        u32 own = lane / 4, pair = lane % 4 * 2;
        to[m] = turned ? at(pair, own) | at(pair + 1, own) << 16 : at(own, pair) | at(own, pair + 1) << 16;
    }
}

// As f16: rounded to nearest, ties to even.
inline u32 f16(float x) {
    u32 bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | 0x7e00u;
    if (size >= 0x477ff000u) return sign | 0x7c00u;
    // Below 2^-14 a multiple of 2^-24.
    if (size < 0x38800000u) return sign | (u32)rintf(__uint_as_float(size) * 16777216.0f);
    return sign | (size + 0xfffu + (size >> 13 & 1) - 0x38000000u) >> 13;
}

inline float from_f16(u32 bits) {
    u32 sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    float value = size < 0x400u ? (float)size / 16777216.0f : __uint_as_float((size << 13) + 0x38000000u);
    return sign ? -value : value;
}

inline void store_matrices(bf16* row, const u32 (&from)[4]) {
    const Words* words =
        warp_exchange(Words{{(uint64_t)row, join(from[0], from[1]), join(from[2], from[3])}}, __FILE__, __LINE__);
    u32 lane = threadIdx.x % 32, matrix = lane / 8;
    for (u32 c = 0; c < 8; c++) {
        u32 pair = (u32)(words[lane % 8 * 4 + c / 2].word[1 + matrix / 2] >> 32 * (matrix % 2));
        row[c] = bf16{(unsigned short)(pair >> 16 * (c % 2))};
    }
}

inline void multiply(float (&sums)[4], const u32 (&left)[4], u32 right1, u32 right2) {
    const Words* words =
        warp_exchange({join(left[0], left[1]), join(left[2], left[3]), join(right1, right2)}, __FILE__, __LINE__);
    u32 lane = threadIdx.x % 32, column = lane % 4 * 2;
    for (u32 k = 0; k < 16; k++) {
        uint64_t pairs = words[lane / 4 * 4 + k % 8 / 2].word[k / 8];
        auto right = [&](u32 c) { return half_of((u32)(words[c * 4 + k % 8 / 2].word[2] >> 32 * (k / 8)), k % 2); };
        const float rows[2] = {half_of((u32)pairs, k % 2), half_of((u32)(pairs >> 32), k % 2)};
        const float columns[2] = {right(column), right(column + 1)};
        for (int e = 0; e < 4; e++) sums[e] += rows[e / 2] * columns[e % 2];
    }
}

}  // namespace stand_in

#endif

// Loads four matrices of 8 x 8 from shared memory; lane l passes the address of row l % 8 of matrix l / 8, and receives
// from each matrix the elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4.
__device__ inline void load_matrices(u32 (&to)[4], const bf16* row) {
    PTX(stand_in::load_matrices(to, row, false),
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"((u32)__cvta_generic_to_shared(row))
                     : "memory"));
}

// As load_matrices, with each matrix transposed.
__device__ inline void load_turned(u32 (&to)[4], const bf16* row) {
    PTX(stand_in::load_matrices(to, row, true),
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"((u32)__cvta_generic_to_shared(row))
                     : "memory"));
}

// Stores four matrices of 8 x 8 to shared memory; addresses and elements of the lanes are as in `load_matrices`.
__device__ inline void store_matrices(bf16* row, const u32 (&from)[4]) {
    PTX(stand_in::store_matrices(row, from),
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         (u32)__cvta_generic_to_shared(row)),
                     "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                     : "memory"));
}

// sums [16, 8] += left [16, 16] right [16, 8]. Lane l has the sums' elements 2 (l % 4) and 2 (l % 4) + 1 of rows l / 4
// and l / 4 + 8; and of each 8 x 8 of the left (rows 0-7 and 8-15 of columns 0-7, then of columns 8-15) and of the
// transposed right, the elements that load_matrices returns.
__device__ inline void multiply(float (&sums)[4], const u32 (&left)[4], u32 right1, u32 right2) {
    PTX(stand_in::multiply(sums, left, right1, right2),
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right1), "r"(right2)));
}

// Two values rounded to bf16, `low` in the lower half.
__device__ inline u32 pack(float low, float high) {
#ifdef TENSOR_CORES
    u32 pair;
    PTX(pair = (u32)store<bf16>(high).bits << 16 | store<bf16>(low).bits,
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low)));
    return pair;
#else
    return (u32)store<bf16>(high).bits << 16 | store<bf16>(low).bits;
#endif
}

// 2^x to about 2 ulp; 0 for results below the normal numbers.
__device__ inline float power_of_two(float x) {
    float power;
    PTX(power = exp2f(x), asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x)));
    return power;
}

// Two values as f16, `low` in the lower half; above 65,504 they become infinite.
__device__ inline u32 pack_f16(float low, float high) {
    u32 pair;
    PTX(pair = stand_in::f16(low) | stand_in::f16(high) << 16,
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low)));
    return pair;
}

__device__ inline void unpack_f16(float& low, float& high, u32 pair) {
    PTX((low = stand_in::from_f16(pair & 0xffffu), high = stand_in::from_f16(pair >> 16)),
        asm("{\n"
            "    .reg .b16 low, high;\n"
            "    mov.b32 {low, high}, %2;\n"
            "    cvt.f32.f16 %0, low;\n"
            "    cvt.f32.f16 %1, high;\n"
            "}"
            : "=f"(low), "=f"(high)
            : "r"(pair)));
}

// The smaller of two; unlike fminf, it propagates NaN.
__device__ inline float least(float x, float y) {
    float least;
    PTX(least = x != x || x < y ? x : y, asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(x), "f"(y)));
    return least;
}

// 1 / x to about 1 ulp; 0 for results below the normal numbers.
__device__ inline float reciprocal(float x) {
    float result;
    PTX(result = 1.0f / x, asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x)));
    return result;
}

// tanh x with a relative error of at most 2^-11. The stand-in has the same error: it rounds to 11 bits.
__device__ inline float tanh_for_bf16(float x) {
    float result;
    PTX(result = __uint_as_float((__float_as_uint(tanhf(x)) + 0x1000u) & ~0x1fffu),
        asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x)));
    return result;
}

// Hides from the compiler what a pointer refers to.
template <class T>
__device__ inline const T* opaque(const T* pointer) {
    PTX((void)0, asm volatile("" : "+l"(pointer)));
    return pointer;
}

// Signals that this thread has arrived: its block's writes before the last barrier are visible to threads that wait for
// it.
__device__ inline void arrive(u32* count) {
    PTX(__atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST),
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(count)) : "memory"));
}

// Raises the value at an address to `value` where that is larger.
__device__ inline void raise(u64* at, u64 value) {
    PTX(stand_in::raise(at, value),
        asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "l"(value)
                     : "memory"));
}

// Waits until `all` threads have arrived. They must run concurrently.
__device__ inline void await_arrivals(const u32* count, u32 all) {
    u32 seen;
    do {
        PTX((stand_in::let_others_run(), seen = __atomic_load_n(count, __ATOMIC_SEQ_CST)),
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(seen)
                         : "l"(__cvta_generic_to_global(count))
                         : "memory"));
    } while (seen < all);
}

// Called by every thread of a block: returns whether it is the last of `all` blocks, which then sees the writes of the
// others.
__device__ inline bool arrive_last(u32* count, u32 all, u32* shared) {
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 before;
        PTX(before = __atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST),
            asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                         : "=r"(before)
                         : "l"(__cvta_generic_to_global(count))
                         : "memory"));
        *shared = before + 1 == all;
    }
    __syncthreads();
    return *shared;
}

// Starts copying 16 bytes (both addresses multiples of 16) to shared memory; zeros unless `there`.
__device__ inline void copy_piece(void* to, const void* from, bool there) {
    PTX(stand_in::copy_later(to, there ? from : nullptr, 16),
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)),
                     "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
                     : "memory"));
}

// As copy_piece, with 4 bytes.
__device__ inline void copy_word(void* to, const void* from, bool there) {
    PTX(stand_in::copy_later(to, there ? from : nullptr, 4),
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)),
                     "l"(__cvta_generic_to_global(from)), "r"(there ? 4 : 0)
                     : "memory"));
}

// Makes one group of the copies that this thread started since the last call.
__device__ inline void end_copies() {
    PTX(stand_in::end_copies(), asm volatile("cp.async.commit_group;" ::: "memory"));
}

// Waits until at most the last LEFT groups of this thread's copies are in transfer.
template <int LEFT>
__device__ inline void wait_for_earlier_copies() {
    static_assert(LEFT > 0, "else all are waited for");
    PTX(stand_in::copy_now(LEFT), asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"));
}

// Barrier `id` of the block, 1 to 15, for `threads` threads in whole warps: signals that this thread has arrived.
__device__ inline void arrive_at(u32 id, u32 threads) {
    PTX(stand_in::arrive_at(id, threads), asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"));
}

// As arrive_at, and waits until all threads have arrived: their earlier writes are then visible.
__device__ inline void wait_at(u32 id, u32 threads) {
    PTX(stand_in::wait_at(id, threads, __FILE__, __LINE__),
        asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"));
}

// Waits for the copies that this thread started.
__device__ inline void wait_for_copies() {
    PTX(stand_in::copy_now(), asm volatile("cp.async.wait_all;" ::: "memory"));
}

// Selects four of the eight bytes of `low` and `high`, each by a hexadecimal digit of `which`, the lowest first.
__device__ inline u32 pick_bytes(u32 low, u32 high, u32 which) {
#ifdef CAPFUL_STAND_IN
    uint64_t both = (uint64_t)high << 32 | low;
    u32 picked = 0;
    for (u32 i = 0; i < 4; i++) picked |= (u32)(both >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    return picked;
#else
    return __byte_perm(low, high, which);
#endif
}

#ifdef EIGHT_BIT_UNITS
// Two values as 8-bit codes, `low` in the lower half; saturates. Other GPUs use the equivalent in fp8.cuh.
__device__ inline unsigned short convert_e4m3(float low, float high) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ inline unsigned short convert_e5m2(float low, float high) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

// The numbers of two such codes.
__device__ inline void expand_e4m3(unsigned short pair, float& low, float& high) {
    asm("{\n"
        "    .reg .b32 both;\n"
        "    .reg .b16 low, high;\n"
        "    cvt.rn.f16x2.e4m3x2 both, %2;\n"
        "    mov.b32 {low, high}, both;\n"
        "    cvt.f32.f16 %0, low;\n"
        "    cvt.f32.f16 %1, high;\n"
        "}"
        : "=f"(low), "=f"(high)
        : "h"(pair));
}
#endif
