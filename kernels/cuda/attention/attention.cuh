// What the kernels of attention and of its gradient take.
#pragma once
#include "heads.cuh"

// What a block works at; most often of a grid (heads, sequences, tiles).
struct Work {
    u32 head, sequence, tile;
};

// The order in which blocks begin: of the first sequences one after the other, so that the last cache has what the blocks that
// run at a time read again and again. The last sequences come together, so that all blocks end at about the same time. Of
// those that come together all heads' first tiles come before the next tiles.
struct Order {
    u32 alone;  // sequences that come one after the other

    // The work that comes after `before` others.
    __device__ Work after(u32 before, u32 heads, u32 sequences, u32 tiles) const {
        u32 each = heads * tiles, first = min(before / each, alone), count = first < alone ? 1 : sequences - alone;
        u32 rest = (before - each * first) / heads;
        return {before % heads, first + rest % count, rest / count};
    }

    // That of a block.
    __device__ Work work() const {
        u32 before = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        return after(before, gridDim.x, gridDim.y, gridDim.z);
    }
};

// The keys that queries of a sequence see by their documents: from the first of the own document that is in the sequence on. By
// the offsets of all rows, how many tokens of a row's document precede it, along a sequence that key never comes earlier. A
// kernel that is not MASKED has none of this.
template <bool MASKED>
struct Documents {
    const u32* offsets;  // of the sequence's rows
    u32 end;             // how many they are

    __device__ Documents(const u32* all, u64 first, u32 end) : offsets(MASKED ? all + first : all), end(end) {}

    // The first key that query `i` sees; of one behind the end that of the last.
    __device__ u32 first_seen(u32 i) const {
        if constexpr (!MASKED) return 0;
        i = min(i, end - 1);
        return i - min(offsets[i], i);
    }

    // Whether some query from `i` on may see a key before `j_end`.
    __device__ bool reach(u32 i, u32 j_end) const { return !MASKED || first_seen(i) < j_end; }
};

// The same where that is found out as it runs: `all` is null where rows are seen whole.
__device__ inline u32 first_seen(const u32* all, u64 first, u32 end, u32 i) {
    return all ? Documents<true>(all, first, end).first_seen(i) : 0;
}

struct AttentionArgs {
    const void* qkv;     // [batch, seq_len, width], queries and keys already turned
    void* out;           // [batch, seq_len, queries * size]
    float* log_sum;      // [batch, queries, seq_len]
    const u32* offsets;  // [batch, seq_len]: see Documents; or null
    u32 seq_len;
    float scale;
    Heads heads;
    Pattern pattern;
    u32 rows;            // batch * seq_len
    Order order;
};

struct AttentionGradArgs {
    const void* qkv;       // [batch, seq_len, width]
    const void* out;       // [batch, seq_len, queries * size]
    const void* out_grad;  // [batch, seq_len, queries * size]
    const float* log_sum;  // [batch, queries, seq_len]
    float* mean;           // [batch, queries, seq_len]: out_grad . out
    void* qkv_grad;        // [batch, seq_len, width]
    const float* table;    // [positions, dims / 2, 2]: cosine and sine
    u32 seq_len, dims, period;
    float scale;
    Heads heads;
    Pattern pattern;
    u32 rows;              // batch * seq_len
    Order order;
    // Sums of qkv_grad's columns, or null. Of attention_grad_short_stream [2 gridDim.x / keys, width], where heads have their
    // keys to themselves and a block always the same head; for long sequences [batch, tiles of 64 rows, width].
    float* sums;
    u32* taken;  // of attention_grad_keys_pipeline: how many works are taken, which the queries' kernel sets to 0
    const u32* offsets;    // [batch, seq_len]: see Documents; or null
};

// The same where tiles come by the tensor memory accelerator; a head's elements are a multiple of eight.
struct AttentionTilesArgs {
    alignas(64) u64 qkv[16];  // tensor map: tiles of 64 rows of a head
    AttentionArgs attention;
    u32 unused[6];
};

struct AttentionGradTilesArgs {
    alignas(64) u64 qkv[16];
    u64 out_grad[16];
    AttentionGradArgs grad;
    u32 unused[8];
};
