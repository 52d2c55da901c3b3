// The arguments of the kernels of a norm's gradient.
#pragma once
#include "../fp8.cuh"

struct NormGradArgs {
    const void* x;            // [rows, columns]
    const float* stats;       // [rows, 2]; RMS: [rows, 1]
    void* x_grad;             // [rows, columns]
    const void* gain[2];      // [columns]
    const void* out_grad[2];  // [rows, columns]
    CopyArgs copy;            // of x_grad
    float* partial;           // [pieces, sums, columns]: of each output's gain and bias (RMS: its gain), then of x_grad
    u32 rows, columns, outputs;
    u32 add, piece;
    u32 wide;                 // whether rows begin at multiples of 16 bytes
    u32 shared;               // whether the sums of all warps are in shared memory
    u32 sums;                 // 0 where gains do not learn; in layer_norm_grad one more for sums of x_grad
};
