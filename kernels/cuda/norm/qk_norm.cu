// The norm of queries and keys: RMSNorm of each head, in place.
#include "qk_norm.cuh"

struct QkNormArgs {
    void* qkv;               // [rows, width]: normalised in place
    void* raw;               // [rows, queries + keys, size]: the heads before the norm; or null
    float* stats;            // [rows, queries + keys]: 1 / sqrt(mean square + eps); or null
    const void* query_gain;  // [size]
    const void* key_gain;    // [size]
    u32 rows;
    u32 lanes;               // threads of a head, 16 bytes each at a time; 0 for a warp, one value for each lane
    float eps;
    Heads heads;
};

// `LANES` threads for each head.
template <class T, int N, int LANES>
__device__ inline void qk_norm_head(const QkNormArgs& a) {
    u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    bool there = at < (u64)a.rows * (a.heads.queries + a.heads.keys);
    T* head = (T*)a.qkv + (there ? head_start(a.heads, at) : 0);
    u32 lane = threadIdx.x % LANES;
    Row<T, N, LANES, 2> row(head, there ? a.heads.size : 0, lane);
    float squares = 0;
    row.each([&](u32, const float(&x)[N]) {
        for (int i = 0; i < N; i++) squares += x[i] * x[i];
    });
    float scale = 1.0f / sqrtf(lanes_sum<LANES>(squares) / a.heads.size + a.eps);
    if (there && lane == 0 && a.stats) a.stats[at] = scale;
    const T* gains = (const T*)(is_key(a.heads, at) ? a.key_gain : a.query_gain);
    row.each([&](u32 column, const float(&x)[N]) {
        float gain[N], out[N];
        read(gain, gains + column);
        for (int i = 0; i < N; i++) out[i] = x[i] * scale * gain[i];
        if (a.raw) write((T*)a.raw + at * a.heads.size + column, x);
        write(head + column, out);
    });
}

template <class T>
__device__ void qk_norm(const QkNormArgs& a) {
    if (a.lanes == 8) qk_norm_head<T, WIDE<T>, 8>(a);
    else if (a.lanes == 16) qk_norm_head<T, WIDE<T>, 16>(a);
    else if (a.lanes == 32) qk_norm_head<T, WIDE<T>, 32>(a);
    else qk_norm_head<T, 1, 32>(a);
}

EXPORT_BOTH(qk_norm, QkNormArgs, 128, qk_norm)
