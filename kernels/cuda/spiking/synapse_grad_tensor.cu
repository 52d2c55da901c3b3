// The gradient of synapses from signals in bf16 on tensor cores: 8 synapses of a row, which gather their sources'
// signals in 32 streams, times the row's gradient in these streams.
#include "synapse_grad.cuh"

// One warp for each row. The 16 bytes that a thread gathers for a synapse are a whole left fragment: the 1st and 3rd
// words are a row of the matrix, the 2nd and 4th the row 8 below. So columns 0 and 1 of the right matrix are the
// gradients in the streams of either row, columns 2 and 3 the same where the token before counts, and a synapse's sum
// is that of two elements.
template <bool FULL>
__device__ inline void gather_and_multiply(const SynapseGradArgs& a, u32 row, u32 tokens) {
#ifdef TENSOR_CORES
    u32 lane = threadIdx.x % 32, own = lane / 4, streams = lane % 4 * 8;
    bool has = a.stream + streams < a.streams;
    // Lanes without work read any valid address, times 0.
    auto place = [&](u32 i) { return a.token + (FULL ? i : min(i, tokens - 1)); };
    u32 right[TENSOR_TOKENS][2], kept[TENSOR_TOKENS];
    const bf16* grad = (const bf16*)a.grad + (u64)row * a.streams + (has ? a.stream + streams + own % 2 * 2 : 0);
    const float* keep = a.keep + min(a.stream + lane, a.streams - 1);
#pragma unroll
    for (u32 i = 0; i < TENSOR_TOKENS; i++) {
        const u32* from = (const u32*)(grad + (u64)place(i) * a.neurons * a.streams);
        right[i][0] = from[0], right[i][1] = from[2];
        kept[i] = __ballot_sync(FULL_WARP, keep[place(i) * a.streams] > 0);
    }
#pragma unroll
    for (u32 i = 0; i < TENSOR_TOKENS; i++) {
        u32 wanted = own < 2 ? ~0u : own < 4 ? kept[i] >> (streams + own % 2 * 2) : 0;
        wanted = has && (FULL || i < tokens) ? wanted : 0;
#pragma unroll
        for (u32 w = 0; w < 2; w++) {
            u32 low = wanted & (1 << 4 * w) ? 0xffffu : 0, high = wanted & (2 << 4 * w) ? 0xffff0000u : 0;
            right[i][w] &= low | high;
        }
    }
    u32 step = a.streams * sizeof(bf16), next = own < a.fan_in ? a.sources[(u64)row * a.fan_in + own] : ~0u;
    u64 slot = (u64)a.rows * step;
    // Relative to source 0, so that the address of a source takes one multiplication.
    const char* before = (const char*)a.signals + a.token * slot + (has ? a.stream + streams : 0) * sizeof(bf16) - slot;
    const u32* sources = a.sources + (u64)row * a.fan_in + own;
    float* weight_grad = a.weight_grad + (u64)row * a.fan_in + own;
    // Sources are ascending: those after these are spikes.
    for (u32 f = own; __ballot_sync(FULL_WARP, next < 2 * a.rows) != 0; f += 8) {
        u32 s = next;
        bool now = s < a.rows, of_signal = s < 2 * a.rows, writes = of_signal && lane % 4 == (now ? 0 : 1);
        sources += 8;
        next = f + 8 < a.fan_in ? *sources : ~0u;
        float sum = writes && a.token + a.stream > 0 ? *weight_grad : 0.0f;
        const char* from = before + (u64)(of_signal ? s : a.rows) * step;
        from += now ? 2 * slot : 0;
        Vector<u32, 4> x[TENSOR_TOKENS];
#pragma unroll
        for (u32 i = 0; i < TENSOR_TOKENS; i++) {
            x[i] = fetch<u32, 4>((const u32*)from);
            from += FULL || i + 1 < tokens ? slot : 0;
        }
        // Two independent chains of multiplications.
        float sums[2][4] = {};
#pragma unroll
        for (int i = 0; i < TENSOR_TOKENS; i++) multiply(sums[i % 2], x[i].x, right[i][0], right[i][1]);
        if (writes) *weight_grad = sum + ((sums[0][0] + sums[1][0]) + (sums[0][3] + sums[1][3]));
        weight_grad += 8;
    }
#else
    __trap();
#endif
}

// Grid (neurons / 8).
__device__ void gathered_products(const SynapseGradArgs& a) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32, tokens = min((u32)TENSOR_TOKENS, a.tokens - a.token);
    if (row >= a.neurons) return;
    if (tokens == TENSOR_TOKENS) gather_and_multiply<true>(a, row, tokens);
    else gather_and_multiply<false>(a, row, tokens);
}

EXPORT_MANY(synapse_grad_tensor, SynapseGradArgs, 256, 3, gathered_products)
