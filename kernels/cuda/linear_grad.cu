// The bias gradient of a linear layer: sums over the rows. Its products are in product.cu.
#include "columns.cuh"

struct BiasGradArgs {
    const void* out_grad;  // [rows, columns]
    float* partial;        // [pieces, columns]
    u32 rows, columns, piece;
};

// Blocks of 32 columns by 8 rows, over `piece` rows. Grid (columns / 32, pieces).
template <class T>
__device__ void bias_grad_piece(const BiasGradArgs& a) {
    u32 column = blockIdx.x * 32 + threadIdx.x % 32;
    u32 end = min(a.rows, (blockIdx.y + 1) * a.piece);
    float sums[1] = {};
    if (column < a.columns)
        for (u32 row = blockIdx.y * a.piece + threadIdx.x / 32; row < end; row += 8)
            sums[0] += load(((const T*)a.out_grad)[(u64)row * a.columns + column]);
    write_piece<1>(sums, a.partial, a.columns, column);
}

EXPORT_BOTH(linear_grad_piece, BiasGradArgs, 256, bias_grad_piece)
EXPORT(linear_grad_finish, FinishArgs, 128, finish_columns)
