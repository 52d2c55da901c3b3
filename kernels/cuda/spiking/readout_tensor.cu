// The readout and its gradients on tensor cores, for bf16 signals without a gate.
//
// Outputs reach dims that are a step apart, cyclically. So the dims and outputs at multiples of the step form a
// separate small matrix multiplication, and there are as many of these as dims in a step. With D = K S dims, S the
// step, and r < S:
//
//   dims    r, r + S, r + 2 S, ...             K of them, j
//   outputs the same, then those D further on  K of them in each group, k
//
//   weight of output (group, k) to dim j:  [(j - k) mod K, group D + k S + r]
//
// Weights and the stream's gradients are f32. Each is split into two bf16, the rounded value and the rest, and a
// multiplication into three: together they have 16 bits of precision.
#include "readout.cuh"

#ifdef TENSOR_CORES

// The fan-out's limit, in units of 16 dims or outputs; the outputs, in units of 16, of a thread block of the weights'
// gradient.
constexpr u32 TILES = 4, ROWS = 3;

// 8 bytes in memory order.
struct alignas(8) Bytes8 {
    u32 x[2];
};

__device__ inline u32 groups(const ReadoutArgs& a) { return (a.outputs + a.dims - 1) / a.dims; }

// Two values, each as its rounded part and the rest.
struct Pair {
    u32 high, low;

    __device__ Pair(float x, float y) {
        high = pack(x, y);
        low = pack(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u));
    }
};

// A left matrix of 16 x 16 in the layout of a warp's registers.
struct Weights {
    Vector<u32, 4> high[32], low[32];
};
static_assert(sizeof(Weights) == 1024, "as readout_tensor.rs makes room for them");

// Stores the weights of dims and outputs at `r`: rows are dims, columns the outputs of a group, or transposed if BACK.
template <bool BACK>
__device__ inline void lay_weights(const ReadoutArgs& a, Weights* to, u32 r) {
    u32 tiles = a.fan_out / 16, count = groups(a) * tiles * tiles * 32;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 lane = i % 32, tile = i / 32, group = tile / (tiles * tiles);
        u32 row0 = tile / tiles % tiles * 16 + lane / 4, column0 = tile % tiles * 16 + lane % 4 * 2;
#pragma unroll
        for (u32 word = 0; word < 4; word++) {
            float x[2];
#pragma unroll
            for (u32 e = 0; e < 2; e++) {
                u32 row = row0 + word % 2 * 8, column = column0 + word / 2 * 8 + e;
                u32 j = BACK ? column : row, k = BACK ? row : column, o = group * a.dims + k * a.step + r;
                u32 f = j >= k ? j - k : j + a.fan_out - k;
                x[e] = o < a.outputs ? a.weights[(u64)f * a.outputs + o] : 0.0f;
            }
            Pair pair(x[0], x[1]);
            to[tile].high[lane].x[word] = pair.high;
            to[tile].low[lane].x[word] = pair.low;
        }
    }
}

#endif

// One block for the dims at one offset within a step, one warp for 32 streams of a token. Grid (step, T / share).
__device__ void readout(const ReadoutArgs& a) {
#ifdef TENSOR_CORES
    LAUNCH_SHARED(room, 144 << 10);
    Weights* weights = (Weights*)room;
    u32 r = blockIdx.x, lane = threadIdx.x % 32, own = lane / 4, pair = lane % 4 * 2, tiles = a.fan_out / 16;
    lay_weights<false>(a, weights, r);
    __syncthreads();
    u32 parts = (a.streams + 31) / 32, t0 = blockIdx.y * a.share, count = min(a.share, a.tokens - t0) * parts;
    for (u32 item = threadIdx.x / 32; item < count; item += blockDim.x / 32) {
        u32 t = t0 + item / parts, b0 = item % parts * 32;
        const bf16* signals = (const bf16*)a.signals + (u64)t * a.rows * a.streams + b0;
        // Multiplication q has streams q, q + 4, ...
        float sums[TILES][4][4] = {};
        auto each = [&](auto visit) {
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    u32 j = tile * 16 + own + e / 2 * 8, b = (pair + e % 2) * 4;
                    if (j < a.fan_out && b0 + b < a.streams) visit(j * a.step + r, b, tile, e);
                }
        };
        each([&](u32 d, u32 b, u32 tile, u32 e) {
            Bytes8 x = *(const Bytes8*)(signals + (u64)(a.direct + d) * a.streams + b);
#pragma unroll
            for (u32 q = 0; q < 4; q++)
                sums[tile][q][e] = __uint_as_float(q % 2 ? x.x[q / 2] & 0xffff0000u : x.x[q / 2] << 16);
        });
#pragma unroll 1
        for (u32 group = 0; group < groups(a); group++) {
            u32 right[TILES][4][2] = {};
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    Bytes8 x[2] = {};
#pragma unroll
                    for (u32 e = 0; e < 2; e++) {
                        u32 k = tile * 16 + half * 8 + pair + e, o = group * a.dims + k * a.step + r;
                        if (k < a.fan_out && o < a.outputs && b0 + own * 4 < a.streams)
                            x[e] = *(const Bytes8*)(signals + (u64)(a.first + o) * a.streams + own * 4);
                    }
#pragma unroll
                    for (u32 q = 0; q < 4; q++)
                        right[tile][q][half] = q % 2 ? x[0].x[q / 2] >> 16 | (x[1].x[q / 2] & 0xffff0000u)
                                                     : (x[0].x[q / 2] & 0xffffu) | x[1].x[q / 2] << 16;
                }
            const Weights* left = weights + group * tiles * tiles;
#pragma unroll
            for (u32 row = 0; row < TILES; row++)
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++)
                    if (row < tiles && tile < tiles) {
                        const Weights& w = left[row * tiles + tile];
                        Vector<u32, 4> high = w.high[lane], low = w.low[lane];
#pragma unroll
                        for (u32 q = 0; q < 4; q++) {
                            multiply(sums[row][q], high.x, right[tile][q][0], right[tile][q][1]);
                            multiply(sums[row][q], low.x, right[tile][q][0], right[tile][q][1]);
                        }
                    }
        }
        each([&](u32 d, u32 b, u32 tile, u32 e) {
#pragma unroll
            for (u32 q = 0; q < 4; q++) a.out[((u64)(b0 + b + q) * a.tokens + t) * a.dims + d] = sums[tile][q][e];
        });
    }
#else
    __trap();
#endif
}

EXPORT_MANY(readout_tensor, ReadoutArgs, 128, 4, readout)

// One block for the dims at two neighbouring offsets within a step, one warp for 16 streams of a token. Grid (step / 2,
// T / share).
template <class T>
__device__ void signal_grads(const ReadoutArgs& a) {
#ifdef TENSOR_CORES
    LAUNCH_SHARED(room, 144 << 10);
    u32 r = blockIdx.x * 2, lane = threadIdx.x % 32, own = lane / 4, pair = lane % 4 * 2, tiles = a.fan_out / 16;
    u32 of_one = groups(a) * tiles * tiles;
    for (u32 i = 0; i < 2; i++) lay_weights<true>(a, (Weights*)room + i * of_one, r + i);
    __syncthreads();
    u32 parts = (a.streams + 15) / 16, t0 = blockIdx.y * a.share, count = min(a.share, a.tokens - t0) * parts;
    for (u32 item = threadIdx.x / 32; item < count; item += blockDim.x / 32) {
        u32 t = t0 + item / parts, b0 = item % parts * 16;
        T* signals_grad = (T*)a.signals_grad + (u64)t * a.rows * a.streams;
        u32 high[2][2][TILES][2] = {}, low[2][2][TILES][2] = {};  // [offset, 8 streams, 16 dims, half of them]
#pragma unroll
        for (u32 eight = 0; eight < 2; eight++)
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    u32 j = tile * 16 + half * 8 + pair, b = b0 + eight * 8 + own;
                    if (j >= a.fan_out || b >= a.streams) continue;
                    const float* from = a.out + ((u64)b * a.tokens + t) * a.dims + j * a.step + r;
                    Bytes8 x[2] = {*(const Bytes8*)from, *(const Bytes8*)(from + a.step)};
#pragma unroll
                    for (u32 place = 0; place < 2; place++) {
                        float g[2] = {__uint_as_float(x[0].x[place]), __uint_as_float(x[1].x[place])};
#pragma unroll
                        for (u32 e = 0; e < 2; e++)
                            signals_grad[(u64)(a.direct + (j + e) * a.step + r + place) * a.streams + b] = store<T>(g[e]);
                        Pair both(g[0], g[1]);
                        high[place][eight][tile][half] = both.high;
                        low[place][eight][tile][half] = both.low;
                    }
                }
#pragma unroll
        for (u32 place = 0; place < 2; place++)
#pragma unroll 1
            for (u32 row = 0; row < groups(a) * tiles; row++) {
                const Weights* left = (const Weights*)room + place * of_one + row * tiles;
                float sums[2][4] = {};
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++)
                    if (tile < tiles) {
                        Vector<u32, 4> rounded = left[tile].high[lane], rest = left[tile].low[lane];
#pragma unroll
                        for (u32 eight = 0; eight < 2; eight++) {
                            const u32(&h)[2] = high[place][eight][tile], (&l)[2] = low[place][eight][tile];
                            multiply(sums[eight], rounded.x, h[0], h[1]);
                            multiply(sums[eight], rounded.x, l[0], l[1]);
                            multiply(sums[eight], rest.x, h[0], h[1]);
                        }
                    }
                u32 k = row % tiles * 16 + own, o = row / tiles * a.dims + k * a.step + r + place;
#pragma unroll
                for (u32 half = 0; half < 2; half++)
#pragma unroll
                    for (u32 eight = 0; eight < 2; eight++) {
                        u32 output = o + half * 8 * a.step, b = b0 + eight * 8 + pair;
                        if (output >= a.outputs || b >= a.streams) continue;
                        T* to = signals_grad + (u64)(a.first + output) * a.streams + b;
                        to[0] = store<T>(sums[eight][half * 2]), to[1] = store<T>(sums[eight][half * 2 + 1]);
                    }
            }
    }
#else
    __trap();
#endif
}

EXPORT_PAIR(readout_signals_f32, ReadoutArgs, 256, signal_grads<float>)
EXPORT_PAIR(readout_signals_bf16, ReadoutArgs, 256, signal_grads<bf16>)

// Writes zeros as the gradient of signals that are neither projected nor the stream's. Grid (such signals / 8, T).
template <class T>
__device__ void no_grads(const ReadoutArgs& a) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32;
    bool ahead = a.first < a.direct;
    u32 begins[2] = {ahead ? a.first : a.direct, ahead ? a.direct : a.first};
    row += row >= begins[0] ? ahead ? a.outputs : a.dims : 0;
    row += row >= begins[1] ? ahead ? a.dims : a.outputs : 0;
    if (row >= a.rows) return;
    T* to = (T*)a.signals_grad + ((u64)blockIdx.y * a.rows + row) * a.streams;
    for (u32 b = threadIdx.x % 32; b < a.streams; b += 32) to[b] = store<T>(0);
}

EXPORT(readout_rest_f32, ReadoutArgs, 256, no_grads<float>)
EXPORT(readout_rest_bf16, ReadoutArgs, 256, no_grads<bf16>)

// One block for the dims at two neighbouring offsets within a step and 48 outputs, one warp for 8 of the dims. Grid
// (step / 2, groups fan_out / 48).
__device__ void weight_grads(const ReadoutArgs& a) {
#ifdef TENSOR_CORES
    u32 r = blockIdx.x * 2, lane = threadIdx.x % 32, own = lane / 4, pair = lane % 4 * 2, tiles = a.fan_out / 16;
    u32 dims8 = threadIdx.x / 32 * 8, first = blockIdx.y * ROWS, end = min(first + ROWS, groups(a) * tiles);
    auto output = [&](u32 row) { return row / tiles * a.dims + (row % tiles * 16 + own) * a.step + r; };
    float sums[2][ROWS][4] = {};
    for (u32 b0 = lane % 4 * 8; b0 - lane % 4 * 8 < a.streams; b0 += 32) {
        // Streams in memory order: a thread's 16 bytes of signals are half of two left matrices.
        bool has = b0 < a.streams;
        const float* grads = a.out + (u64)b0 * a.tokens * a.dims + (dims8 + own) * a.step + r;
        const bf16* signals = (const bf16*)a.signals + (u64)a.first * a.streams + b0;
#pragma unroll 2
        for (u32 t = 0; t < a.tokens; t++, grads += a.dims, signals += (u64)a.rows * a.streams) {
            u32 high[2][4], low[2][4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                Bytes8 x[2] = {};
#pragma unroll
                for (u32 e = 0; e < 2; e++)
                    if (has) x[e] = *(const Bytes8*)(grads + (u64)(2 * i + e) * a.tokens * a.dims);
#pragma unroll
                for (u32 place = 0; place < 2; place++) {
                    Pair both(__uint_as_float(x[0].x[place]), __uint_as_float(x[1].x[place]));
                    high[place][i] = both.high, low[place][i] = both.low;
                }
            }
#pragma unroll
            for (u32 i = 0; i < ROWS; i++) {
                if (first + i >= end) break;
                u32 o = output(first + i);
#pragma unroll
                for (u32 place = 0; place < 2; place++) {
                    Vector<u32, 4> x[2] = {};
#pragma unroll
                    for (u32 half = 0; half < 2; half++)
                        if (u32 at = o + half * 8 * a.step + place; has && at < a.outputs)
                            x[half] = *(const Vector<u32, 4>*)(signals + (u64)at * a.streams);
#pragma unroll
                    for (u32 k = 0; k < 2; k++) {
                        u32 left[4] = {x[0].x[2 * k], x[1].x[2 * k], x[0].x[2 * k + 1], x[1].x[2 * k + 1]};
                        multiply(sums[place][i], left, high[place][2 * k], high[place][2 * k + 1]);
                        multiply(sums[place][i], left, low[place][2 * k], low[place][2 * k + 1]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < ROWS; i++)
#pragma unroll
        for (u32 place = 0; place < 2; place++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                u32 k = (first + i) % tiles * 16 + own + e / 2 * 8, o = output(first + i) + e / 2 * 8 * a.step + place;
                u32 j = dims8 + pair + e % 2, f = j >= k ? j - k : j + a.fan_out - k;
                if (first + i < end && o < a.outputs) a.weight_grad[(u64)f * a.outputs + o] = sums[place][i][e];
            }
#else
    __trap();
#endif
}

EXPORT(readout_weights, ReadoutArgs, 256, weight_grads)
