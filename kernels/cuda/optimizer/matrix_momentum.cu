// The momentum of matrices, and its blend with the gradient, gathered as matrices that are transposed if that makes
// them wide.
#include "cut.cuh"

struct MatrixMomentumArgs {
    const void* gradient;  // of the whole parameter: f32, or bf16
    float* momentum;       // the same, or null: then the gradient is already the blend
    void* out;             // [matrices, m, n], m <= n
    const Settings* settings;
    const Results* results;
    CutArgs cut;
    u32 group;             // the group whose momentum factor is read
};

template <class G, class X>
__device__ void matrix_momentum(const MatrixMomentumArgs& a) {
    const CutArgs& cut = a.cut;
    bool tall = cut.rows > cut.columns;
    float norm = sqrtf(a.results->squared_norm), keep = a.settings->corrections[a.group][0];
    bool skipped = !finite(norm) || !finite(a.results->loss);
    float clip = fminf(a.settings->clip / (norm + 1e-6f), 1.0f);
    auto blend = [&](u64 at) {
        if (skipped) return 0.0f;
        if (!a.momentum) return load(((const G*)a.gradient)[at]);
        float added = (1.0f - keep) * (load(((const G*)a.gradient)[at]) * clip);
        float m = keep * a.momentum[at] + added;
        a.momentum[at] = m;
        return keep * m + added;
    };
    if (!tall) {
        Wide tile(cut);
        each_of_tile(cut, [&](u64 at, u32 r, u32 c) { ((X*)a.out)[tile.at(r, c)] = store<X>(blend(at)); });
        return;
    }
    __shared__ float turned[TILE][TILE + 1];
    each_of_tile(cut, [&](u64 at, u32 r, u32 c) { turned[c][r] = blend(at); });
    __syncthreads();
    each_turned(cut, [&](u64 place, u32 r, u32 c) { ((X*)a.out)[place] = store<X>(turned[c][r]); });
}

EXPORT(matrix_momentum_f32_f32, MatrixMomentumArgs, 256, matrix_momentum<float, float>)
EXPORT(matrix_momentum_f32_bf16, MatrixMomentumArgs, 256, matrix_momentum<float, bf16>)
EXPORT(matrix_momentum_bf16_bf16, MatrixMomentumArgs, 256, matrix_momentum<bf16, bf16>)
