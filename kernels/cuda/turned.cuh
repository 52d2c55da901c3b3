// Tiles of codes in shared memory, to be written as a transposed copy.
#pragma once
#include "fp8.cuh"

// The side of a tile, and the number of elements that a thread converts at a time: their codes are 16 bytes.
constexpr u32 TILE = 64, RUN = 16;
// Threads that write a tile. A block that reads one has four times as many: each reads one run of one row.
constexpr u32 WRITERS = 64;

struct alignas(16) CodeRun {
    u32 words[RUN / 4];
};

__device__ inline void put(unsigned char* to, const u32 (&codes)[RUN / 4]) {
    CodeRun run;
#pragma unroll
    for (u32 i = 0; i < RUN / 4; i++) run.words[i] = codes[i];
    *(CodeRun*)to = run;
}

struct CodeTile {
    // One word longer than a row, so that a thread's words of a column are in different banks.
    u32 rows[TILE][TILE / 4 + 1];

    // Stores a run of row `row` from `column` on.
    __device__ void take(u32 row, u32 column, const u32 (&codes)[RUN / 4]) {
#pragma unroll
        for (u32 i = 0; i < RUN / 4; i++) rows[row][column / 4 + i] = codes[i];
    }

    // Thread `t` of the writing threads has a run of each of four columns: calls `visit(column, row, codes)`.
    template <class Visit>
    __device__ void turn(u32 t, Visit visit) const {
        u32 word = t % 16, row = t / 16 * RUN, turned[4][RUN / 4];
#pragma unroll
        for (u32 i = 0; i < RUN / 4; i++) {
            u32 four[4];
#pragma unroll
            for (u32 r = 0; r < 4; r++) four[r] = rows[row + 4 * i + r][word];
            u32 even = pick_bytes(four[0], four[1], 0x5140), odd = pick_bytes(four[2], four[3], 0x5140);
            turned[0][i] = pick_bytes(even, odd, 0x5410), turned[1][i] = pick_bytes(even, odd, 0x7632);
            even = pick_bytes(four[0], four[1], 0x7362), odd = pick_bytes(four[2], four[3], 0x7362);
            turned[2][i] = pick_bytes(even, odd, 0x5410), turned[3][i] = pick_bytes(even, odd, 0x7632);
        }
#pragma unroll
        for (u32 c = 0; c < 4; c++) visit(4 * word + c, row, turned[c]);
    }
};
