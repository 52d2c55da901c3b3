// Signals lie as [rows, B], the B streams together; what dense products read, as [B, T, columns]. A block turns a tile
// of one token's from one to the other.
#pragma once
#include "../vector.cuh"

constexpr u32 TURNED = 32 * 33;

// `streams` of a power of two, 32 at most, times `columns`: 32, or more so that 256 threads have work.
struct Tile {
    u32 streams, columns;

    __device__ explicit Tile(u32 streams) : streams(streams), columns(max(32u, 256 / streams)) {}

    __device__ float& at(float* tile, u32 column, u32 stream) const { return tile[column * (streams + 1) + stream]; }

    // Calls `visit(column, stream)`, neighbouring threads having neighbouring streams.
    template <class Visit>
    __device__ void as_signals(Visit visit) const {
        for (u32 i = threadIdx.x; i < streams * columns; i += 256) visit(i / streams, i % streams);
    }

    // The same, neighbouring threads having neighbouring columns.
    template <class Visit>
    __device__ void as_rows(Visit visit) const {
        for (u32 i = threadIdx.x; i < streams * columns; i += 256) visit(i % columns, i / columns);
    }
};

// Which of 32 streams a neuron fired in: those of a group from `first` on. For a whole warp.
template <class T>
__device__ inline u32 fired(const T* spikes, u32 first, u32 streams) {
    u32 stream = first + threadIdx.x % 32;
    return __ballot_sync(FULL_WARP, stream < streams && load(spikes[stream]) > 0);
}
