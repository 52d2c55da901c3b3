// The bias gradient of a linear layer: sums over the rows. Its products are in product.cu.
#include "columns.cuh"

struct BiasGradArgs {
    const void* out_grad;  // [rows, columns]
    float* partial;        // [pieces, columns]
    u32 rows, columns, piece;
    u32 wide;              // whether rows begin at multiples of 16 bytes
};

// Over `piece` rows, 32 N columns and 8 rows at a time.
template <class T, int N>
__device__ inline void piece_sums(const BiasGradArgs& a) {
    u32 column = (blockIdx.x * 32 + threadIdx.x % 32) * N;
    u32 end = min(a.rows, (blockIdx.y + 1) * a.piece);
    float sums[N] = {};
    if (column < a.columns)
#pragma unroll 4
        for (u32 row = blockIdx.y * a.piece + threadIdx.x / 32; row < end; row += 8) {
            float g[N];
            read(g, (const T*)a.out_grad + (u64)row * a.columns + column);
#pragma unroll
            for (int i = 0; i < N; i++) sums[i] += g[i];
        }
    write_piece<1, N>(sums, a.partial, a.columns);
}

// Grid (columns / 32 N, pieces).
template <class T>
__device__ void bias_grad_piece(const BiasGradArgs& a) {
    a.wide ? piece_sums<T, WIDE<T>>(a) : piece_sums<T, 1>(a);
}

EXPORT_BOTH(linear_grad_piece, BiasGradArgs, 256, bias_grad_piece)
EXPORT(linear_grad_finish, FinishArgs, 1024, finish_columns)
