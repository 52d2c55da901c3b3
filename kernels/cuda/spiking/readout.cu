// The residual stream of a spiking model, computed from its signals; and the gradients. A sum of shifts: output o
// reaches, by weight [f, o], dim (o + f step) mod dims.
#include "readout.cuh"

// The number of weights and signals that a thread loads at once.
constexpr u32 AT_ONCE = 4;

// Each thread has N streams of a dim. Grid (dims / columns of a block, B / its streams, T).
template <class T, int N>
__device__ inline void sum_up(const ReadoutArgs& a, float* turned) {
    u32 lanes = a.tile / N, columns = 256 / lanes, column = threadIdx.x / lanes, own = threadIdx.x % lanes * N;
    u32 d = blockIdx.x * columns + column, b = blockIdx.y * a.tile + own, t = blockIdx.z;
    const T* signals = (const T*)a.signals + (u64)t * a.rows * a.streams + b;
    auto signal = [&](u32 row) { return fetch<T, N>(signals + row * a.streams); };
    if (d < a.dims && b < a.streams) {
        float sum[N];
        unpack(sum, signal(a.direct + d));
        if (a.gate_weight) {
            float by[N];
            unpack(by, signal(a.gate_first + d % a.gate_count));
#pragma unroll
            for (int n = 0; n < N; n++) sum[n] *= a.gate(d, by[n]);
        }
        for (u32 o0 = d; o0 < a.outputs + a.dims; o0 += a.dims) {
            for (u32 f0 = 0; f0 < a.fan_out; f0 += AT_ONCE) {
                float weights[AT_ONCE];
                Vector<T, N> x[AT_ONCE] = {};
#pragma unroll
                for (u32 j = 0; j < AT_ONCE; j++) {
                    // Indices before the first output wrap around to the end, one round later.
                    u32 f = f0 + j, o = o0 - f * a.step;
                    bool there = f < a.fan_out && o < a.outputs;
                    weights[j] = there ? a.weights[(u64)f * a.outputs + o] : 0.0f;
                    if (there) x[j] = signal(a.first + o);
                }
#pragma unroll
                for (u32 j = 0; j < AT_ONCE; j++) {
                    float values[N];
                    unpack(values, x[j]);
#pragma unroll
                    for (int n = 0; n < N; n++) sum[n] += weights[j] * values[n];
                }
            }
        }
#pragma unroll
        for (int n = 0; n < N; n++) turned[column * (a.tile + 1) + own + n] = sum[n];
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < columns * a.tile; i += 256) {
        u32 d = blockIdx.x * columns + i % columns, b = blockIdx.y * a.tile + i / columns;
        if (d < a.dims && b < a.streams)
            a.out[((u64)b * a.tokens + t) * a.dims + d] = turned[i % columns * (a.tile + 1) + i / columns];
    }
}

template <class T>
__device__ void readout(const ReadoutArgs& a) {
    // With 8 streams or more a thread has 4 or 8.
    __shared__ float turned[256 * 9];
    a.wide ? sum_up<T, WIDE<T>>(a, turned) : sum_up<T, 1>(a, turned);
}

EXPORT_BOTH(readout, ReadoutArgs, 256, readout)

// One stream: 32 dims for each block, with eight threads for each dim, which share the weights. Grid (dims / 32, 1, T).
template <class T>
__device__ void readout_of_one(const ReadoutArgs& a) {
    __shared__ float shares[8][32];
    u32 column = threadIdx.x % 32, share = threadIdx.x / 32, d = blockIdx.x * 32 + column;
    const T* signals = (const T*)a.signals + (u64)blockIdx.z * a.rows;
    float direct = 0, sum = 0;
    if (d < a.dims) {
        if (share == 0) {
            direct = load(signals[a.direct + d]);
            if (a.gate_weight) direct *= a.gate(d, load(signals[a.gate_first + d % a.gate_count]));
        }
        u32 groups = (a.outputs + a.dims - 1) / a.dims;
        // Neighbouring threads read neighbouring outputs.
        for (u32 start = share; start < a.fan_out * groups; start += 8 * 8) {
            float weights[8], x[8];
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                u32 i = start + 8 * j, f = i / groups, shift = f * a.step, from = d >= shift ? d - shift : d + a.dims - shift;
                u32 o = from + i % groups * a.dims;
                bool there = f < a.fan_out && o < a.outputs;
                weights[j] = there ? a.weights[(u64)f * a.outputs + o] : 0.0f;
                x[j] = there ? load(signals[a.first + o]) : 0.0f;
            }
#pragma unroll
            for (u32 j = 0; j < 8; j++) sum += weights[j] * x[j];
        }
    }
    shares[share][column] = sum;
    __syncthreads();
    if (share > 0 || d >= a.dims) return;
#pragma unroll
    for (u32 i = 0; i < 8; i++) direct += shares[i][column];
    a.out[(u64)blockIdx.z * a.dims + d] = direct;
}

EXPORT_BOTH(readout_one, ReadoutArgs, 256, readout_of_one)

// The number of tokens of one launch of the gradient.
constexpr u32 TOKENS = 8;

// Transposes the gradients of a tile for all tokens of the launch; zeros beyond the last. Grid (dims / columns of a
// tile, B / its streams).
__device__ void turn(const ReadoutArgs& a) {
    __shared__ float turned[TURNED];
    Tile tile(a.tile);
    u32 d0 = blockIdx.x * tile.columns, b0 = blockIdx.y * tile.streams;
    for (u32 i = 0; i < TOKENS; i++) {
        u32 t = a.token + i;
        tile.as_rows([&](u32 column, u32 stream) {
            u32 d = d0 + column, b = b0 + stream;
            bool there = d < a.dims && b < a.streams && t < a.tokens;
            tile.at(turned, column, stream) = there ? a.out[((u64)b * a.tokens + t) * a.dims + d] : 0.0f;
        });
        __syncthreads();
        tile.as_signals([&](u32 column, u32 stream) {
            u32 d = d0 + column, b = b0 + stream;
            if (d < a.dims && b < a.streams)
                a.turned[((u64)d * a.streams + b) * TOKENS + i] = tile.at(turned, column, stream);
        });
        __syncthreads();
    }
}

EXPORT(readout_turn, ReadoutArgs, 256, turn)

// Sums over a warp of eight values in each lane; lane l receives the sum of value l % 8.
__device__ inline float warp_sums(float (&x)[8]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 4; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) {
            // A lane that keeps the upper values sends the lower ones.
            bool upper = lane & half;
            float given = upper ? x[i] : x[i + half], kept = upper ? x[i + half] : x[i];
            x[i] = kept + __shfl_xor_sync(FULL_WARP, given, half);
        }
    x[0] += __shfl_xor_sync(FULL_WARP, x[0], 8);
    return x[0] + __shfl_xor_sync(FULL_WARP, x[0], 16);
}

// One warp for each signal, one lane for each stream. Grid (rows / 8).
template <class T, class G>
__device__ void readout_grad(const ReadoutArgs& a) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= a.rows) return;
    u32 count = min(TOKENS, a.tokens - a.token), o = row - a.first, d = row - a.direct, r = row - a.gate_first;
    for (u32 b0 = 0; b0 < a.streams; b0 += 32) {
        u32 b = b0 + lane;
        bool begins = a.token + b0 == 0, there = b < a.streams;
        auto signal = [&](u32 row, u32 i) {
            u64 at = ((u64)(a.token + i) * a.rows + row) * a.streams + b;
            return there && i < count ? load(((const T*)a.signals)[at]) : 0.0f;
        };
        auto grads = [&](float (&to)[TOKENS], u32 d) {
            if (there) read(to, a.turned + ((u64)d * a.streams + b) * TOKENS);
        };
        float own[TOKENS], back[TOKENS] = {};
#pragma unroll
        for (u32 i = 0; i < TOKENS; i++) own[i] = signal(row, i);
        if (o < a.outputs) {
            u32 to = o % a.dims;
            for (u32 f0 = 0; f0 < a.fan_out; f0 += 8) {
                float sums[8] = {};
#pragma unroll
                for (u32 j = 0; j < 8; j++) {
                    if (f0 + j >= a.fan_out) continue;
                    float weight = a.back[(u64)(f0 + j) * a.outputs + o], g[TOKENS] = {};
                    grads(g, to);
                    to = to + a.step < a.dims ? to + a.step : to + a.step - a.dims;
#pragma unroll
                    for (u32 i = 0; i < TOKENS; i++) {
                        back[i] += weight * g[i];
                        sums[j] += own[i] * g[i];
                    }
                }
                float sum = warp_sums(sums);
                float* at = a.weight_grad + (u64)(f0 + lane) * a.outputs + o;
                if (lane < 8 && f0 + lane < a.fan_out) *at = begins ? sum : *at + sum;
            }
        }
        if (d < a.dims) {
            float weight_sum = 0, bias_sum = 0, g[TOKENS] = {};
            grads(g, d);
#pragma unroll
            for (u32 i = 0; i < TOKENS; i++) {
                float opening = 1;
                if (a.gate_weight) {
                    float by = signal(a.gate_first + d % a.gate_count, i);
                    opening = a.gate(d, by);
                    // d G / d x = G (1 - G / 2).
                    float inner = g[i] * own[i] * opening * (1.0f - 0.5f * opening);
                    weight_sum += inner * by;
                    bias_sum += inner;
                }
                back[i] += (a.back_direct ? a.back_direct[d] : opening) * g[i];
            }
            auto add = [&](float* to, float sum) {
                sum = warp_sum(sum);
                if (lane == 0) *to = begins ? sum : *to + sum;
            };
            if (a.gate_weight) {
                add(a.gate_weight_grad + d, weight_sum);
                add(a.gate_bias_grad + d, bias_sum);
            }
        }
        if (a.gate_weight && !a.back_direct && r < a.gate_count)
            for (u32 to = r; to < a.dims; to += a.gate_count) {
                float g[TOKENS] = {};
                grads(g, to);
#pragma unroll
                for (u32 i = 0; i < TOKENS; i++) {
                    float opening = a.gate(to, own[i]);
                    float inner = g[i] * signal(a.direct + to, i) * opening * (1.0f - 0.5f * opening);
                    back[i] += inner * a.gate_weight[to];
                }
            }
#pragma unroll
        for (u32 i = 0; i < TOKENS; i++)
            if (there && i < count)
                ((G*)a.signals_grad)[((u64)(a.token + i) * a.rows + row) * a.streams + b] = store<G>(back[i]);
    }
}

EXPORT(readout_grad_f32_f32, ReadoutArgs, 256, readout_grad<float, float>)
EXPORT(readout_grad_bf16_f32, ReadoutArgs, 256, readout_grad<bf16, float>)
EXPORT(readout_grad_bf16_bf16, ReadoutArgs, 256, readout_grad<bf16, bf16>)
