// Attention in bf16 on tensor cores, otherwise as attention.cu: scores stay in registers (Dao 2023), and keys and
// values of the next tile are copied while one is processed.
#include "../tiles.cuh"

// Grid (query tiles, queries, batch). A warp has 16 queries; the block's warps share tiles of KEYS keys and values.
template <int SIZE, int WARPS, int KEYS, bool MASKED>
__device__ void attention(const AttentionArgs& a) {
#ifdef TENSOR_CORES
    constexpr u32 QUERIES = 16 * WARPS, THREADS = 32 * WARPS;
    static_assert(QUERIES <= 2 * KEYS, "the queries pass through the second pair of tiles");
    alignas(16) __shared__ Row<SIZE> tiles[2][2][KEYS];
    u32 own = threadIdx.x / 32 * 16, head = blockIdx.y, key_head = head / a.heads.group();
    u32 size = a.heads.size, width = a.heads.width(), end = a.seq_len;
    u64 first = (u64)blockIdx.z * end;
    // The longest rows first.
    u32 i0 = (gridDim.x - 1 - blockIdx.x) * QUERIES, i_end = min(i0 + QUERIES, end), row = i0 + own;
    Part queries(a.qkv, first, width, a.heads.query(head), size);
    Part keys(a.qkv, first, width, a.heads.key(key_head), size);
    Part values(a.qkv, first, width, a.heads.value(key_head), size);
    auto fetch_tile = [&](u32 stage, u32 j) {
        fetch<SIZE, KEYS, THREADS>(tiles[stage][0], keys, j, end);
        fetch<SIZE, KEYS, THREADS>(tiles[stage][1], values, j, end);
    };
    auto seen = [&](u32 j, u32 j_end) { return a.pattern.any(i0, i_end, j, j_end); };
    Documents<MASKED> documents(a.offsets, first, end);
    FirstKeys<MASKED> first_keys(documents, row);

    u32 j = next_tile<KEYS>(documents.first_seen(i0) / KEYS * KEYS, i_end, seen), stage = 0;
    fetch<SIZE, QUERIES, THREADS>(tiles[1][0], queries, i0, end);
    fetch_tile(0, j);
    wait_for_copies();
    __syncthreads();
    Left<SIZE, true> query(tiles[1][0] + own);
    __syncthreads();

    Softmax softmax{a.scale * LOG2_E};
    float sums[SIZE / 8][4] = {};
    while (j < i_end) {
        u32 next = next_tile<KEYS>(j + KEYS, i_end, seen);
        if (next < i_end) fetch_tile(stage ^ 1, next);
        if (first_keys.least < j + KEYS && a.pattern.any(row, row + 16, j, j + KEYS)) {
            float scores[KEYS / 8][4];
            multiply_turned(scores, query, tiles[stage][0]);
            hide<false>(scores, a.pattern, row, j);
            first_keys.hide(scores, j);
            softmax.weigh(scores);
            softmax.settle(sums);
            multiply_add<SIZE>(sums, scores, tiles[stage][1]);
        }
        wait_for_copies();
        __syncthreads();
        stage ^= 1;
        j = next;
    }

    finish<SIZE>(a, tiles[0][0] + own, sums, softmax, first, head, row, end,
                 [&](u32 i) { return ((u64)blockIdx.z * a.heads.queries + head) * end + i; });
#else
    __trap();
#endif
}

// For sequences whose length divides a tile's, several in each tile: all rows are one stream. Grid (queries * tiles):
// the heads of a tile are adjacent, because they share its keys and values. A warp has 16 queries, whose keys lie
// within its SPAN rows.
template <int SIZE, int WARPS, int SPAN>
__device__ void attention_packed(const AttentionArgs& a) {
#ifdef TENSOR_CORES
    constexpr u32 TILE = 16 * WARPS, THREADS = 32 * WARPS;
    alignas(16) __shared__ Row<SIZE> tiles[3][TILE];
    u32 own = threadIdx.x / 32 * 16, span = own / SPAN * SPAN, head = blockIdx.x % a.heads.queries;
    u32 key_head = head / a.heads.group(), i0 = blockIdx.x / a.heads.queries * TILE, end = a.rows;
    u32 parts[3] = {a.heads.query(head), a.heads.key(key_head), a.heads.value(key_head)};
#pragma unroll
    for (int p = 0; p < 3; p++)
        fetch<SIZE, TILE, THREADS>(tiles[p], Part(a.qkv, 0, a.heads.width(), parts[p], a.heads.size), i0, end);
    wait_for_copies();
    __syncthreads();
    Left<SIZE, true> query(tiles[0] + own);
    Softmax softmax{a.scale * LOG2_E};
    float sums[SIZE / 8][4] = {};
    float scores[SPAN / 8][4];
    multiply_turned(scores, query, tiles[1] + span);
    hide_others<false>(scores, a.seq_len, own, span);
    softmax.weigh(scores);
    multiply_add<SIZE>(sums, scores, tiles[2] + span);
    // The warp's queries are in registers, and no other warp reads their part of the tile.
    __syncwarp();
    finish<SIZE>(a, tiles[0] + own, sums, softmax, 0, head, i0 + own, end,
                 [&](u32 i) { return place(i, a.seq_len, a.heads.queries, head); });
#else
    __trap();
#endif
}

EXPORT_MANY(attention_tensor_32, AttentionArgs, 128, 5, attention<32, 4, 64, false>)
EXPORT_MANY(attention_tensor_32_documents, AttentionArgs, 128, 5, attention<32, 4, 64, true>)
EXPORT_MANY(attention_tensor_64, AttentionArgs, 128, 4, attention<64, 4, 64, false>)
EXPORT_MANY(attention_tensor_64_documents, AttentionArgs, 128, 4, attention<64, 4, 64, true>)
EXPORT_MANY(attention_tensor_128, AttentionArgs, 128, 3, attention<128, 4, 32, false>)
EXPORT_MANY(attention_tensor_128_documents, AttentionArgs, 128, 3, attention<128, 4, 32, true>)
EXPORT_MANY(attention_packed_32_16, AttentionArgs, 128, 8, attention_packed<32, 4, 16>)
EXPORT_MANY(attention_packed_32_32, AttentionArgs, 128, 8, attention_packed<32, 4, 32>)
EXPORT_MANY(attention_packed_64_16, AttentionArgs, 128, 6, attention_packed<64, 4, 16>)
EXPORT_MANY(attention_packed_64_32, AttentionArgs, 128, 6, attention_packed<64, 4, 32>)
EXPORT_MANY(attention_packed_128_16, AttentionArgs, 64, 8, attention_packed<128, 2, 16>)
EXPORT_MANY(attention_packed_128_32, AttentionArgs, 64, 8, attention_packed<128, 2, 32>)
