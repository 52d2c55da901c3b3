// Attention of one new token over the keys and values of the tokens before it. Blocks take (head, piece of the
// positions); the last block to finish a head combines the pieces in order, so that the sum does not depend on which
// block that is.
#pragma once
#include "heads.cuh"
#include "../vector.cuh"

struct CachedAttentionArgs {
    const void* qkv;      // [width]
    void* cache;          // [2, context, keys * size]
    const float* table;   // [positions, dims / 2, 2]
    void* out;            // [queries * size]
    u32* done;            // [queries]: the number of finished pieces; 0 before and after
    float* partial;       // [queries, pieces, 2 + size]: largest score, sum of weights, weighted sums of values
    u32 context, dims;
    float scale;
    Heads heads;
    Pattern pattern;
};

// The warps of a block, the positions of a warp and of a piece, and the largest head.
constexpr u32 TOKEN_WARPS = 16, EACH = 8, PIECE = EACH * TOKEN_WARPS, LARGEST_SIZE = 256;
// Threads that load one of a token's three rows.
constexpr u32 PART = 128;
static_assert(3 * PART <= 32 * TOKEN_WARPS, "the three rows come at the same time");

// A head's row with its pairs rotated, rounded to the storage type, by PART threads.
template <class T>
__device__ NOINLINE void turned_head(float* to, const T* from, const float* angles, u32 size, u32 dims) {
    for (u32 c = threadIdx.x % PART; c < size; c += PART) {
        float own = load(from[c]);
        if (c < dims) {
            bool low = c < dims / 2;
            u32 pair = low ? c : c - dims / 2;
            float other = load(from[low ? c + dims / 2 : pair]), cosine = angles[2 * pair], sine = angles[2 * pair + 1];
            own = low ? own * cosine - other * sine : own * cosine + other * sine;
        }
        to[c] = load(store<T>(own));
    }
}

// The results of a block's warps for a piece, with E elements in each lane.
struct PieceSums {
    float query[LARGEST_SIZE], key[LARGEST_SIZE], value[LARGEST_SIZE];
    float largest[TOKEN_WARPS], total[TOKEN_WARPS], sums[TOKEN_WARPS][LARGEST_SIZE];
    float factor[TOKEN_WARPS][TOKEN_WARPS];  // of each warp's part, as computed by each warp
    u32 last;
};

// The factor of a part whose largest score is `largest`, where `top` is the largest of all parts.
__device__ inline float part_factor(float largest, float top) { return largest == -INFINITY ? 0.0f : power_of_two(LOG2_E * (largest - top)); }

// A warp's positions of a piece. Each lane has N neighbouring values, and LANES lanes, a power of two, have a head: the
// warp processes as many positions at a time as it has such groups.
template <class T, int N, int LANES>
__device__ NOINLINE void attend_piece(const CachedAttentionArgs& a, PieceSums& s, u32 key_head, u32 first, u32 now) {
    constexpr u32 AT_A_TIME = 32 / LANES, ROUNDS = (EACH + AT_A_TIME - 1) / AT_A_TIME;
    u32 columns = a.heads.keys * N * LANES, lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = lane % LANES * N;
    const T *keys = (const T*)a.cache + key_head * N * LANES + c, *values = keys + (u64)a.context * columns;
    u32 j = first + warp * AT_A_TIME + lane / LANES;
    constexpr u32 STEP = TOKEN_WARPS * AT_A_TIME;
    Vector<T, N> key[ROUNDS], value[ROUNDS];
#pragma unroll
    for (u32 i = 0; i < ROUNDS; i++)
        if (j + STEP * i < now) {
            key[i] = fetch<T, N>(keys + (j + STEP * i) * columns);
            value[i] = fetch<T, N>(values + (j + STEP * i) * columns);
        }
    float scores[ROUNDS], largest = -INFINITY, total = 0, sums[N] = {};
#pragma unroll
    for (u32 i = 0; i < ROUNDS; i++) {
        u32 at = j + STEP * i;
        float x[N], score = 0;
        if (at < now) unpack(x, key[i]);
        else
#pragma unroll
            for (int n = 0; n < N; n++) x[n] = s.key[c + n];
#pragma unroll
        for (int n = 0; n < N; n++) score += s.query[c + n] * x[n];
#pragma unroll
        for (int l = 1; l < LANES; l *= 2) score += __shfl_xor_sync(FULL_WARP, score, l);
        bool seen = at <= now && at < first + PIECE && a.pattern.sees(now, at);
        scores[i] = seen ? score * a.scale : -INFINITY;
        largest = fmaxf(largest, scores[i]);
    }
    largest = warp_max(largest);
#pragma unroll
    for (u32 i = 0; i < ROUNDS; i++) {
        u32 at = j + STEP * i;
        float weight = part_factor(scores[i], largest), x[N];
        if (at > now || weight == 0.0f) continue;
        total += weight;
        if (at < now) unpack(x, value[i]);
        else
#pragma unroll
            for (int n = 0; n < N; n++) x[n] = s.value[c + n];
#pragma unroll
        for (int n = 0; n < N; n++) sums[n] += weight * x[n];
    }
    // The sums over the groups.
#pragma unroll
    for (int l = LANES; l < 32; l *= 2) {
        total += __shfl_xor_sync(FULL_WARP, total, l);
#pragma unroll
        for (int n = 0; n < N; n++) sums[n] += __shfl_xor_sync(FULL_WARP, sums[n], l);
    }
    if (lane == 0) s.largest[warp] = largest, s.total[warp] = total;
    if (lane < LANES)
#pragma unroll
        for (int n = 0; n < N; n++) s.sums[warp][c + n] = sums[n];
}

// As attend_piece, for heads of any size, one position at a time.
template <class T>
__device__ NOINLINE void attend_piece_of_any(const CachedAttentionArgs& a, PieceSums& s, u32 key_head, u32 first,
                                           u32 now) {
    constexpr u32 E = LARGEST_SIZE / 32;
    u32 size = a.heads.size, columns = a.heads.keys * size, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const T *keys = (const T*)a.cache + key_head * size, *values = keys + (u64)a.context * columns;
    float largest = -INFINITY, total = 0, sums[E] = {};
#pragma unroll 1
    for (u32 j = first + warp; j <= now && j < first + PIECE; j += TOKEN_WARPS) {
        if (!a.pattern.sees(now, j)) continue;
        float score = 0;
        for (u32 c = lane; c < size; c += 32)
            score += s.query[c] * (j == now ? s.key[c] : load(keys[(u64)j * columns + c]));
        score = warp_sum(score) * a.scale;
        float next = fmaxf(largest, score), factor = part_factor(largest, next), weight = part_factor(score, next);
        largest = next;
        total = total * factor + weight;
#pragma unroll
        for (u32 e = 0; e < E; e++) {
            u32 c = lane + 32 * e;
            if (c < size) sums[e] = sums[e] * factor + weight * (j == now ? s.value[c] : load(values[(u64)j * columns + c]));
        }
    }
    if (lane == 0) s.largest[warp] = largest, s.total[warp] = total;
#pragma unroll
    for (u32 e = 0; e < E; e++) s.sums[warp][lane + 32 * e] = sums[e];
}

// Prefetches the cached data of a block's first item into L2.
template <class T>
__device__ inline void expect_cached(const CachedAttentionArgs& a, u32 now) {
    u32 size = a.heads.size, columns = a.heads.keys * size, item = blockIdx.x;
    u32 head = item % a.heads.queries, first = item / a.heads.queries * PIECE, j = first + threadIdx.x % PIECE;
    if (j >= now || now >= a.context || threadIdx.x >= 2 * PIECE) return;
    u64 row = (u64)(threadIdx.x / PIECE) * a.context + j;
    const T* from = (const T*)a.cache + row * columns + head / a.heads.group() * size;
    for (u32 c = 0; c < size; c += 128 / sizeof(T)) prefetch(from + c);
}

// For blocks of TOKEN_WARPS warps, any number of them; called by every thread of the grid. At position `now`; does
// nothing beyond the context.
template <class T>
__device__ void cached_attention(const CachedAttentionArgs& a, u32 now, PieceSums& s) {
    u32 size = a.heads.size, queries = a.heads.queries, columns = a.heads.keys * size;
    if (now >= a.context) return;
    u32 pieces = now / PIECE + 1, room = (a.context + PIECE - 1) / PIECE;
    const float* angles = a.table + (u64)now * a.dims;
    for (u32 item = blockIdx.x; item < queries * pieces; item += gridDim.x) {
        // Divisions are slow: the first piece avoids this one.
        u32 piece = item < queries ? 0 : item / queries, head = item - piece * queries;
        u32 key_head = head * a.heads.keys / queries, first = piece * PIECE;
        const T* row = (const T*)a.qkv;
        __syncthreads();
        u32 part = threadIdx.x / PART;
        bool newest = piece == now / PIECE;
        if (part == 0 || (part == 1 && newest))
            turned_head(part ? s.key : s.query, row + (part ? a.heads.key(key_head) : a.heads.query(head)), angles, size,
                        a.dims);
        else if (part == 2 && newest)
            for (u32 c = threadIdx.x % PART; c < size; c += PART) s.value[c] = load(row[a.heads.value(key_head) + c]);
        __syncthreads();
        if (newest && key_head * queries == head * a.heads.keys) {
            T* at = (T*)a.cache + (u64)now * columns + key_head * size;
            for (u32 c = threadIdx.x; c < size; c += blockDim.x) {
                at[c] = store<T>(s.key[c]);
                at[(u64)a.context * columns + c] = store<T>(s.value[c]);
            }
        }
        constexpr int N = WIDE<T>;
        u32 lanes = size % N == 0 ? size / N : 0;
        if (lanes == 4) attend_piece<T, N, 4>(a, s, key_head, first, now);
        else if (lanes == 8) attend_piece<T, N, 8>(a, s, key_head, first, now);
        else if (lanes == 16) attend_piece<T, N, 16>(a, s, key_head, first, now);
        else attend_piece_of_any<T>(a, s, key_head, first, now);
        __syncthreads();
        // For the warps that have columns.
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float top = -INFINITY, total = 0;
        if (32 * warp < size) {
            float largest = lane < TOKEN_WARPS ? s.largest[lane] : -INFINITY;
            top = warp_max(largest);
            float factor = part_factor(largest, top);
            total = warp_sum(lane < TOKEN_WARPS ? s.total[lane] * factor : 0.0f);
            if (lane < TOKEN_WARPS) s.factor[warp][lane] = factor;
            __syncwarp();
        }
        auto joined = [&](u32 c) {
            float sum = 0;
#pragma unroll
            for (u32 w = 0; w < TOKEN_WARPS; w++) sum += s.sums[w][c] * s.factor[warp][w];
            return sum;
        };
        T* out = (T*)a.out + head * size;
        if (pieces == 1) {
            for (u32 c = threadIdx.x; c < size; c += blockDim.x) out[c] = store<T>(joined(c) / total);
            continue;
        }
        float *of_head = a.partial + (u64)head * room * (2 + size), *own = of_head + (u64)piece * (2 + size);
        if (threadIdx.x == 0) own[0] = top, own[1] = total;
        for (u32 c = threadIdx.x; c < size; c += blockDim.x) own[2 + c] = joined(c);
        if (!arrive_last(a.done + head, pieces, &s.last)) continue;
        top = -INFINITY;
        // One piece for each lane: in sequence, each would wait for memory.
        for (u32 p = lane; p < pieces; p += 32) top = fmaxf(top, of_head[(u64)p * (2 + size)]);
        top = warp_max(top);
        for (u32 c = threadIdx.x; c < size; c += blockDim.x) {
            float sum = 0, all = 0;
#pragma unroll 8
            for (u32 p = 0; p < pieces; p++) {
                const float* at = of_head + (u64)p * (2 + size);
                float factor = part_factor(at[0], top);
                all += at[1] * factor;
                sum += at[2 + c] * factor;
            }
            out[c] = store<T>(sum / all);
        }
        if (threadIdx.x == 0) a.done[head] = 0;
    }
}
