// The positions of matrices of one shape in the tables of a parameter, as core's Cut.
#pragma once
#include "../control.cuh"
#include "../vector.cuh"

struct CutArgs {
    u64 layer;          // elements from a layer to the next one
    u32 parts;          // matrices of a layer
    u32 rows, columns;  // of a matrix as it lies in the parameter
    u32 first, step;    // first row of the first matrix in a layer, and the distance to that of the next
    u32 run, period;    // consecutive rows of a matrix, and the distance from one such run to its next
};

// The index of the first element of row r of matrix `number`.
__device__ inline u64 row_of(const CutArgs& cut, u32 number, u32 r) {
    u32 layer = number / cut.parts, part = number % cut.parts;
    u32 row = cut.first + part * cut.step + r / cut.run * cut.period + r % cut.run;
    return layer * cut.layer + (u64)row * cut.columns;
}

// The rows and columns of a matrix that a block of 256 threads processes. Grid (tiles of a matrix, matrices).
constexpr u32 TILE = 64;

// Calls `element(at, place)` for each element of a block's tile: `at` is its index in the parameter, `place` its index
// in the tile, row by row.
template <class F>
__device__ inline void each_of_tile(const CutArgs& cut, F element) {
    u32 across = (cut.columns + TILE - 1) / TILE, x = threadIdx.x % 32, y = threadIdx.x / 32;
    u32 row0 = blockIdx.x / across * TILE, column0 = blockIdx.x % across * TILE;
#pragma unroll
    for (u32 r = y; r < TILE; r += 8) {
        if (row0 + r >= cut.rows) break;
        u64 start = row_of(cut, blockIdx.y, row0 + r);
#pragma unroll
        for (u32 c = x; c < TILE; c += 32)
            if (column0 + c < cut.columns) element(start + column0 + c, r, c);
    }
}

// The position of the tile among the contiguous matrices that are orthogonalised.
struct Wide {
    u64 start;
    u32 row0, column0, columns;

    __device__ explicit Wide(const CutArgs& cut) {
        u32 across = (cut.columns + TILE - 1) / TILE;
        row0 = blockIdx.x / across * TILE;
        column0 = blockIdx.x % across * TILE;
        columns = cut.columns;
        start = (u64)blockIdx.y * cut.rows * cut.columns;
    }
    __device__ u64 at(u32 r, u32 c) const { return start + (u64)(row0 + r) * columns + column0 + c; }
};

// As each_of_tile, for matrices that are transposed: calls `element(place, r, c)` in the order of the transposed
// elements.
template <class F>
__device__ inline void each_turned(const CutArgs& cut, F element) {
    Wide tile(cut);
    u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
#pragma unroll
    for (u32 c = y; c < TILE; c += 8) {
        if (tile.column0 + c >= cut.columns) break;
#pragma unroll
        for (u32 r = x; r < TILE; r += 32)
            if (tile.row0 + r < cut.rows)
                element(tile.start + (u64)(tile.column0 + c) * cut.rows + tile.row0 + r, r, c);
    }
}
