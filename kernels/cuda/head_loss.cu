// Cross-entropy of a chunk of logits and its gradient, which takes the logits' place. Products are in product.cu.
#include "common.cuh"

struct HeadLossArgs {
    void* logits;           // [rows, vocabulary]; then their gradient, where one is wanted
    const u32* targets;     // [rows]; beyond the vocabulary: no loss, no gradient
    float* losses;          // [rows]
    const float* settings;  // the loss scale is the fifth
    u32 vocabulary, gradient;
};

// A block a row: the largest, the sum, then the gradient scale (p - [v = target]).
template <class T>
__device__ void head_loss(const HeadLossArgs& a) {
    T* logits = (T*)a.logits + (u64)blockIdx.x * a.vocabulary;
    u32 target = a.targets[blockIdx.x];
    if (target >= a.vocabulary) {
        if (threadIdx.x == 0) a.losses[blockIdx.x] = 0;
        if (a.gradient)
            for (u32 v = threadIdx.x; v < a.vocabulary; v += blockDim.x) logits[v] = store<T>(0);
        return;
    }
    float largest = -INFINITY;
    for (u32 v = threadIdx.x; v < a.vocabulary; v += blockDim.x) largest = fmaxf(largest, load(logits[v]));
    largest = block_max(largest);
    float at_target = load(logits[target]);
    float sum = 0;
    for (u32 v = threadIdx.x; v < a.vocabulary; v += blockDim.x) sum += expf(load(logits[v]) - largest);
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.losses[blockIdx.x] = largest + logf(sum) - at_target;
    if (!a.gradient) return;
    float scale = a.settings[4], factor = scale / sum;
    for (u32 v = threadIdx.x; v < a.vocabulary; v += blockDim.x) {
        float gradient = expf(load(logits[v]) - largest) * factor - (v == target ? scale : 0.0f);
        logits[v] = store<T>(gradient);
    }
}

EXPORT_BOTH(head_loss, HeadLossArgs, 256, head_loss)

struct LossSumArgs {
    const float* losses;    // [rows]
    const float* settings;
    float* results;         // the loss is the first
    u32 rows, add;
};

// One block.
__device__ void sum_losses(const LossSumArgs& a) {
    float sum = 0;
    for (u32 r = threadIdx.x; r < a.rows; r += blockDim.x) sum += a.losses[r];
    sum = block_sum(sum) * a.settings[4];
    if (threadIdx.x == 0) a.results[0] = a.add ? a.results[0] + sum : sum;
}

EXPORT(head_loss_sum, LossSumArgs, 1024, sum_losses)
