// Matrix multiplications of a warpgroup, four consecutive warps (wgmma), and their equivalents for the stand-in driver.
#pragma once
#include "ptx.cuh"

#ifdef WARPGROUPS

#ifdef CAPFUL_STAND_IN

namespace stand_in {

// Element (row, column) of rows of 64 in the layout for warpgroups.
inline float of_swizzled(const bf16* rows, u32 row, u32 column) {
    return load(rows[64 * row + (column / 8 ^ row % 8) * 8 + column % 8]);
}

// A lane's elements of the left factor's 16 columns: rows lane / 4 and lane / 4 + 8 of its warp's 16 rows.
struct Left {
    float rows[2][16];
};

// From elements in shared memory, for the whole warpgroup.
template <class Element>
inline Left left_of(Element element) {
    Left left;
    u32 row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    for (u32 h = 0; h < 2; h++)
        for (u32 k = 0; k < 16; k++) left.rows[h][k] = element(row + 8 * h, k);
    return left;
}

// From registers, in the layout of `multiply`.
inline Left left_in(const u32 (&own)[4]) {
    const Words* words = warp_exchange(Words{{join(own[0], own[1]), join(own[2], own[3]), 0}}, __FILE__, __LINE__);
    Left left;
    for (u32 k = 0; k < 16; k++) {
        uint64_t pairs = words[threadIdx.x % 32 / 4 * 4 + k % 8 / 2].word[k / 8];
        for (u32 h = 0; h < 2; h++) left.rows[h][k] = half_of((u32)(pairs >> 32 * h), k % 2);
    }
    return left;
}

// A lane's sums, of two columns in eight; `right` returns an element by k and column.
template <int N, class Right>
inline void add_products(float (&sums)[N][4], const Left& left, bool add, Right right) {
    u32 pair = threadIdx.x % 4 * 2;
    for (int n = 0; n < N; n++) {
        float now[4] = {};
        for (int e = 0; add && e < 4; e++) now[e] = sums[n][e];
        for (u32 k = 0; k < 16; k++) {
            const float two[2] = {right(k, 8 * n + pair), right(k, 8 * n + pair + 1)};
            for (int e = 0; e < 4; e++) now[e] += left.rows[e / 2][k] * two[e % 2];
        }
        for (int e = 0; e < 4; e++) sums[n][e] = now[e];
    }
}

// Both factors are in shared memory.
template <int N>
inline void multiply_group_by_rows(float (&sums)[N][4], const bf16* left, const bf16* rows, u32 first, bool add) {
    add_products(sums, left_of([&](u32 r, u32 k) { return of_swizzled(left, r, first + k); }), add,
                 [&](u32 k, u32 c) { return of_swizzled(rows, c, first + k); });
}

// The left factor's 16 columns are in registers.
template <int N>
inline void multiply_group_by_rows(float (&sums)[N][4], const u32 (&left)[4], const bf16* rows, u32 first, bool add) {
    add_products(sums, left_in(left), add, [&](u32 k, u32 c) { return of_swizzled(rows, c, first + k); });
}

// The left factor is transposed: its rows are columns.
template <int N>
inline void multiply_group_turned_by_columns(float (&sums)[N][4], const bf16* left, const bf16* rows, bool add) {
    add_products(sums, left_of([&](u32 r, u32 k) { return of_swizzled(left, k, r); }), add,
                 [&](u32 k, u32 c) { return of_swizzled(rows, k, c); });
}

// Every 64 columns of the right factor's rows are `panel` elements apart.
inline float of_panels(const bf16* rows, u32 panel, u32 k, u32 c) { return of_swizzled(rows + c / 64 * panel, k, c % 64); }

// The left factor's 16 columns from `first` on are in shared memory.
template <int N>
inline void multiply_group_by_columns(float (&sums)[N][4], const bf16* left, u32 first, const bf16* rows, u32 panel,
                                      bool add) {
    add_products(sums, left_of([&](u32 r, u32 k) { return of_swizzled(left, r, first + k); }), add,
                 [&](u32 k, u32 c) { return of_panels(rows, panel, k, c); });
}

template <int N>
inline void multiply_group_by_columns(float (&sums)[N][4], const u32 (&left)[4], const bf16* rows, u32 panel) {
    add_products(sums, left_in(left), true, [&](u32 k, u32 c) { return of_panels(rows, panel, k, c); });
}

}  // namespace stand_in

#endif

// Matrix multiplications of a warpgroup, four consecutive warps: sums [64, 64], [64, 128], [64, 192] or [64, 256], of
// which a warp has 16 rows in the layout of `multiply`. Factors in shared memory are rows of 64 elements, whose pieces
// of 16 bytes are swizzled: piece p of row r is at p ^ r % 8, and row 0 at a multiple of 1024 bytes. The functions only
// start multiplications; see `wait_for_products`.

// A factor of such rows.
struct Matrix {
#ifdef CAPFUL_STAND_IN
    const bf16* rows;
    explicit Matrix(const bf16* rows) : rows(rows) {}
    // The rows from row `first` on, a multiple of eight.
    Matrix row(u32 first) const { return Matrix(rows + 64 * first); }
#else
    // The lower half of the instruction's descriptor: the address.
    u32 low;
    __device__ explicit Matrix(const bf16* rows) : low((u32)__cvta_generic_to_shared(rows) >> 4 & 0x3fff | 1 << 16) {}
    __device__ Matrix row(u32 first) const {
        Matrix there = *this;
        there.low += 8 * first;
        return there;
    }
    // The columns from `column` on; 1024 bytes from eight rows to the next eight, a swizzle of 128 bytes.
    __device__ u64 from(u32 column) const { return (u64)(1u << 30 | 1024 >> 4) << 32 | (low + column / 8); }
    // All columns, where every 64 columns are `panel` elements apart.
    __device__ u64 across(u32 panel) const {
        return (u64)(1u << 30 | 1024 >> 4) << 32 | (low & 0xffff | panel / 8 << 16);
    }
#endif
};

#define SUMS(n) "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])

// sums (+)= 64 rows at `left` times the transpose of the 64 rows at `right`: the 16 columns from `first` on.
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

// As above, with the left factor's columns in registers, in the layout of `multiply`.
__device__ inline void multiply_group_by_rows(float (&sums)[8][4], const u32 (&left)[4], Matrix right, u32 first, bool add) {
    PTX(stand_in::multiply_group_by_rows(sums, left, right.rows, first, add),
        asm volatile(
            "{ .reg .pred add; setp.ne.b32 add, %37, 0; "
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
            "}, {%32, %33, %34, %35}, %36, add, 1, 1, 0; }"
            : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7)
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right.from(first)), "r"((u32)add)));
}

// sums += left [64, 16], in the layout of `multiply`, times the 16 rows at `right`.
__device__ inline void multiply_group_by_columns(float (&sums)[8][4], const u32 (&left)[4], Matrix right) {
    PTX(stand_in::multiply_group_by_columns(sums, left, right.rows, 0),
        asm volatile(
                      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
                      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
                      "%27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                      : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7)
                      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right.from(0))));
}

// sums (+)= the transpose of the 16 rows at `left` times the 16 rows at `right`.
__device__ inline void multiply_group_turned_by_columns(float (&sums)[8][4], Matrix left, Matrix right, bool add) {
    PTX(stand_in::multiply_group_turned_by_columns(sums, left.rows, right.rows, add),
        asm volatile(
                      "{ .reg .pred add; setp.ne.b32 add, %34, 0; "
                      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
                      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
                      "%27, %28, %29, %30, %31}, %32, %33, add, 1, 1, 1, 1; }"
                      : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7)
                      : "l"(left.from(0)), "l"(right.from(0)), "r"((u32)add)));
}

// sums (+)= 64 rows at `left` times the transpose of the 128 rows at `right`: the 16 columns from `first` on.
__device__ inline void multiply_group_by_rows(float (&sums)[16][4], Matrix left, Matrix right, u32 first, bool add) {
    PTX(stand_in::multiply_group_by_rows(sums, left.rows, right.rows, first, add),
        asm volatile(
            "{ .reg .pred add; setp.ne.b32 add, %66, 0; "
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
            "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
            "%59, %60, %61, %62, %63"
            "}, %64, %65, add, 1, 1, 0, 0; }"
            : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7),
              SUMS(8), SUMS(9), SUMS(10), SUMS(11), SUMS(12), SUMS(13), SUMS(14), SUMS(15)
            : "l"(left.from(first)), "l"(right.from(first)), "r"((u32)add)));
}

// sums += left [64, 16], in the layout of `multiply`, times the 16 rows of 128 at `right`, whose last 64 columns are
// `panel` elements further.
__device__ inline void multiply_group_by_columns(float (&sums)[16][4], const u32 (&left)[4], Matrix right, u32 panel) {
    PTX(stand_in::multiply_group_by_columns(sums, left, right.rows, panel),
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
            "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
            "%59, %60, %61, %62, %63"
            "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
            : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7),
              SUMS(8), SUMS(9), SUMS(10), SUMS(11), SUMS(12), SUMS(13), SUMS(14), SUMS(15)
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right.across(panel))));
}

// sums (+)= 64 rows at `left` times the transpose of the 192 rows at `right`: the 16 columns from `first` on.
__device__ inline void multiply_group_by_rows(float (&sums)[24][4], Matrix left, Matrix right, u32 first, bool add) {
    PTX(stand_in::multiply_group_by_rows(sums, left.rows, right.rows, first, add),
        asm volatile(
            "{ .reg .pred add; setp.ne.b32 add, %98, 0; "
            "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
            "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
            "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
            "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
            "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
            "}, %96, %97, add, 1, 1, 0, 0; }"
            : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7),
              SUMS(8), SUMS(9), SUMS(10), SUMS(11), SUMS(12), SUMS(13), SUMS(14), SUMS(15),
              SUMS(16), SUMS(17), SUMS(18), SUMS(19), SUMS(20), SUMS(21), SUMS(22), SUMS(23)
            : "l"(left.from(first)), "l"(right.from(first)), "r"((u32)add)));
}

// sums (+)= 64 rows at `left` times the transpose of the 256 rows at `right`: the 16 columns from `first` on.
__device__ inline void multiply_group_by_rows(float (&sums)[32][4], Matrix left, Matrix right, u32 first, bool add) {
    PTX(stand_in::multiply_group_by_rows(sums, left.rows, right.rows, first, add),
        asm volatile(
            "{ .reg .pred add; setp.ne.b32 add, %130, 0; "
            "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
            "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
            "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "
            "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
            "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, "
            "%105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, "
            "%122, %123, %124, %125, %126, %127"
            "}, %128, %129, add, 1, 1, 0, 0; }"
            : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7),
              SUMS(8), SUMS(9), SUMS(10), SUMS(11), SUMS(12), SUMS(13), SUMS(14), SUMS(15),
              SUMS(16), SUMS(17), SUMS(18), SUMS(19), SUMS(20), SUMS(21), SUMS(22), SUMS(23),
              SUMS(24), SUMS(25), SUMS(26), SUMS(27), SUMS(28), SUMS(29), SUMS(30), SUMS(31)
            : "l"(left.from(first)), "l"(right.from(first)), "r"((u32)add)));
}

// sums (+)= 16 columns from `first` on of 64 rows at `left` times the 16 rows of 256 at `right`, of which every 64
// columns are `panel` elements apart.
__device__ inline void multiply_group_by_columns(float (&sums)[32][4], Matrix left, u32 first, Matrix right, u32 panel,
                                                 bool add) {
    PTX(stand_in::multiply_group_by_columns(sums, left.rows, first, right.rows, panel, add),
        asm volatile(
            "{ .reg .pred add; setp.ne.b32 add, %130, 0; "
            "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
            "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
            "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "
            "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
            "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, "
            "%105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, "
            "%122, %123, %124, %125, %126, %127"
            "}, %128, %129, add, 1, 1, 0, 1; }"
            : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7),
              SUMS(8), SUMS(9), SUMS(10), SUMS(11), SUMS(12), SUMS(13), SUMS(14), SUMS(15),
              SUMS(16), SUMS(17), SUMS(18), SUMS(19), SUMS(20), SUMS(21), SUMS(22), SUMS(23),
              SUMS(24), SUMS(25), SUMS(26), SUMS(27), SUMS(28), SUMS(29), SUMS(30), SUMS(31)
            : "l"(left.from(first)), "l"(right.across(panel)), "r"((u32)add)));
}

#undef SUMS

// The registers of each thread of a warpgroup, a multiple of eight: one that needs few gives some up for the others of
// its block.
template <int COUNT>
__device__ inline void give_registers() {
    PTX((void)0, asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)));
}

template <int COUNT>
__device__ inline void take_registers() {
    PTX((void)0, asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)));
}

// Called before matrix multiplications: earlier writes to their registers become visible.
__device__ inline void begin_products() {
    PTX((void)0, asm volatile("wgmma.fence.sync.aligned;" ::: "memory"));
}

// Makes one group of the multiplications since the last call.
__device__ inline void end_products() {
    PTX((void)0, asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"));
}

// Waits until at most the last LEFT groups are running.
template <int LEFT>
__device__ inline void await_products() {
    PTX((void)0, asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"));
}

// As await_products; the sums belong to a group that has ended.
template <int LEFT, int N>
__device__ inline void wait_for_products(float (&sums)[N][4]) {
    PTX((void)sums, asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
        // So that nothing that reads the sums is moved before this.
        _Pragma("unroll") for (int n = 0; n < N; n++)
            asm volatile("" : "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])::"memory"));
}

// Makes this thread's writes to shared memory, including completed copies, visible to multiplications after the next
// barrier.
__device__ inline void show_to_products() {
    PTX((void)0, asm volatile("fence.proxy.async.shared::cta;" ::: "memory"));
}

#endif
