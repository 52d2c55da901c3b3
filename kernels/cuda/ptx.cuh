// The instructions that CUDA C++ has no word for, each with what it means on the stand-in driver. Tensor cores take
// bf16 from compute capability 8.0 on; below, a kernel that needs them only traps, and the host asks for none.
#pragma once
#include "common.cuh"

#if defined(CAPFUL_STAND_IN) || __CUDA_ARCH__ >= 800
#define TENSOR_CORES 1
#endif

#if !defined(CAPFUL_STAND_IN) && __CUDA_ARCH__ >= 890
#define EIGHT_BIT_UNITS 1
#endif

// Warpgroups' products need sm_90a; the host asks for them on those GPUs only.
#if defined(CAPFUL_STAND_IN) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WARPGROUPS 1
#endif

// Shared memory beyond what a kernel may have by itself: the launch brings it. The kernel has no other.
#ifdef CAPFUL_STAND_IN
#define LAUNCH_SHARED(name, bytes) alignas(1024) __shared__ unsigned char name[bytes]
#else
#define LAUNCH_SHARED(name, bytes) extern __shared__ __align__(1024) unsigned char name[]
#endif

// For the parts of a kernel that does many things in turn: each has the registers to itself, and nothing is kept in them
// for the others.
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

// Brings the 128 bytes around an address into L2.
__device__ inline void prefetch(const void* from) {
    PTX((void)from, asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from))));
}

#ifdef CAPFUL_STAND_IN

namespace stand_in {

inline float half_of(u32 pair, int upper) { return load(bf16{(unsigned short)(pair >> 16 * upper)}); }

// Lane `lane`'s rows are those whose addresses the eight lanes of a matrix brought.
inline void load_matrices(u32 (&to)[4], const bf16* row, bool turned) {
    const Words* rows = warp_exchange((uint64_t)row, __FILE__, __LINE__);
    u32 lane = threadIdx.x % 32;
    for (int m = 0; m < 4; m++) {
        auto at = [&](u32 r, u32 c) { return (u32)((const bf16*)rows[8 * m + r].word[0])[c].bits; };
        u32 own = lane / 4, pair = lane % 4 * 2;
        to[m] = turned ? at(pair, own) | at(pair + 1, own) << 16 : at(own, pair) | at(own, pair + 1) << 16;
    }
}

inline void multiply(float (&sums)[4], const u32 (&left)[4], u32 right1, u32 right2) {
    auto join = [](u32 low, u32 high) { return (uint64_t)high << 32 | low; };
    const Words* words =
        warp_exchange({join(left[0], left[1]), join(left[2], left[3]), join(right1, right2)}, __FILE__, __LINE__);
    u32 lane = threadIdx.x % 32;
    for (int e = 0; e < 4; e++)
        for (u32 k = 0; k < 16; k++) {
            u32 column = lane % 4 * 2 + e % 2;
            uint64_t a = words[lane / 4 * 4 + k % 8 / 2].word[k / 8] >> 32 * (e / 2);
            uint64_t b = words[column * 4 + k % 8 / 2].word[2] >> 32 * (k / 8);
            sums[e] += half_of((u32)a, k % 2) * half_of((u32)b, k % 2);
        }
}

// Element (row, column) of rows of 64 as warpgroups read them.
inline float of_swizzled(const bf16* rows, u32 row, u32 column) {
    return load(rows[64 * row + (column / 8 ^ row % 8) * 8 + column % 8]);
}

// Both factors are in shared memory, the left one's 64 rows for the whole warpgroup.
template <int N>
inline void multiply_group_by_rows(float (&sums)[N][4], const bf16* left, const bf16* rows, u32 first, bool add) {
    u32 lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16;
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 4; e++) {
            u32 r = row + lane / 4 + e / 2 * 8, c = 8 * n + lane % 4 * 2 + e % 2;
            float sum = add ? sums[n][e] : 0;
            for (u32 k = first; k < first + 16; k++) sum += of_swizzled(left, r, k) * of_swizzled(rows, c, k);
            sums[n][e] = sum;
        }
}

inline void multiply_group_by_columns(float (&sums)[8][4], const u32 (&left)[4], const bf16* rows) {
    auto join = [](u32 low, u32 high) { return (uint64_t)high << 32 | low; };
    const Words* words =
        warp_exchange(Words{{join(left[0], left[1]), join(left[2], left[3]), 0}}, __FILE__, __LINE__);
    u32 lane = threadIdx.x % 32;
    for (int n = 0; n < 8; n++)
        for (int e = 0; e < 4; e++)
            for (u32 k = 0; k < 16; k++) {
                uint64_t a = words[lane / 4 * 4 + k % 8 / 2].word[k / 8] >> 32 * (e / 2);
                sums[n][e] += half_of((u32)a, k % 2) * of_swizzled(rows, k, 8 * n + lane % 4 * 2 + e % 2);
            }
}

}  // namespace stand_in

#endif

// Four matrices of 8 x 8 from shared memory; lane l gives the address of row l % 8 of matrix l / 8, and gets of each
// matrix the elements 2 (l % 4) and the next of row l / 4.
__device__ inline void load_matrices(u32 (&to)[4], const bf16* row) {
    PTX(stand_in::load_matrices(to, row, false),
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"((u32)__cvta_generic_to_shared(row))
                     : "memory"));
}

// The same, each matrix transposed.
__device__ inline void load_turned(u32 (&to)[4], const bf16* row) {
    PTX(stand_in::load_matrices(to, row, true),
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"((u32)__cvta_generic_to_shared(row))
                     : "memory"));
}

// sums [16, 8] += left [16, 16] right [16, 8]. Lane l has of the sums the elements 2 (l % 4) and the next of rows
// l / 4 and l / 4 + 8; of each 8 x 8 of the left (rows 0-7 and 8-15, then the same of columns 8-15) and of the
// transposed right as load_matrices gives.
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

// 1 / x to about 1 ulp; 0 for results below the normal numbers.
__device__ inline float reciprocal(float x) {
    float result;
    PTX(result = 1.0f / x, asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x)));
    return result;
}

// Keeps the compiler from knowing what a pointer points at.
template <class T>
__device__ inline const T* opaque(const T* pointer) {
    PTX((void)0, asm volatile("" : "+l"(pointer)));
    return pointer;
}

// Says that this thread has come: what its block wrote before the last barrier is seen by whoever waits for it.
__device__ inline void arrive(u32* count) {
    PTX(__atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST),
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(count)) : "memory"));
}

// Waits until `all` have come. They must run at the same time.
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

// Every thread of a block comes here: whether it is the last of `all` blocks to do so, and sees what the others wrote.
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

// The same with 4 bytes.
__device__ inline void copy_word(void* to, const void* from, bool there) {
    PTX(stand_in::copy_later(to, there ? from : nullptr, 4),
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)),
                     "l"(__cvta_generic_to_global(from)), "r"(there ? 4 : 0)
                     : "memory"));
}

// Waits for the copies that this thread started.
__device__ inline void wait_for_copies() {
    PTX(stand_in::copy_now(), asm volatile("cp.async.wait_all;" ::: "memory"));
}

#ifdef EIGHT_BIT_UNITS
// Two values as codes of 8 bits, `low` in the lower half; saturates. What they mean elsewhere is in fp8.cuh.
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
#endif

#ifdef WARPGROUPS

// Products of a warpgroup, four warps that follow each other: sums [64, 64], of which a warp has 16 rows as of
// `multiply`'s. Factors in shared memory are rows of 64 elements, whose pieces of 16 bytes are swizzled: piece p of row
// r lies at p ^ r % 8, and row 0 at a multiple of 1024 bytes. The products only start; see `wait_for_products`.

// Such rows.
struct Matrix {
#ifdef CAPFUL_STAND_IN
    const bf16* rows;
    explicit Matrix(const bf16* rows) : rows(rows) {}
    // From row `first` on, a multiple of eight.
    Matrix row(u32 first) const { return Matrix(rows + 64 * first); }
#else
    // The lower half of what the instruction takes: the address.
    u32 low;
    __device__ explicit Matrix(const bf16* rows) : low((u32)__cvta_generic_to_shared(rows) >> 4 & 0x3fff | 1 << 16) {}
    __device__ Matrix row(u32 first) const {
        Matrix there = *this;
        there.low += 8 * first;
        return there;
    }
    // From a column on; 1024 bytes from eight rows to the next, a swizzle of 128 bytes.
    __device__ u64 from(u32 column) const { return (u64)(1u << 30 | 1024 >> 4) << 32 | (low + column / 8); }
#endif
};

#define SUMS(n) "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])

// sums (+)= 64 rows at `left` times the transposed 64 rows at `right`: the 16 columns from `first` on.
__device__ inline void multiply_group_by_rows(float (&sums)[8][4], Matrix left, Matrix right, u32 first, bool add) {
    PTX(stand_in::multiply_group_by_rows(sums, left.rows, right.rows, first, add),
        asm volatile(
                      "{ .reg .pred add; setp.ne.b32 add, %34, 0; "
                      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
                      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
                      "%27, %28, %29, %30, %31}, %32, %33, add, 1, 1, 0, 0; }"
                      : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7)
                      : "l"(left.from(first)), "l"(right.from(first)), "r"((u32)add)));
}

// sums += left [64, 16], as `multiply`'s, times the 16 rows at `right`.
__device__ inline void multiply_group_by_columns(float (&sums)[8][4], const u32 (&left)[4], Matrix right) {
    PTX(stand_in::multiply_group_by_columns(sums, left, right.rows),
        asm volatile(
                      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
                      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
                      "%27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                      : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7)
                      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right.from(0))));
}

#undef SUMS

// Before products: what was written to their registers is seen.
__device__ inline void begin_products() {
    PTX((void)0, asm volatile("wgmma.fence.sync.aligned;" ::: "memory"));
}

// The products since the last of these are one group.
__device__ inline void end_products() {
    PTX((void)0, asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"));
}

// Waits until no more than the last LEFT groups run; the sums are of a group that has ended.
template <int LEFT, int N>
__device__ inline void wait_for_products(float (&sums)[N][4]) {
    PTX((void)sums, asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
        // So that nothing that reads them is moved before.
        _Pragma("unroll") for (int n = 0; n < N; n++)
            asm volatile("" : "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])::"memory"));
}

// What this thread wrote to shared memory, copies that it waited for too, is seen by products after the next barrier.
__device__ inline void show_to_products() {
    PTX((void)0, asm volatile("fence.proxy.async.shared::cta;" ::: "memory"));
}

#endif
