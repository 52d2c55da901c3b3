// Matrix multiplication: shared-memory tiles, f32 accumulation, fused with the rest of a linear layer.
//
// C [m, n] = A B in three cases, by the layout of A and B in memory:
//   NT  A [m, k], B [n, k]   x weight^T
//   NN  A [m, k], B [k, n]   out_grad weight
//   TN  A [k, m], B [k, n]   out_grad^T x
#include "../pointwise/gelu.cuh"

struct ProductArgs {
    const void* a;
    const void* b;
    void* c;                  // [m, n]
    const void* bias;         // [n] or null
    const void* residual;     // [m, n] or null: added to C
    const void* before_gelu;  // [m, n] or null: C is multiplied by gelu'(this)
    void* activated;          // [m, n] or null: receives gelu(C)
    u32 m, n, k;
    u32 accumulate;           // add to the content of C
};

enum Case { NT, NN, TN };

constexpr int DEPTH = 16;  // of a tile, along k

// Four f32, a quarter of the elements that a thread has along a tile's side, read at once.
struct alignas(16) Four {
    float x[4];
};

// Loads a tile of `SIDE` rows or columns by DEPTH along k into registers, zero beyond the edge.
template <class In, int SIDE, bool K_CONTIGUOUS>
__device__ inline void fetch(float (&held)[SIDE * DEPTH / 256], const In* from, u32 first, u32 side, u32 k0, u32 k) {
#pragma unroll
    for (int i = 0; i < SIDE * DEPTH / 256; i++) {
        u32 at = threadIdx.x + 256 * i;
        u32 s = first + (K_CONTIGUOUS ? at / DEPTH : at % SIDE), kk = k0 + (K_CONTIGUOUS ? at % DEPTH : at / SIDE);
        u64 index = K_CONTIGUOUS ? (u64)s * k + kk : (u64)kk * side + s;
        held[i] = s < side && kk < k ? load(from[index]) : 0.0f;
    }
}

template <int SIDE, bool K_CONTIGUOUS>
__device__ inline void put(const float (&held)[SIDE * DEPTH / 256], float (&tile)[DEPTH][SIDE + 4]) {
#pragma unroll
    for (int i = 0; i < SIDE * DEPTH / 256; i++) {
        u32 at = threadIdx.x + 256 * i;
        tile[K_CONTIGUOUS ? at % DEPTH : at / SIDE][K_CONTIGUOUS ? at / DEPTH : at % SIDE] = held[i];
    }
}

// One tile of C for each block of 16 x 16 threads; each thread has GROUPS x GROUPS squares of 4 x 4, 64 apart.
template <class In, class Out, Case CASE, int GROUPS>
__device__ void product(const ProductArgs& a) {
    constexpr int SIDE = 64 * GROUPS;
    __shared__ float left[DEPTH][SIDE + 4];
    __shared__ float right[DEPTH][SIDE + 4];
    u32 across = (a.n + SIDE - 1) / SIDE;
    u32 row0 = blockIdx.x / across * SIDE, column0 = blockIdx.x % across * SIDE;
    u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const In *from_a = (const In*)a.a, *from_b = (const In*)a.b;
    float held_a[SIDE * DEPTH / 256], held_b[SIDE * DEPTH / 256];
    float sums[GROUPS * 4][GROUPS * 4] = {};

    fetch<In, SIDE, CASE != TN>(held_a, from_a, row0, a.m, 0, a.k);
    fetch<In, SIDE, CASE == NT>(held_b, from_b, column0, a.n, 0, a.k);
    for (u32 k0 = 0; k0 < a.k; k0 += DEPTH) {
        put<SIDE, CASE != TN>(held_a, left);
        put<SIDE, CASE == NT>(held_b, right);
        __syncthreads();
        // The next tile is loaded while this one is used.
        if (k0 + DEPTH < a.k) {
            fetch<In, SIDE, CASE != TN>(held_a, from_a, row0, a.m, k0 + DEPTH, a.k);
            fetch<In, SIDE, CASE == NT>(held_b, from_b, column0, a.n, k0 + DEPTH, a.k);
        }
#pragma unroll
        for (int kk = 0; kk < DEPTH; kk++) {
            Four rows[GROUPS], columns[GROUPS];
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                rows[g] = *(const Four*)&left[kk][64 * g + 4 * ty];
                columns[g] = *(const Four*)&right[kk][64 * g + 4 * tx];
            }
#pragma unroll
            for (int i = 0; i < GROUPS * 4; i++)
#pragma unroll
                for (int j = 0; j < GROUPS * 4; j++)
                    sums[i][j] += rows[i / 4].x[i % 4] * columns[j / 4].x[j % 4];
        }
        __syncthreads();
    }

    Out* c = (Out*)a.c;
#pragma unroll
    for (int i = 0; i < GROUPS * 4; i++) {
        u32 row = row0 + 64 * (i / 4) + 4 * ty + i % 4;
#pragma unroll
        for (int j = 0; j < GROUPS * 4; j++) {
            u32 column = column0 + 64 * (j / 4) + 4 * tx + j % 4;
            if (row >= a.m || column >= a.n) continue;
            u64 at = (u64)row * a.n + column;
            float value = sums[i][j];
            if (a.bias) value += load(((const In*)a.bias)[column]);
            if (a.residual) value += load(((const Out*)a.residual)[at]);
            if (a.accumulate) value += load(c[at]);
            if (a.before_gelu) value *= gelu_derivative<Out>(load(((const Out*)a.before_gelu)[at]));
            Out rounded = store<Out>(value);
            c[at] = rounded;
            // Of the stored value, so that recomputing it later gives the same bits.
            if (a.activated) ((Out*)a.activated)[at] = store<Out>(gelu<Out>(load(rounded)));
        }
    }
}

#define EXPORT_CASE(name, CASE) \
    EXPORT(product_##name##_64_f32_f32, ProductArgs, 256, product<float, float, CASE, 1>) \
    EXPORT_PAIR(product_##name##_128_f32_f32, ProductArgs, 256, product<float, float, CASE, 2>) \
    EXPORT(product_##name##_64_bf16_f32, ProductArgs, 256, product<bf16, float, CASE, 1>) \
    EXPORT_PAIR(product_##name##_128_bf16_f32, ProductArgs, 256, product<bf16, float, CASE, 2>) \
    EXPORT(product_##name##_64_bf16_bf16, ProductArgs, 256, product<bf16, bf16, CASE, 1>) \
    EXPORT_PAIR(product_##name##_128_bf16_bf16, ProductArgs, 256, product<bf16, bf16, CASE, 2>)

EXPORT_CASE(nt, NT)
EXPORT_CASE(nn, NN)
EXPORT_CASE(tn, TN)
