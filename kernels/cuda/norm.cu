// LayerNorm with one or two affine outputs of the same normalised rows.
#include "common.cuh"

struct NormArgs {
    const void* x;         // [rows, columns]
    float* stats;          // [rows, 2]: mean and 1 / sqrt(variance + eps)
    const void* gain[2];   // [columns]
    const void* bias[2];   // [columns]
    void* out[2];          // [rows, columns]
    u32 columns, outputs;
    float eps;
};

// A block a row.
template <class T>
__device__ void norm(const NormArgs& a) {
    u64 start = (u64)blockIdx.x * a.columns;
    const T* x = (const T*)a.x + start;
    float sum = 0;
    for (u32 c = threadIdx.x; c < a.columns; c += blockDim.x) sum += load(x[c]);
    float mean = block_sum(sum) / a.columns;
    // Two passes: the variance of centred values keeps its digits where the mean is large.
    float squares = 0;
    for (u32 c = threadIdx.x; c < a.columns; c += blockDim.x) {
        float centred = load(x[c]) - mean;
        squares += centred * centred;
    }
    float scale = 1.0f / sqrtf(block_sum(squares) / a.columns + a.eps);
    if (threadIdx.x == 0) {
        a.stats[2 * blockIdx.x] = mean;
        a.stats[2 * blockIdx.x + 1] = scale;
    }
    for (u32 o = 0; o < a.outputs; o++) {
        const T *gain = (const T*)a.gain[o], *bias = (const T*)a.bias[o];
        T* out = (T*)a.out[o] + start;
        for (u32 c = threadIdx.x; c < a.columns; c += blockDim.x)
            out[c] = store<T>((load(x[c]) - mean) * scale * load(gain[c]) + load(bias[c]));
    }
}

EXPORT_BOTH(norm, NormArgs, 128, norm)
