// Updates the matrices of a parameter with their orthogonalised momentum.
#include "cut.cuh"
#include "moved.cuh"

struct MatrixMoveArgs {
    void* weight;          // of the whole parameter
    void* remainder;       // the same: remainders of bf16 weights, or null
    const void* x;         // [matrices, m, n], m <= n
    const float* factors;  // [matrices, rows] of the parameter, or null
    const Settings* settings;
    const Results* results;
    CutArgs cut;
    float rate, decay;  // factor of the learning rate; weight decay
    float scale;        // of x
    u32 cautious;       // whether decay applies only where x has the sign of the weight
    u32 upper;          // whether a remainder is the upper 8 of its 16 bits
    u32 group;          // the group, whose random numbers round weights without masters
};

template <class T, class X>
__device__ void matrix_move(const MatrixMoveArgs& a) {
    if (!finite(sqrtf(a.results->squared_norm)) || !finite(a.results->loss)) return;
    const CutArgs& cut = a.cut;
    Wide tile(cut);
    const float* factors = a.factors ? a.factors + (u64)blockIdx.y * cut.rows + tile.row0 : nullptr;
    float rate = a.settings->learning_rate * a.rate, step = rate * a.scale;
    float keep = 1.0f - rate * (a.decay * a.settings->decay);
    auto move = [&](u64 at, u32 r, float x) {
        if (factors) x *= factors[r];
        T* weight = (T*)a.weight + at;
        float w[1];
        read(w, weight);
        if constexpr (sizeof(T) == sizeof(bf16)) {
            if (a.remainder) join(w, a.remainder, at, a.upper);
        }
        w[0] = w[0] * (a.cautious && w[0] * x <= 0.0f ? 1.0f : keep) - step * x;
        if constexpr (sizeof(T) == sizeof(bf16)) {
            if (a.remainder) return split(weight, a.remainder, at, w, a.upper);
            return dither(weight, at, w, a.results, a.group);
        }
        write(weight, w);
    };
    if (cut.rows <= cut.columns) {
        each_of_tile(cut, [&](u64 at, u32 r, u32 c) { move(at, r, load(((const X*)a.x)[tile.at(r, c)])); });
        return;
    }
    __shared__ float turned[TILE][TILE + 1];
    each_turned(cut, [&](u64 place, u32 r, u32 c) { turned[c][r] = load(((const X*)a.x)[place]); });
    __syncthreads();
    each_of_tile(cut, [&](u64 at, u32 r, u32 c) { move(at, r, turned[c][r]); });
}

EXPORT(matrix_move_f32_f32, MatrixMoveArgs, 256, matrix_move<float, float>)
EXPORT(matrix_move_f32_bf16, MatrixMoveArgs, 256, matrix_move<float, bf16>)
EXPORT(matrix_move_bf16_bf16, MatrixMoveArgs, 256, matrix_move<bf16, bf16>)
