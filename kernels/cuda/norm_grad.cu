// The gradient of LayerNorm, of one or two affine outputs at once.
#include "columns.cuh"

struct NormGradArgs {
    const void* x;            // [rows, columns]
    const float* stats;       // [rows, 2]
    void* x_grad;             // [rows, columns]
    const void* gain[2];      // [columns]
    const void* out_grad[2];  // [rows, columns]
    float* partial;           // [pieces, 2 outputs, columns]: of gain and bias
    u32 rows, columns, outputs;
    u32 add, piece;
};

// A block a row: x_grad.
template <class T>
__device__ void norm_grad(const NormGradArgs& a) {
    u64 start = (u64)blockIdx.x * a.columns;
    const T* x = (const T*)a.x + start;
    float mean = a.stats[2 * blockIdx.x], scale = a.stats[2 * blockIdx.x + 1];
    auto through = [&](u32 c) {
        float g = 0;
        for (u32 o = 0; o < a.outputs; o++)
            g += load(((const T*)a.out_grad[o])[start + c]) * load(((const T*)a.gain[o])[c]);
        return g;
    };
    float sum = 0, dot = 0;
    for (u32 c = threadIdx.x; c < a.columns; c += blockDim.x) {
        float g = through(c);
        sum += g;
        dot += g * (load(x[c]) - mean) * scale;
    }
    float mean_g = block_sum(sum) / a.columns, mean_gx = block_sum(dot) / a.columns;
    T* x_grad = (T*)a.x_grad + start;
    for (u32 c = threadIdx.x; c < a.columns; c += blockDim.x) {
        float value = scale * (through(c) - mean_g - (load(x[c]) - mean) * scale * mean_gx);
        x_grad[c] = store<T>(a.add ? load(x_grad[c]) + value : value);
    }
}

EXPORT_BOTH(norm_grad, NormGradArgs, 128, norm_grad)

// Blocks of 32 columns by 8 rows, over `piece` rows: the sums of gains and biases. Grid (columns / 32, pieces).
template <class T, int OUTPUTS>
__device__ void norm_grad_piece(const NormGradArgs& a) {
    u32 column = blockIdx.x * 32 + threadIdx.x % 32;
    u32 end = min(a.rows, (blockIdx.y + 1) * a.piece);
    float sums[2 * OUTPUTS] = {};
    if (column < a.columns)
        for (u32 row = blockIdx.y * a.piece + threadIdx.x / 32; row < end; row += 8) {
            u64 at = (u64)row * a.columns + column;
            float normal = (load(((const T*)a.x)[at]) - a.stats[2 * row]) * a.stats[2 * row + 1];
            for (int o = 0; o < OUTPUTS; o++) {
                float g = load(((const T*)a.out_grad[o])[at]);
                sums[2 * o] += g * normal;
                sums[2 * o + 1] += g;
            }
        }
    write_piece<2 * OUTPUTS>(sums, a.partial, a.columns, column);
}

EXPORT(norm_grad_piece1_f32, NormGradArgs, 256, norm_grad_piece<float, 1>)
EXPORT(norm_grad_piece2_f32, NormGradArgs, 256, norm_grad_piece<float, 2>)
EXPORT(norm_grad_piece1_bf16, NormGradArgs, 256, norm_grad_piece<bf16, 1>)
EXPORT(norm_grad_piece2_bf16, NormGradArgs, 256, norm_grad_piece<bf16, 2>)
EXPORT(norm_grad_finish, FinishArgs, 128, finish_columns)
