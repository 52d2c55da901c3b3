// The residual stream of a spiking model out of its signals, and the gradients. A sum of shifts: output o reaches, by
// weight [f, o], dim (o + f step) mod dims.
#include "streams.cuh"

struct ReadoutArgs {
    const void* signals;       // [T, rows, B]: the slots behind the first
    const float* weights;      // [fan_out, outputs]
    const float* gate_weight;  // [dims], or null: no gate
    const float* gate_bias;    // [dims]
    float* out;                // [B, T, dims]; of the gradient: its gradient
    const float* back;         // [fan_out, outputs]: what the gradient goes back by
    const float* back_direct;  // [dims]: the same of the direct outputs, or null: the gate
    float* turned;             // [tokens of a launch, dims, B]: gradients as signals lie
    void* signals_grad;        // [T, rows, B]
    float* weight_grad;        // [fan_out, outputs]
    float* gate_weight_grad;   // [dims]
    float* gate_bias_grad;     // [dims]
    u32 rows, streams, tokens, dims, fan_out, outputs, step;
    u32 first, direct;         // signals that are projected, and that are the stream's
    u32 gate_first, gate_count;
    u32 token;                 // the first of this launch
    u32 tile;

    __device__ float gate(u32 d, float r) const { return 2.0f / (1.0f + expf(-(gate_weight[d] * r + gate_bias[d]))); }
};

// Grid (dims / columns of a tile, B / its streams, T).
template <class T>
__device__ void readout(const ReadoutArgs& a) {
    __shared__ float turned[TURNED];
    Tile tile(a.tile);
    u32 d0 = blockIdx.x * tile.columns, b0 = blockIdx.y * tile.streams, t = blockIdx.z;
    const T* signals = (const T*)a.signals + (u64)t * a.rows * a.streams;
    tile.as_signals([&](u32 column, u32 stream) {
        u32 d = d0 + column, b = b0 + stream;
        if (d >= a.dims || b >= a.streams) return;
        auto signal = [&](u32 row) { return load(signals[(u64)row * a.streams + b]); };
        float sum = signal(a.direct + d);
        if (a.gate_weight) sum *= a.gate(d, signal(a.gate_first + d % a.gate_count));
        for (u32 f = 0; f < a.fan_out; f++) {
            u32 shift = f * a.step, from = d >= shift ? d - shift : d + a.dims - shift;
#pragma unroll 4
            for (u32 o = from; o < a.outputs; o += a.dims)
                sum += a.weights[(u64)f * a.outputs + o] * signal(a.first + o);
        }
        tile.at(turned, column, stream) = sum;
    });
    __syncthreads();
    tile.as_rows([&](u32 column, u32 stream) {
        u32 d = d0 + column, b = b0 + stream;
        if (d < a.dims && b < a.streams) a.out[((u64)b * a.tokens + t) * a.dims + d] = tile.at(turned, column, stream);
    });
}

EXPORT_BOTH(readout, ReadoutArgs, 256, readout)

// One stream: 32 dims a block, eight threads each, which share the weights. Grid (dims / 32, 1, T).
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

// The same grid, of the tokens of a launch.
__device__ void turn(const ReadoutArgs& a) {
    __shared__ float turned[TURNED];
    Tile tile(a.tile);
    u32 d0 = blockIdx.x * tile.columns, b0 = blockIdx.y * tile.streams, t = a.token + blockIdx.z;
    tile.as_rows([&](u32 column, u32 stream) {
        u32 d = d0 + column, b = b0 + stream;
        bool there = d < a.dims && b < a.streams;
        tile.at(turned, column, stream) = there ? a.out[((u64)b * a.tokens + t) * a.dims + d] : 0.0f;
    });
    __syncthreads();
    tile.as_signals([&](u32 column, u32 stream) {
        u32 d = d0 + column, b = b0 + stream;
        if (d < a.dims && b < a.streams)
            a.turned[((u64)blockIdx.z * a.dims + d) * a.streams + b] = tile.at(turned, column, stream);
    });
}

EXPORT(readout_turn, ReadoutArgs, 256, turn)

// Tokens of a launch.
constexpr u32 TOKENS = 8;

// A warp a signal, a lane a stream. Grid (rows / 8).
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
        auto grad = [&](u32 d, u32 i) {
            return there && i < count ? a.turned[((u64)i * a.dims + d) * a.streams + b] : 0.0f;
        };
        auto add = [&](float* to, float sum) {
            sum = warp_sum(sum);
            if (lane == 0) *to = begins ? sum : *to + sum;
        };
        float own[TOKENS], back[TOKENS] = {};
#pragma unroll
        for (u32 i = 0; i < TOKENS; i++) own[i] = signal(row, i);
        if (o < a.outputs)
            for (u32 f = 0; f < a.fan_out; f++) {
                float weight = a.back[(u64)f * a.outputs + o], sum = 0;
                u32 to = (o + f * a.step) % a.dims;
#pragma unroll
                for (u32 i = 0; i < TOKENS; i++) {
                    float g = grad(to, i);
                    back[i] += weight * g;
                    sum += own[i] * g;
                }
                add(a.weight_grad + (u64)f * a.outputs + o, sum);
            }
        if (d < a.dims) {
            float weight_sum = 0, bias_sum = 0;
#pragma unroll
            for (u32 i = 0; i < TOKENS; i++) {
                float g = grad(d, i), opening = 1;
                if (a.gate_weight) {
                    float by = signal(a.gate_first + d % a.gate_count, i);
                    opening = a.gate(d, by);
                    // d G / d x = G (1 - G / 2).
                    float inner = g * own[i] * opening * (1.0f - 0.5f * opening);
                    weight_sum += inner * by;
                    bias_sum += inner;
                }
                back[i] += (a.back_direct ? a.back_direct[d] : opening) * g;
            }
            if (a.gate_weight) {
                add(a.gate_weight_grad + d, weight_sum);
                add(a.gate_bias_grad + d, bias_sum);
            }
        }
        if (a.gate_weight && !a.back_direct && r < a.gate_count)
            for (u32 to = r; to < a.dims; to += a.gate_count)
#pragma unroll
                for (u32 i = 0; i < TOKENS; i++) {
                    float opening = a.gate(to, own[i]);
                    float inner = grad(to, i) * signal(a.direct + to, i) * opening * (1.0f - 0.5f * opening);
                    back[i] += inner * a.gate_weight[to];
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
