// The head with the softmax folded into its matrix multiplications. The one of warpgroup_product.cu (powers) leaves
//   P [rows, vocabulary]   p = exp(z - z_target - 40), see powers.cuh
// and partial sums of the rows; a row's sum is S. With g the loss scale:
//   the gradient of the logits is   diag(g / S) P', P' being P with p - S at the target
//   of the weight                   P'^T (diag(g / S) x)
//   of x                            diag(g / S) (P' weight)
// so that nothing passes over P except those two multiplications. With capped logits, C tanh(z / C), P has the
// exponentials of the capped logits; the gradient by z has the additional factor 1 - tanh^2, which is already in P, and
// is applied to the target's p - S here.
#include "softcap.cuh"
#include "../control.cuh"
#include "../powers.cuh"
#include "../vector.cuh"

struct FoldedHeadArgs {
    const bf16* x;          // [rows, d]
    const bf16* weight;     // [vocabulary, d]
    const u32* targets;     // [rows]; beyond the ids: no loss, no gradient
    float* losses;          // [rows]: first the targets' logits
    const float* sums;      // [rows, pieces]
    bf16* powers;           // [rows, vocabulary]
    bf16* x_grad;           // [rows, d]: temporarily x g / S
    const Settings* settings;
    u32 rows, d, vocabulary, ids, pieces;
    float softcap;          // C, or 0
};

// One warp for each row: calls `body(row, lane)`.
template <class Body>
__device__ inline void each_row(const FoldedHeadArgs& a, Body body) {
    u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row < a.rows) body(row, threadIdx.x % 32);
}

__device__ void find_targets(const FoldedHeadArgs& a) {
    each_row(a, [&](u32 row, u32 lane) {
        u32 target = a.targets[row];
        float sum = 0, x[8], w[8];
        if (target < a.ids)
            for (u32 c = 8 * lane; c < a.d; c += 256) {
                read(x, a.x + (u64)row * a.d + c);
                read(w, a.weight + (u64)target * a.d + c);
#pragma unroll
                for (int i = 0; i < 8; i++) sum += x[i] * w[i];
            }
        sum = warp_sum(sum);
        if (lane == 0) a.losses[row] = sum;
    });
}

// Writes `from`'s row times `factor` to x_grad.
__device__ inline void scale_row(const FoldedHeadArgs& a, const bf16* from, u32 row, u32 lane, float factor) {
    float x[8];
    for (u32 c = 8 * lane; c < a.d; c += 256) {
        u64 at = (u64)row * a.d + c;
        read(x, from + at);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] *= factor;
        write(a.x_grad + at, x);
    }
}

// Runs after the multiplication that computes the exponentials.
__device__ void find_losses(const FoldedHeadArgs& a) {
    each_row(a, [&](u32 row, u32 lane) {
        u32 target = a.targets[row];
        float sum = 0;
        for (u32 i = lane; i < a.pieces; i += 32) sum += a.sums[(u64)row * a.pieces + i];
        sum = warp_sum(sum);
        bool counts = target < a.ids;
        scale_row(a, a.x, row, lane, counts ? a.settings->loss_scale / sum : 0.0f);
        if (lane > 0) return;
        float slope = 1;
        if (a.softcap > 0) {
            Softcap by(a.softcap);
            slope = by.slope(by.share(a.losses[row]));
        }
        a.losses[row] = counts ? logf(sum) + POWERS_BELOW * LN_2 : 0.0f;
        float gradient = (power_of_two(-POWERS_BELOW) - sum) * slope;
        if (counts) a.powers[(u64)row * a.vocabulary + target] = store<bf16>(gradient);
    });
}

// Runs after the multiplication of the exponentials and the weight.
__device__ void scale(const FoldedHeadArgs& a) {
    each_row(a, [&](u32 row, u32 lane) {
        float over_sum = power_of_two(POWERS_BELOW - a.losses[row] * LOG2_E);
        scale_row(a, a.x_grad, row, lane, a.targets[row] < a.ids ? a.settings->loss_scale * over_sum : 0.0f);
    });
}

EXPORT(head_at_targets, FoldedHeadArgs, 256, find_targets)
EXPORT(head_losses, FoldedHeadArgs, 256, find_losses)
EXPORT(head_scale, FoldedHeadArgs, 256, scale)
