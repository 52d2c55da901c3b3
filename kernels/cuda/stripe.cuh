// Attention with a short window: a query sees keys of its own tile and of the one before. A block, which is a
// warpgroup, walks along a stripe of a sequence's tiles, the next of which come while it computes.
#pragma once
#include "warpgroup.cuh"

#ifdef WARPGROUPS

// The tiles of a sequence that a block has, [first, last) of all; the grid's z is the stripes of a sequence. What comes
// of them does not depend on how many there are.
struct Stripe {
    // Tiles of keys, and of values, that there is room for: two to look at and one on its way. Queries need one less.
    static constexpr u32 KEYS = 3, QUERIES = 2;

    u32 tiles, first, last;

    __device__ explicit Stripe(u32 end) : tiles((end + SIDE - 1) / SIDE) {
        first = (u64)tiles * blockIdx.z / gridDim.z;
        last = (u64)tiles * (blockIdx.z + 1) / gridDim.z;
    }
};

__device__ inline void fill(float (&sums)[8][4], float with) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[n][e] = with;
}

// The angles by which a lane turns back its elements of a warp's 16 rows, the first of which is row `row` of all: read
// while products run.
struct Angles {
    // Of how many sixteens of a head's elements a lane has both of each pair; none where rows are turned in shared
    // memory.
    u32 sixteens;
    // Two cosines and sines each.
    Piece of[2][SIDE / 16];

    __device__ Angles(const AttentionGradArgs& a, u64 row)
        : sixteens(a.dims % 16 == 0 && (u64)a.table % sizeof(Piece) == 0 ? a.dims / 16 : 0) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            u32 at = (u32)(row + lane / 4 + 8 * h) % a.period;
            const Piece* angles = (const Piece*)(a.table + (u64)at * a.dims) + lane % 4;
#pragma unroll
            for (u32 n = 0; n < SIDE / 16; n++)
                if (n < sixteens) of[h][n] = angles[4 * n];
        }
    }

    template <u32 SIXTEENS>
    __device__ void turn(float (&sums)[8][4]) const {
#pragma unroll
        for (u32 n = 0; n < SIXTEENS; n++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                const Piece& two = of[e / 2][n];
                float cosine = __uint_as_float(two.words[e % 2 * 2]), sine = __uint_as_float(two.words[e % 2 * 2 + 1]);
                turn_back(sums[n][e], sums[n + SIXTEENS][e], cosine, sine);
            }
    }
};

// As put_back with the angles that were read for it.
__device__ inline void put_back(Row<SIDE>* rows, float (&sums)[8][4], const AttentionGradArgs& a, u64 row,
                                const Angles& angles) {
    if (angles.sixteens == 1) angles.turn<1>(sums);
    if (angles.sixteens == 2) angles.turn<2>(sums);
    if (angles.sixteens == 4) angles.turn<4>(sums);
    put<SIDE>(rows, sums, a.scale, a.scale);
    if (angles.sixteens == 0 || angles.sixteens == 3) turn_back<SIDE>(rows, a, row);
}

#endif
