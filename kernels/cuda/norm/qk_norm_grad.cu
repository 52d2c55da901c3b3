// The gradient of the norm of queries and keys, in place; the gains' gradients in two passes of fixed order.
#include "../product/columns.cuh"
#include "qk_norm.cuh"

struct QkNormGradArgs {
    void* qkv_grad;          // [rows, width]: the gradient of the output, overwritten with that of the input
    const void* raw;         // [rows, queries + keys, size]
    const float* stats;      // [rows, queries + keys]
    const void* query_gain;  // [size]
    const void* key_gain;    // [size]
    float* partial;          // [pieces, 2, size]: partial sums for the gains of queries and of keys
    u32 rows, piece;
    u32 lanes;               // threads of a head, 16 bytes each at a time; 0 for a warp, one value for each lane
    Heads heads;
};

// The largest number of elements of a head; the threads of a block.
#define MOST 256
#define THREADS 512
// The size of the sums of a block's threads.
#define ROOM (THREADS * 8)

// A block takes `piece` rows, with `LANES` threads for each head. A thread has the sums of its own columns.
template <class T, int N, int LANES>
__device__ inline void qk_norm_grad_heads(const QkNormGradArgs& a, float* teams) {
    // Where LANES < 32, the host ensures that 16 bytes for each lane are a whole head.
    constexpr int HELD = N == 1 || LANES == 32 ? MOST / (LANES * N) : 1;
    constexpr int TEAMS = THREADS / LANES, COLUMNS = LANES * HELD * N;
    static_assert(TEAMS * COLUMNS <= ROOM, "a block's sums");
    const Heads& heads = a.heads;
    u32 lane = threadIdx.x % LANES, team = threadIdx.x / LANES, count = heads.queries + heads.keys;
    u64 end = (u64)min(a.rows, (blockIdx.x + 1) * a.piece) * count;
    float sums[2][HELD][N] = {};
    // All threads of a warp run the same number of iterations.
    for (u64 first = (u64)blockIdx.x * a.piece * count; first < end; first += TEAMS) {
        u64 at = first + team;
        bool there = at < end, key = is_key(heads, at);
        T* head = (T*)a.qkv_grad + (there ? head_start(heads, at) : 0);
        const T* gains = (const T*)(key ? a.key_gain : a.query_gain);
        float scale = there ? a.stats[at] : 0, dot = 0;
        float through[HELD][N], normal[HELD][N];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            u32 column = (h * LANES + lane) * N;
            if (!there || column >= heads.size) continue;
            float gain[N], d[N], x[N];
            read(d, head + column);
            read(x, (const T*)a.raw + at * heads.size + column);
            read(gain, gains + column);
#pragma unroll
            for (int i = 0; i < N; i++) {
                normal[h][i] = x[i] * scale;
                through[h][i] = d[i] * gain[i];
                dot += through[h][i] * normal[h][i];
                float part = d[i] * normal[h][i];
                sums[0][h][i] += key ? 0.0f : part;
                sums[1][h][i] += key ? part : 0.0f;
            }
        }
        float mean = lanes_sum<LANES>(dot) / heads.size;
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            u32 column = (h * LANES + lane) * N;
            if (!there || column >= heads.size) continue;
            float out[N];
#pragma unroll
            for (int i = 0; i < N; i++) out[i] = scale * (through[h][i] - normal[h][i] * mean);
            write(head + column, out);
        }
    }
    for (u32 sum = 0; sum < 2; sum++) {
        __syncthreads();
        for (int h = 0; h < HELD; h++)
            for (int i = 0; i < N; i++)
                teams[team * COLUMNS + (h * LANES + lane) * N + i] = sum ? sums[1][h][i] : sums[0][h][i];
        __syncthreads();
        for (u32 column = threadIdx.x; column < heads.size; column += THREADS) {
            float total = 0;
            for (int t = 0; t < TEAMS; t++) total += teams[t * COLUMNS + column];
            a.partial[((u64)blockIdx.x * 2 + sum) * heads.size + column] = total;
        }
    }
}

template <class T>
__device__ void qk_norm_grad(const QkNormGradArgs& a) {
    __shared__ float teams[ROOM];
    if (a.lanes == 8) qk_norm_grad_heads<T, WIDE<T>, 8>(a, teams);
    else if (a.lanes == 16) qk_norm_grad_heads<T, WIDE<T>, 16>(a, teams);
    else if (a.lanes == 32) qk_norm_grad_heads<T, WIDE<T>, 32>(a, teams);
    else qk_norm_grad_heads<T, 1, 32>(a, teams);
}

EXPORT_BOTH(qk_norm_grad, QkNormGradArgs, THREADS, qk_norm_grad)
