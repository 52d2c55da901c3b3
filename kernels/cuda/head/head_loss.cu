// Cross-entropy of a chunk of logits and its gradient, which overwrites the logits. The matrix multiplications are in
// product.cu.
#include "softcap.cuh"
#include "../control.cuh"
#include "../vector.cuh"

struct HeadLossArgs {
    void* logits;           // [rows, vocabulary]; then their gradient, if requested
    const u32* targets;     // [rows]; beyond the ids: no loss, no gradient
    float* losses;          // [rows]
    const float* bias;      // [vocabulary]: added to the logits; or null
    const Settings* settings;
    u32 vocabulary, ids;    // logits of a row; those from `ids` on are padding, with no probability and gradients of 0
    u32 gradient;
    u32 wide;               // whether rows begin at multiples of 16 bytes
    float softcap;          // C of C tanh(z / C), applied to logits in the kernels with a cap
};

// A block has a row, of which each thread holds vectors in registers; the rest is read twice, the second time from L2
// if it is still there. A multiprocessor holds 32 KiB of logits of each of two rows, or 96 KiB of one. With 200,064
// logits of bf16, 400 KB, two rows need 2 x 132 x 367 KB = 97 MB of an L2 of 50 MB; one row needs 132 x 302 KB = 40 MB,
// and half of that at a time, since a block spends half of its time re-reading in reverse order. Then a row moves 800
// KB, 0.19 us at 4.2 TB/s, against 0.29 where everything is read twice; it takes two exponentials for each logit,
// 25,000 of the 44,000 cycles that a multiprocessor has for its row.
struct Short {
    static constexpr int THREADS = 512, HELD = 4;
    static constexpr bool ONCE = false;
};
struct Long {
    static constexpr int THREADS = 1024, HELD = 6;
    static constexpr bool ONCE = true;
};

// The sum of 2^(x - largest) over the logits seen so far; `largest` is finite, so that logits of -inf add nothing.
struct PowerSum {
    float largest = -3.402823466e38f, sum = 0;

    __device__ void raise(float to) {
        sum *= power_of_two(largest - to);
        largest = to;
    }
};

// The total over the block, in an order that depends only on its size; every thread receives it.
template <int THREADS>
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

// The maximum and the sum of exponentials together, then the gradient scale (p - [v = target]).
template <class T, int N, class Way, bool CAPPED>
__device__ inline void head_loss_row(const HeadLossArgs& a) {
    constexpr int THREADS = Way::THREADS;
    T* logits = (T*)a.logits + (u64)blockIdx.x * a.vocabulary;
    u32 target = a.targets[blockIdx.x], end = (a.ids + N - 1) / N * N;
    auto clear = [&](u32 from) {
        const float nothing[N] = {};
        for (u32 v = from + threadIdx.x * N; v < a.vocabulary; v += THREADS * N) write(logits + v, nothing);
    };
    if (target >= a.ids) {
        if (threadIdx.x == 0) a.losses[blockIdx.x] = 0;
        if (a.gradient) clear(0);
        return;
    }
    Row<T, N, THREADS, Way::HELD, Way::ONCE> row(logits, end, threadIdx.x);
    float at_target = load(logits[target]) + (a.bias ? a.bias[target] : 0.0f);
    if (CAPPED) at_target = softcap<T>(at_target, a.softcap);
    // Adds the bias, and applies the cap. `end` may be N - 1 beyond the ids, in the row's last vector.
    auto complete = [&](u32 v, float(&x)[N]) {
        if (a.bias) {
            float bias[N];
            read(bias, a.bias + v);
#pragma unroll
            for (int i = 0; i < N; i++) x[i] += bias[i];
        }
        if (CAPPED)
#pragma unroll
            for (int i = 0; i < N; i++) x[i] = softcap<T>(x[i], a.softcap);
        if (N > 1 && v + N > a.ids)
#pragma unroll
            for (int i = 0; i < N; i++) x[i] = v + i < a.ids ? x[i] : -INFINITY;
    };
    PowerSum total;
    row.each([&](u32 v, float(&x)[N]) {
        complete(v, x);
        float largest = x[0], sum = 0;
#pragma unroll
        for (int i = 1; i < N; i++) largest = fmaxf(largest, x[i]);
        total.raise(fmaxf(total.largest, largest * LOG2_E));
#pragma unroll
        for (int i = 0; i < N; i++) sum += power_of_two(x[i] * LOG2_E - total.largest);
        total.sum += sum;
    });
    // After this call all threads have read all logits.
    total = block_total<THREADS>(total);
    if (threadIdx.x == 0) a.losses[blockIdx.x] = total.largest * LN_2 + logf(total.sum) - at_target;
    if (!a.gradient) return;
    float scale = a.settings->loss_scale, factor = scale / total.sum, over = CAPPED ? reciprocal(a.softcap) : 0;
    row.each_back([&](u32 v, float(&x)[N]) {
        complete(v, x);
        float gradient[N];
#pragma unroll
        for (int i = 0; i < N; i++) gradient[i] = power_of_two(x[i] * LOG2_E - total.largest) * factor;
        if (target - v < N)
#pragma unroll
            for (int i = 0; i < N; i++) gradient[i] -= v + i == target ? scale : 0.0f;
        // Padding is -inf and has no gradient.
        if (CAPPED)
#pragma unroll
            for (int i = 0; i < N; i++) gradient[i] *= fmaxf(Softcap::slope(x[i] * over), 0.0f);
        if constexpr (Way::ONCE) write_once(logits + v, gradient);
        else write(logits + v, gradient);
    });
    clear(end);
}

template <class T, class Way, bool CAPPED>
__device__ void head_loss(const HeadLossArgs& a) {
    a.wide ? head_loss_row<T, WIDE<T>, Way, CAPPED>(a) : head_loss_row<T, 1, Way, CAPPED>(a);
}

EXPORT_PAIR(head_loss_short_f32, HeadLossArgs, Short::THREADS, head_loss<float, Short, false>)
EXPORT_PAIR(head_loss_short_bf16, HeadLossArgs, Short::THREADS, head_loss<bf16, Short, false>)
EXPORT_MANY(head_loss_long_f32, HeadLossArgs, Long::THREADS, 1, head_loss<float, Long, false>)
EXPORT_MANY(head_loss_long_bf16, HeadLossArgs, Long::THREADS, 1, head_loss<bf16, Long, false>)
EXPORT_PAIR(head_loss_short_capped_f32, HeadLossArgs, Short::THREADS, head_loss<float, Short, true>)
EXPORT_PAIR(head_loss_short_capped_bf16, HeadLossArgs, Short::THREADS, head_loss<bf16, Short, true>)
EXPORT_MANY(head_loss_long_capped_f32, HeadLossArgs, Long::THREADS, 1, head_loss<float, Long, true>)
EXPORT_MANY(head_loss_long_capped_bf16, HeadLossArgs, Long::THREADS, 1, head_loss<bf16, Long, true>)

struct LossSumArgs {
    const float* losses;    // [rows]
    const Settings* settings;
    Results* results;       // the loss is written
    u32 rows, add;
};

// One block.
__device__ void sum_losses(const LossSumArgs& a) {
    float sum = 0;
    for (u32 r = threadIdx.x; r < a.rows; r += blockDim.x) sum += a.losses[r];
    sum = block_sum(sum) * a.settings->loss_scale;
    if (threadIdx.x == 0) a.results->loss = a.add ? a.results->loss + sum : sum;
}

EXPORT(head_loss_sum, LossSumArgs, 1024, sum_losses)
