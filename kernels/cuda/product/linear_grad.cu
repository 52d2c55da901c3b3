// The bias gradient of a linear layer: sums over the rows; and the other results of that pass. Its matrix
// multiplications are in product.cu.
#include "columns.cuh"
#include "../pointwise/gelu.cuh"

struct BiasGradArgs {
    void* out_grad;           // [rows, columns]
    const void* before_gelu;  // [rows, columns] or null: out_grad is multiplied by gelu'(this) first
    void* activated;          // [rows, columns] or null: receives gelu(before_gelu)
    float* partial;           // [pieces, columns]
    u32 rows, columns, piece;
    u32 wide;                 // whether rows begin at multiples of 16 bytes
};

// Over `piece` rows, 32 N columns and 8 rows at a time. The sums are of the stored values.
template <class T, int N>
__device__ inline void piece_sums(const BiasGradArgs& a) {
    u32 column = (blockIdx.x * 32 + threadIdx.x % 32) * N;
    u32 end = min(a.rows, (blockIdx.y + 1) * a.piece);
    float sums[N] = {};
    if (column < a.columns)
#pragma unroll 4
        for (u32 row = blockIdx.y * a.piece + threadIdx.x / 32; row < end; row += 8) {
            float g[N];
            u64 at = (u64)row * a.columns + column;
            read(g, (const T*)a.out_grad + at);
            if (a.before_gelu) {
                float before[N];
                read(before, (const T*)a.before_gelu + at);
#pragma unroll
                for (int i = 0; i < N; i++) g[i] *= gelu_derivative<T>(before[i]);
                write((T*)a.out_grad + at, g);
                if (a.activated) {
#pragma unroll
                    for (int i = 0; i < N; i++) before[i] = gelu<T>(before[i]);
                    write((T*)a.activated + at, before);
                }
                round_to<T>(g);
            }
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
