// The last tokens' embeddings as signals, and the gradient.
#include "streams.cuh"

struct TapsArgs {
    float* x;            // [B, T, width]: the embeddings; in the gradient: their gradients
    const u32* offsets;  // [B, T]
    void* signals;       // [T + 1, rows, B]; in the gradient: [T, rows, B]
    float* keep;         // [T, B]
    u32 streams, tokens, width, rows, taps, fresh, tile;
    u32 add;             // whether the gradient is added to the content
};

// The number of earlier tokens of its document that token t sees.
__device__ inline u32 reach(const TapsArgs& a, u32 stream, u32 t) {
    u32 offset = a.offsets[stream * a.tokens + t];
    return a.fresh ? min(t, offset) : offset;
}

// Grid (width / columns of a tile, B / its streams, T).
template <class T>
__device__ void taps(const TapsArgs& a) {
    __shared__ float turned[TURNED];
    Tile tile(a.tile);
    u32 e0 = blockIdx.x * tile.columns, b0 = blockIdx.y * tile.streams, t = blockIdx.z;
    T *before = (T*)a.signals, *now = before + (u64)(t + 1) * a.rows * a.streams;
    if (blockIdx.x == 0 && threadIdx.x < tile.streams && b0 + threadIdx.x < a.streams)
        a.keep[t * a.streams + b0 + threadIdx.x] = reach(a, b0 + threadIdx.x, t) > 0 ? 1.0f : 0.0f;
    for (u32 k = 0; k < a.taps; k++) {
        tile.as_rows([&](u32 column, u32 stream) {
            u32 e = e0 + column, b = b0 + stream;
            float x = 0;
            if (e < a.width && b < a.streams && (k == 0 || k <= reach(a, b, t))) {
                // Token t - k, or its tap from before the segment.
                if (k <= t) x = a.x[((u64)b * a.tokens + t - k) * a.width + e];
                else x = load(before[((u64)(k - t - 1) * a.width + e) * a.streams + b]);
            }
            tile.at(turned, column, stream) = x;
        });
        __syncthreads();
        tile.as_signals([&](u32 column, u32 stream) {
            u32 e = e0 + column, b = b0 + stream;
            if (e < a.width && b < a.streams)
                now[((u64)k * a.width + e) * a.streams + b] = store<T>(tile.at(turned, column, stream));
        });
        __syncthreads();
    }
}

// The same grid as `taps`.
template <class T>
__device__ void taps_grad(const TapsArgs& a) {
    __shared__ float turned[TURNED];
    Tile tile(a.tile);
    u32 e0 = blockIdx.x * tile.columns, b0 = blockIdx.y * tile.streams, t = blockIdx.z;
    u32 taps = min(a.taps, a.tokens - t);
    tile.as_signals([&](u32 column, u32 stream) {
        u32 e = e0 + column, b = b0 + stream;
        float sum = 0;
        if (e < a.width && b < a.streams)
            for (u32 k = 0; k < taps; k++) {
                const T* later = (const T*)a.signals + (u64)(t + k) * a.rows * a.streams;
                if (k <= reach(a, b, t + k)) sum += load(later[((u64)k * a.width + e) * a.streams + b]);
            }
        tile.at(turned, column, stream) = sum;
    });
    __syncthreads();
    tile.as_rows([&](u32 column, u32 stream) {
        u32 e = e0 + column, b = b0 + stream;
        if (e >= a.width || b >= a.streams) return;
        float* to = a.x + ((u64)b * a.tokens + t) * a.width + e;
        *to = (a.add ? *to : 0.0f) + tile.at(turned, column, stream);
    });
}

EXPORT_BOTH(taps, TapsArgs, 256, taps)
EXPORT_BOTH(taps_grad, TapsArgs, 256, taps_grad)
