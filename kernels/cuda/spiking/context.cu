// Signals as rows of tokens; and the gradient of this.
#include "streams.cuh"

struct ContextArgs {
    float* rows;    // [B, T, columns]
    void* signals;  // the first signal of the first token; tokens are `slot` signals apart
    u32 streams, tokens, columns, slot, tile;
};

// Grid (columns / columns of a tile, B / its streams, T).
template <class T>
__device__ void context(const ContextArgs& a) {
    __shared__ float turned[TURNED];
    Tile tile(a.tile);
    u32 c0 = blockIdx.x * tile.columns, b0 = blockIdx.y * tile.streams, t = blockIdx.z;
    const T* signals = (const T*)a.signals + (u64)t * a.slot * a.streams;
    tile.as_signals([&](u32 column, u32 stream) {
        u32 c = c0 + column, b = b0 + stream;
        bool there = c < a.columns && b < a.streams;
        tile.at(turned, column, stream) = there ? load(signals[(u64)c * a.streams + b]) : 0.0f;
    });
    __syncthreads();
    tile.as_rows([&](u32 column, u32 stream) {
        u32 c = c0 + column, b = b0 + stream;
        if (c < a.columns && b < a.streams)
            a.rows[((u64)b * a.tokens + t) * a.columns + c] = tile.at(turned, column, stream);
    });
}

// The same grid as `context`.
template <class T>
__device__ void context_grad(const ContextArgs& a) {
    __shared__ float turned[TURNED];
    Tile tile(a.tile);
    u32 c0 = blockIdx.x * tile.columns, b0 = blockIdx.y * tile.streams, t = blockIdx.z;
    T* signals = (T*)a.signals + (u64)t * a.slot * a.streams;
    tile.as_rows([&](u32 column, u32 stream) {
        u32 c = c0 + column, b = b0 + stream;
        bool there = c < a.columns && b < a.streams;
        tile.at(turned, column, stream) = there ? a.rows[((u64)b * a.tokens + t) * a.columns + c] : 0.0f;
    });
    __syncthreads();
    tile.as_signals([&](u32 column, u32 stream) {
        u32 c = c0 + column, b = b0 + stream;
        if (c >= a.columns || b >= a.streams) return;
        T* to = signals + (u64)c * a.streams + b;
        *to = store<T>(load(*to) + tile.at(turned, column, stream));
    });
}

EXPORT_BOTH(context, ContextArgs, 256, context)
EXPORT_BOTH(context_grad, ContextArgs, 256, context_grad)
