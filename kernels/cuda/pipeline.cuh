// A block with warpgroups that compute and one warpgroup that fetches for them. Tiles come through stages of shared
// memory; each warpgroup has barriers of its own for full and empty stages, so that no computing warpgroup waits for
// another.
#pragma once
#include "warpgroup.cuh"

#ifdef WARPGROUPS

template <u32 GROUPS, u32 STAGES>
struct Pipeline {
    static constexpr u32 COMPUTING = 128 * GROUPS, FETCHING = 128, ALL = COMPUTING + FETCHING;
    static_assert(1 + STAGES * (GROUPS + 1) <= 16, "the barriers of a block");
    static_assert(GROUPS == 2, "the registers below");

    // The number of tiles that the block processes.
    u32 tiles;

    static __device__ u32 full(u32 stage, u32 group) { return 1 + GROUPS * stage + group; }
    static __device__ u32 empty(u32 stage) { return 1 + GROUPS * STAGES + stage; }
    static __device__ bool fetches() { return threadIdx.x >= COMPUTING; }
    static __device__ u32 next(u32 stage) { return stage + 1 == STAGES ? 0 : stage + 1; }

    // For the warpgroup that fetches: `fetch(stage, t)` starts the copies of tile t. Copies started before belong to
    // the first tile. A tile is signalled once the next one is in transfer: with two in transfer it would wait for the
    // tile that is in use.
    template <class Fetch>
    __device__ void fetch_all(Fetch fetch) const {
        give_registers<40>();
        auto show = [](u32 stage) {
            show_to_products();
#pragma unroll
            for (u32 group = 0; group < GROUPS; group++) arrive_at(full(stage, group), 128 + FETCHING);
        };
        for (u32 t = 0; t < tiles; t++) {
            if (t >= STAGES) wait_at(empty(t % STAGES), ALL);
            fetch(t % STAGES, t);
            end_copies();
            if (t == 0) continue;
            wait_for_earlier_copies<1>();
            show((t - 1) % STAGES);
        }
        wait_for_copies();
        if (tiles) show((tiles - 1) % STAGES);
    }

    // For a warpgroup that computes; called before the first tile.
    __device__ void start() const { take_registers<232>(); }

    // Waits until a stage is full; matrix multiplications may then begin.
    __device__ void await(u32 stage) const {
        wait_at(full(stage, threadIdx.x / 128), 128 + FETCHING);
        begin_products();
    }

    // Releases the stage of tile t. The stages of the last tiles are not needed again.
    __device__ void release(u32 stage, u32 t) const {
        if (t + STAGES < tiles) arrive_at(empty(stage), ALL);
    }
};

// For each tile, computes scores, weights from the scores, and a product with the weights that is added to the sums.
// During that product, the next tile's weights are computed. `work` has these functions: start_scores(scores, stage)
// and start_sums(sums, weights, stage) start multiplications; weigh(scores, t, stage) turns scores into weights;
// settle(sums) rescales the sums so far to the current base of the weights.
template <class P, class Work, int N>
__device__ inline void compute_all(const P& pipeline, float (&sums)[N][4], Work& work) {
    pipeline.start();
    float scores[16][4];
    u32 weights[8][4], stage = 0;
    pipeline.await(0);
    work.start_scores(scores, 0);
    wait_for_products<0>(scores);
    work.weigh(scores, 0, 0);
    round_left(weights, scores);
#pragma unroll 1
    for (u32 t = 1; t < pipeline.tiles; t++) {
        u32 next = P::next(stage);
        pipeline.await(next);
        work.start_scores(scores, next);
        work.start_sums(sums, weights, stage);
        wait_for_products<1>(scores);
        work.weigh(scores, t, next);
        wait_for_products<0>(sums);
        pipeline.release(stage, t - 1);
        work.settle(sums);
        round_left(weights, scores);
        stage = next;
    }
    begin_products();
    work.start_sums(sums, weights, stage);
    wait_for_products<0>(sums);
}

#endif
