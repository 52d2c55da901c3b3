// Dopamine and novelty: the weight of each token's error.
#include "../vector.cuh"

struct ModulateArgs {
    const float* losses;  // [B, T]
    const void* outputs;  // [T, rows, B]: from the predicting module's first output on
    float* predictor;     // [count + 1]
    float* running;       // [2]: the mean loss, the mean prediction
    float* factors;       // [T, B]
    void* signals_grad;   // [T, rows, B]
    float* deltas;        // [T, B]
    float* predicted;     // [T, B]
    float* squares;       // [T, B]
    float* rate;          // one value
    u32 streams, tokens, rows, count, first;
    float dopamine, novelty, follow;
};

// The reward of a token minus its prediction: one block for a token and 32 streams. Grid (T, B / 32).
template <class T>
__device__ void predict(const ModulateArgs& a) {
    __shared__ float sums[2][8][32];
    u32 t = blockIdx.x, lane = threadIdx.x % 32, b = blockIdx.y * 32 + lane;
    const T* outputs = (const T*)a.outputs + (u64)t * a.rows * a.streams + b;
    float predicted = 0, squares = 0;
    if (b < a.streams)
#pragma unroll 4
        for (u32 i = threadIdx.x / 32; i < a.count; i += 8) {
            float x = load(outputs[(u64)i * a.streams]);
            predicted += a.predictor[i] * x;
            squares += x * x;
        }
    sums[0][threadIdx.x / 32][lane] = predicted;
    sums[1][threadIdx.x / 32][lane] = squares;
    __syncthreads();
    if (threadIdx.x >= 32 || b >= a.streams) return;
    predicted = a.predictor[a.count], squares = 0;
    for (u32 w = 0; w < 8; w++) predicted += sums[0][w][lane], squares += sums[1][w][lane];
    u32 at = t * a.streams + b;
    a.deltas[at] = -a.losses[b * a.tokens + t] - predicted;
    a.predicted[at] = predicted;
    a.squares[at] = squares;
}

EXPORT_BOTH(modulate_predict, ModulateArgs, 256, predict)

// One block: the factors, the running means and the step size of the predictor.
__device__ void factors(const ModulateArgs& a) {
    u32 all = a.tokens * a.streams;
    float mean = a.running[0], losses = 0, predicted = 0, squares = 0;
    for (u32 i = threadIdx.x; i < all; i += 1024) {
        float loss = a.losses[i % a.streams * a.tokens + i / a.streams];
        losses += loss, predicted += a.predicted[i], squares += a.squares[i];
        float surprise = mean > 0 ? loss / mean - 1.0f : 0.0f;
        float factor = (1.0f + a.dopamine * tanhf(a.deltas[i])) * (1.0f + a.novelty * surprise);
        // NaN stays NaN.
        a.factors[i] = factor < 0.25f ? 0.25f : factor > 4.0f ? 4.0f : factor;
    }
    losses = block_sum(losses), predicted = block_sum(predicted), squares = block_sum(squares);
    if (threadIdx.x != 0) return;
    float loss = losses / (float)all;
    a.running[0] = mean > 0 ? mean + a.follow * (loss - mean) : loss;
    a.running[1] = predicted / (float)all;
    *a.rate = a.follow / ((float)all + squares);
}

EXPORT(modulate_factors, ModulateArgs, 1024, factors)

// One block for each weight of the predictor. Grid (count + 1).
template <class T>
__device__ void move_predictor(const ModulateArgs& a) {
    u32 output = blockIdx.x;
    float sum = 0;
    for (u32 i = threadIdx.x; i < a.tokens * a.streams; i += 128) {
        u64 at = ((u64)(i / a.streams) * a.rows + output) * a.streams + i % a.streams;
        sum += a.deltas[i] * (output < a.count ? load(((const T*)a.outputs)[at]) : 1.0f);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.predictor[output] += *a.rate * sum;
}

EXPORT_BOTH(modulate_move, ModulateArgs, 128, move_predictor)

// One thread for each signal of a token and stream. Grid (rows B / 256, T).
template <class G>
__device__ void modulate(const ModulateArgs& a) {
    u64 i = (u64)blockIdx.x * 256 + threadIdx.x, slot = (u64)a.rows * a.streams;
    u64 at = (u64)a.first * a.streams + i;
    if (at >= slot) return;
    G* grad = (G*)a.signals_grad + blockIdx.y * slot + at;
    *grad = store<G>(load(*grad) * a.factors[blockIdx.y * a.streams + at % a.streams]);
}

EXPORT_BOTH(modulate, ModulateArgs, 256, modulate)
