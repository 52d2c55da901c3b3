// The gradient of synapses from signals in bf16 on tensor cores: 8 synapses of a row, which gather what their sources
// said in 32 streams, times the row's gradient there.
#include "synapse_grad.cuh"

// A warp a row. What a thread gathers of a synapse, 16 bytes, is a whole left fragment: its 1st and 3rd words are a row of
// the matrix, the 2nd and 4th the row 8 below. So of the right matrix's columns 0 and 1 are the gradient in the streams of
// either, 2 and 3 the same where the token before counts, and a synapse's sum is that of two elements. Grid (neurons / 8).
__device__ void gather_and_multiply(const SynapseGradArgs& a) {
#ifdef TENSOR_CORES
    u32 row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, own = lane / 4;
    if (row >= a.neurons) return;
    u32 streams = lane % 4 * 8, tokens = min((u32)TENSOR_TOKENS, a.tokens - a.token);
    bool has = a.stream + streams < a.streams;
    u32 right[TENSOR_TOKENS][2] = {};
#pragma unroll
    for (u32 i = 0; i < TENSOR_TOKENS; i++) {
        u32 t = a.token + i;
        if (i >= tokens) break;
        u32 stream = a.stream + lane;
        u32 kept = __ballot_sync(FULL_WARP, stream < a.streams && a.keep[t * a.streams + stream] > 0);
        if (own >= 4 || !has) continue;
        u64 at = ((u64)t * a.neurons + row) * a.streams + a.stream + streams + own % 2 * 2;
#pragma unroll
        for (u32 w = 0; w < 2; w++) {
            u32 counts = own < 2 ? 3 : kept >> (streams + own % 2 * 2 + 4 * w);
            right[i][w] = *(const u32*)((const bf16*)a.grad + at + 4 * w) &
                          ((counts & 1 ? 0xffffu : 0) | (counts & 2 ? 0xffff0000u : 0));
        }
    }
    u64 slot = (u64)a.rows * a.streams;
    const bf16* signals = (const bf16*)a.signals + a.token * slot + (has ? a.stream + streams : 0);
    const u32* sources = a.sources + (u64)row * a.fan_in;
    float* weight_grad = a.weight_grad + (u64)row * a.fan_in;
    u32 next = own < a.fan_in ? sources[own] : ~0u;
    for (u32 f = own; __ballot_sync(FULL_WARP, next < 2 * a.rows) != 0; f += 8) {
        // Sources rise: behind these there are spikes.
        u32 s = next;
        bool now = s < a.rows, of_signal = s < 2 * a.rows, writes = of_signal && lane % 4 == (now ? 0 : 1);
        next = f + 8 < a.fan_in ? sources[f + 8] : ~0u;
        float sum = writes && a.token + a.stream > 0 ? weight_grad[f] : 0.0f;
        const bf16* from = signals + (now ? slot + (u64)s * a.streams : of_signal ? (u64)(s - a.rows) * a.streams : 0);
        Vector<u32, 4> x[TENSOR_TOKENS];
#pragma unroll
        for (u32 i = 0; i < TENSOR_TOKENS; i++) {
            x[i] = fetch<u32, 4>((const u32*)from);
            // Behind the last token it is read again, times 0.
            from += i + 1 < tokens ? slot : 0;
        }
        float sums[4] = {};
#pragma unroll
        for (int i = 0; i < TENSOR_TOKENS; i++) multiply(sums, x[i].x, right[i][0], right[i][1]);
        if (writes) weight_grad[f] = sum + (sums[0] + sums[3]);
    }
#else
    __trap();
#endif
}

EXPORT_MANY(synapse_grad_tensor, SynapseGradArgs, 256, 3, gather_and_multiply)
