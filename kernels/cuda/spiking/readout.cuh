// The arguments of the kernels of a readout.
#pragma once
#include "streams.cuh"

struct ReadoutArgs {
    const void* signals;       // [T, rows, B]: the slots after the first
    const float* weights;      // [fan_out, outputs]
    const float* gate_weight;  // [dims], or null: no gate
    const float* gate_bias;    // [dims]
    float* out;                // [B, T, dims]; in the gradient: the gradient of the output
    const float* back;         // [fan_out, outputs]: the weights that propagate the gradient
    const float* back_direct;  // [dims]: those for the direct outputs, or null: the gate
    float* turned;             // [dims, B, tokens of a launch]: gradients in the layout of signals
    void* signals_grad;        // [T, rows, B]
    float* weight_grad;        // [fan_out, outputs]
    float* gate_weight_grad;   // [dims]
    float* gate_bias_grad;     // [dims]
    u32 rows, streams, tokens, dims, fan_out, outputs, step;
    u32 first, direct;         // signals that are projected, and signals that are the stream's dims
    u32 gate_first, gate_count;
    u32 token;                 // the first token of this launch
    u32 share;                 // tokens of a thread block, on tensor cores
    u32 tile;
    u32 wide;                  // whether a thread has 16 bytes of signals

    __device__ float gate(u32 d, float r) const { return 2.0f / (1.0f + expf(-(gate_weight[d] * r + gate_bias[d]))); }
};
