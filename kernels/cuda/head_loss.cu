// Cross-entropy of a chunk of logits and its gradient, which takes the logits' place. Products are in product.cu.
#include "vector.cuh"

struct HeadLossArgs {
    void* logits;           // [rows, vocabulary]; then their gradient, where one is wanted
    const u32* targets;     // [rows]; beyond the vocabulary: no loss, no gradient
    float* losses;          // [rows]
    const float* settings;  // the loss scale is the fifth
    u32 vocabulary, gradient;
    u32 wide;               // whether rows begin at multiples of 16 bytes
};

constexpr int THREADS = 512;  // a row
constexpr int HELD = 4;       // vectors a thread: 16,384 logits of bf16 are read once, of others a part from L2 again

// The sum of 2^(x - largest) over what was seen so far; `largest` is finite, so that logits of -inf add nothing.
struct PowerSum {
    float largest = -3.402823466e38f, sum = 0;

    __device__ void raise(float to) {
        sum *= power_of_two(largest - to);
        largest = to;
    }
};

// Over the block, in an order that depends on its size only; every thread gets it.
__device__ inline PowerSum block_total(PowerSum own) {
    __shared__ float largest[THREADS / 32];
    __shared__ float sums[THREADS / 32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    own.raise(warp_max(own.largest));
    own.sum = warp_sum(own.sum);
    if (lane == 0) largest[warp] = own.largest, sums[warp] = own.sum;
    __syncthreads();
    PowerSum total;
    if (lane < THREADS / 32) total.largest = largest[lane], total.sum = sums[lane];
    total.raise(warp_max(total.largest));
    total.sum = warp_sum(total.sum);
    return total;
}

// A block a row: the largest and the sum of powers together, then the gradient scale (p - [v = target]).
template <class T, int N>
__device__ inline void head_loss_row(const HeadLossArgs& a) {
    T* logits = (T*)a.logits + (u64)blockIdx.x * a.vocabulary;
    u32 target = a.targets[blockIdx.x];
    if (target >= a.vocabulary) {
        if (threadIdx.x == 0) a.losses[blockIdx.x] = 0;
        const float nothing[N] = {};
        if (a.gradient)
            for (u32 v = threadIdx.x * N; v < a.vocabulary; v += THREADS * N) write(logits + v, nothing);
        return;
    }
    Row<T, N, THREADS, HELD> row(logits, a.vocabulary, threadIdx.x);
    float at_target = load(logits[target]);
    PowerSum total;
    row.each([&](u32, const float(&x)[N]) {
        float largest = x[0], sum = 0;
#pragma unroll
        for (int i = 1; i < N; i++) largest = fmaxf(largest, x[i]);
        total.raise(fmaxf(total.largest, largest * LOG2_E));
#pragma unroll
        for (int i = 0; i < N; i++) sum += power_of_two(x[i] * LOG2_E - total.largest);
        total.sum += sum;
    });
    // Beyond it all threads have read all logits.
    total = block_total(total);
    if (threadIdx.x == 0) a.losses[blockIdx.x] = total.largest * LN_2 + logf(total.sum) - at_target;
    if (!a.gradient) return;
    float scale = a.settings[4], factor = scale / total.sum;
    row.each([&](u32 v, const float(&x)[N]) {
        float gradient[N];
#pragma unroll
        for (int i = 0; i < N; i++) gradient[i] = power_of_two(x[i] * LOG2_E - total.largest) * factor;
        if (target - v < N)
#pragma unroll
            for (int i = 0; i < N; i++) gradient[i] -= v + i == target ? scale : 0.0f;
        write(logits + v, gradient);
    });
}

template <class T>
__device__ void head_loss(const HeadLossArgs& a) {
    a.wide ? head_loss_row<T, WIDE<T>>(a) : head_loss_row<T, 1>(a);
}

EXPORT_PAIR(head_loss_f32, HeadLossArgs, THREADS, head_loss<float>)
EXPORT_PAIR(head_loss_bf16, HeadLossArgs, THREADS, head_loss<bf16>)

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
