// Definitions shared by the kernels of a synapse's gradient.
#pragma once
#include "streams.cuh"

struct SynapseGradArgs {
    const void* grad;     // [T, neurons, B]
    const void* signals;  // [T + 1, rows, B]
    const void* spikes;   // [T + 1, neurons, B]
    const float* keep;    // [T, B]
    const u32* sources;   // [neurons, fan_in]: ascending
    float* weight_grad;   // [neurons, fan_in]
    u32* bits;            // [groups of 32 streams, neurons, T]: spikes at the token before, where that counts
    u32 rows, neurons, streams, fan_in, tokens;
    u32 token, stream;    // the first token and stream of this launch, for signals
    u32 together;         // streams of a synapse: a power of two, 32 at most
    u32 wide;             // whether a thread has 16 bytes of them
    u32 quads;            // whether bits of four tokens are read at once
};

// Tokens of a launch over synapses from signals: few, so that the signals that all rows read stay in L2.
constexpr int TOKENS = 4;
constexpr int TENSOR_TOKENS = 8;
