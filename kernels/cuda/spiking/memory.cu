// An associative memory of fast weights, and its gradients.
#include "../vector.cuh"

struct MemoryArgs {
    const float* keys;        // [B, T, K]
    const float* queries;     // [B, T, K]
    const float* values;      // [B, T, V]
    const float* keep;        // [T, B]
    const float* matrix;      // [B, V, K]: before the segment
    const float* key;         // [B, K]: before the segment
    float* matrix_after;
    float* key_after;
    float* out;               // [B, T, V]; in the gradient: the gradient of the output
    float* scores;            // [2, B, T, T]: in the gradient only
    float* keys_grad;
    float* queries_grad;
    float* values_grad;
    u32 streams, tokens, keys_size, values_size;
    float decay;

    __device__ const float* key_before(u32 b, u32 t) const {
        return t == 0 ? key + (u64)b * keys_size : keys + ((u64)b * tokens + t - 1) * keys_size;
    }
};

// One warp for each row of a stream's matrix, N of its elements for each lane. Grid (V / 4, B).
template <int N>
__device__ void memory(const MemoryArgs& a) {
    u32 v = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32, b = blockIdx.y;
    if (v >= a.values_size) return;
    u64 start = ((u64)b * a.values_size + v) * a.keys_size;
    float row[N], key[N];
    auto each = [&](auto visit) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + 32 * i < a.keys_size) visit(i, lane + 32 * i);
    };
    each([&](int i, u32 k) { row[i] = a.matrix[start + k], key[i] = a.key[(u64)b * a.keys_size + k]; });
#pragma unroll 4
    for (u32 t = 0; t < a.tokens; t++) {
        u64 token = (u64)b * a.tokens + t;
        bool keep = a.keep[t * a.streams + b] > 0;
        float value = a.values[token * a.values_size + v], sum = 0;
        each([&](int i, u32 k) {
            row[i] = keep ? a.decay * row[i] + value * key[i] : 0.0f;
            sum += row[i] * a.queries[token * a.keys_size + k];
            key[i] = a.keys[token * a.keys_size + k];
        });
        sum = warp_sum(sum);
        if (lane == 0) a.out[token * a.values_size + v] = sum / (float)a.keys_size;
    }
    each([&](int i, u32 k) {
        a.matrix_after[start + k] = row[i];
        if (v == 0) a.key_after[(u64)b * a.keys_size + k] = key[i];
    });
}

EXPORT(memory_1, MemoryArgs, 128, memory<1>)
EXPORT(memory_2, MemoryArgs, 128, memory<2>)
EXPORT(memory_4, MemoryArgs, 128, memory<4>)
EXPORT(memory_8, MemoryArgs, 128, memory<8>)
EXPORT(memory_32, MemoryArgs, 128, memory<32>)

// The gradients need no matrix except that from before the segment: the part of token t's output from s's value is
// decay^(t - s) query_t · key_{s - 1} / K, if no document begins after s - 1. So the computation is that of attention.

// The last token up to t at which a document begins; `tokens` if there is none.
__device__ inline u32 begin_of(const MemoryArgs& a, u32 b, u32 t) {
    for (u32 s = t + 1; s-- > 0;)
        if (!(a.keep[s * a.streams + b] > 0)) return s;
    return a.tokens;
}

// decay^n / K.
__device__ inline float faded(const MemoryArgs& a, u32 n) { return powf(a.decay, (float)n) / (float)a.keys_size; }

// scores[0] of (t, s): query_t times the key before s; scores[1]: out_grad_t times value_s. Grid (T, B), one warp for
// each s.
__device__ void memory_scores(const MemoryArgs& a) {
    u32 t = blockIdx.x, b = blockIdx.y, lane = threadIdx.x % 32;
    u32 begin = begin_of(a, b, t), first = begin == a.tokens ? 0 : begin + 1;
    u64 token = (u64)b * a.tokens + t;
    float* of_keys = a.scores + token * a.tokens;
    float* of_values = of_keys + (u64)a.streams * a.tokens * a.tokens;
    for (u32 s = threadIdx.x / 32; s <= t; s += 4) {
        float key = 0, value = 0;
        if (s >= first) {
            const float* before = a.key_before(b, s);
            const float* values = a.values + ((u64)b * a.tokens + s) * a.values_size;
            for (u32 k = lane; k < a.keys_size; k += 32) key += a.queries[token * a.keys_size + k] * before[k];
            for (u32 v = lane; v < a.values_size; v += 32) value += a.out[token * a.values_size + v] * values[v];
            float factor = faded(a, t - s);
            key = factor * warp_sum(key);
            value = factor * warp_sum(value);
        }
        if (lane == 0) of_keys[s] = key, of_values[s] = value;
    }
}

EXPORT(memory_grad_scores, MemoryArgs, 128, memory_scores)

// Grid (T, B).
__device__ void gradients(const MemoryArgs& a) {
    u32 t = blockIdx.x, b = blockIdx.y;
    u64 token = (u64)b * a.tokens + t, square = (u64)b * a.tokens * a.tokens;
    const float* of_keys = a.scores + square;
    const float* of_values = of_keys + (u64)a.streams * a.tokens * a.tokens;
    bool reaches = begin_of(a, b, t) == a.tokens;
    for (u32 k = threadIdx.x; k < a.keys_size; k += 128) {
        float query = 0, key = 0;
        if (reaches) {
            const float* matrix = a.matrix + (u64)b * a.values_size * a.keys_size + k;
#pragma unroll 8
            for (u32 v = 0; v < a.values_size; v++)
                query += matrix[(u64)v * a.keys_size] * a.out[token * a.values_size + v];
            query *= faded(a, t + 1);
        }
#pragma unroll 4
        for (u32 s = 0; s <= t; s++) query += of_values[(u64)t * a.tokens + s] * a.key_before(b, s)[k];
        // This token's key is the key before token t + 1.
#pragma unroll 4
        for (u32 later = t + 1; later < a.tokens; later++)
            key += of_values[(u64)later * a.tokens + t + 1] * a.queries[((u64)b * a.tokens + later) * a.keys_size + k];
        a.queries_grad[token * a.keys_size + k] = query;
        a.keys_grad[token * a.keys_size + k] = key;
    }
    for (u32 v = threadIdx.x; v < a.values_size; v += 128) {
        float sum = 0;
#pragma unroll 4
        for (u32 later = t; later < a.tokens; later++)
            sum += of_keys[(u64)later * a.tokens + t] * a.out[((u64)b * a.tokens + later) * a.values_size + v];
        a.values_grad[token * a.values_size + v] = sum;
    }
}

EXPORT(memory_grad, MemoryArgs, 128, gradients)
