// Signals are laid out as [rows, B], with the B streams together; the input of dense layers as [B, T, columns]. A block
// transposes a tile of one token from one layout to the other.
#pragma once
#include "../vector.cuh"

constexpr u32 TURNED = 32 * 33;

// `streams`, a power of two up to 32, times `columns`: 32, or more so that 256 threads have work.
struct Tile {
    u32 streams, columns;

    __device__ explicit Tile(u32 streams) : streams(streams), columns(max(32u, 256 / streams)) {}

    __device__ float& at(float* tile, u32 column, u32 stream) const { return tile[column * (streams + 1) + stream]; }

    // Calls `visit(column, stream)`, with neighbouring streams in neighbouring threads.
    template <class Visit>
    __device__ void as_signals(Visit visit) const {
        for (u32 i = threadIdx.x; i < streams * columns; i += 256) visit(i / streams, i % streams);
    }

    // Calls `visit(column, stream)`, with neighbouring columns in neighbouring threads.
    template <class Visit>
    __device__ void as_rows(Visit visit) const {
        for (u32 i = threadIdx.x; i < streams * columns; i += 256) visit(i % columns, i / columns);
    }
};

// The streams, out of a group of 32 from `first` on, in which a neuron fired. Called by a whole warp.
template <class T>
__device__ inline u32 fired(const T* spikes, u32 first, u32 streams) {
    u32 stream = first + threadIdx.x % 32;
    return __ballot_sync(FULL_WARP, stream < streams && load(spikes[stream]) > 0);
}
