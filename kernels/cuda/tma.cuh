// Tiles that a multiprocessor's tensor memory accelerator (TMA) copies to shared memory on the command of one thread,
// and barriers that count arrivals and bytes (mbarrier): they signal when a stage of shared memory is full, or empty
// again.
#pragma once
#include "wgmma.cuh"

#ifdef WARPGROUPS

// The driver's description of a matrix (cuTensorMapEncodeTiled), at an address that is a multiple of 64.
typedef u64 TensorMap[16];

// Initialises a barrier whose phases end after this many arrivals and all announced bytes. Called by one thread, before
// the block's next barrier.
__device__ inline void start_phases(u64* barrier, u32 arrivals) {
    PTX(stand_in::start_phases(barrier, arrivals),
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((u32)__cvta_generic_to_shared(barrier)), "r"(arrivals)
                     : "memory"));
}

// Called after all of these.
__device__ inline void show_phases() {
    PTX((void)0, asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"));
}

// Arrives, and announces this many bytes for this phase.
__device__ inline void arrive_for_bytes(u64* barrier, u32 bytes) {
    PTX(stand_in::arrive_in_phase(barrier, bytes),
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"((u32)__cvta_generic_to_shared(barrier)),
                     "r"(bytes)
                     : "memory"));
}

// The number of arrivals that `arrive_together` counts for one warpgroup.
constexpr u32 ARRIVALS_OF_A_GROUP = PTX(128, 1);

// Arrival of a warpgroup whose multiplications have been waited for: they end together, so one thread arrives for all.
// On the stand-in threads run one after the other, and each arrives for itself.
__device__ inline void arrive_together(u64* barrier) {
    PTX(stand_in::arrive_in_phase(barrier, 0),
        if (threadIdx.x % 128 == 0)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"((u32)__cvta_generic_to_shared(barrier)) : "memory"));
}

// Whether the phase with this parity is over. Before the first phase, the one with odd parity is.
__device__ inline bool phase_over(u64* barrier, u32 parity) {
    u32 over;
    PTX(over = stand_in::phase_over(barrier, parity),
        asm volatile("{ .reg .pred over; mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2; "
                     "selp.u32 %0, 1, 0, over; }"
                     : "=r"(over)
                     : "r"((u32)__cvta_generic_to_shared(barrier)), "r"(parity)
                     : "memory"));
    return over;
}

// Waits until the phase is over: its data is then visible, also to matrix multiplications.
__device__ inline void wait_for_phase(u64* barrier, u32 parity) {
    PTX(stand_in::wait_for_phase(barrier, parity, __FILE__, __LINE__),
        asm volatile("{ .reg .pred over; again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1; "
                     "@over bra done; bra again; done: }" ::"r"((u32)__cvta_generic_to_shared(barrier)),
                     "r"(parity)
                     : "memory"));
}

// Arrival of a warp, after all work of its lanes.
__device__ inline void arrive_by_warp(u64* barrier) {
    __syncwarp();
    if (threadIdx.x % 32) return;
    PTX(stand_in::arrive_in_phase(barrier, 0),
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"((u32)__cvta_generic_to_shared(barrier)) : "memory"));
}

// Starts copying the tile whose first element is (row, column): rows of 64 elements swizzled as in wgmma.cuh, with `to`
// a multiple of 1024; zeros beyond the matrix.
__device__ inline void copy_tile(bf16* to, const TensorMap& map, u64* barrier, u32 column, u32 row) {
    PTX(stand_in::copy_tile(to, (const stand_in::TileMap&)map, barrier, column, row),
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                     "[%2];" ::"r"((u32)__cvta_generic_to_shared(to)),
                     "l"(map), "r"((u32)__cvta_generic_to_shared(barrier)), "r"(column), "r"(row)
                     : "memory"));
}

// As copy_tile, for rows of heads, whose map has four dimensions: elements of a head, rows of a sequence, heads of a
// row, sequences. Zeros beyond a head's elements and a sequence's rows.
__device__ inline void copy_head(bf16* to, const TensorMap& map, u64* barrier, u32 row, u32 head, u32 sequence) {
    PTX(stand_in::copy_tile(to, (const stand_in::TileMap&)map, barrier, 0, row, head, sequence),
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                     "[%1, {%3, %4, %5, %6}], [%2];" ::"r"((u32)__cvta_generic_to_shared(to)),
                     "l"(map), "r"((u32)__cvta_generic_to_shared(barrier)), "r"(0), "r"(row), "r"(head), "r"(sequence)
                     : "memory"));
}

#endif
