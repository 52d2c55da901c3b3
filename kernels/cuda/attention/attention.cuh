// The arguments of the kernels of attention and of its gradient.
#pragma once
#include "heads.cuh"

// A block's item of work; most often from a grid (heads, sequences, tiles).
struct Work {
    u32 head, sequence, tile;
};

// The order of blocks: the first sequences one after the other, so that the last-level cache has the data that
// concurrent blocks read repeatedly. The last sequences run together, so that all blocks end at about the same time.
// Among sequences that run together, all heads' first tiles come before the next tiles.
struct Order {
    u32 alone;  // sequences that run one after the other

    // The item of work after `before` others.
    __device__ Work after(u32 before, u32 heads, u32 sequences, u32 tiles) const {
        u32 each = heads * tiles, first = min(before / each, alone), count = first < alone ? 1 : sequences - alone;
        u32 rest = (before - each * first) / heads;
        return {before % heads, first + rest % count, rest / count};
    }

    // The item of work of a block.
    __device__ Work work() const {
        u32 before = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        return after(before, gridDim.x, gridDim.y, gridDim.z);
    }
};

// The keys that queries of a sequence see because of documents: from the first key on that is in the query's document
// and in the sequence. It is derived from the offsets of all rows, each the number of tokens of its document before the
// row; along a sequence this first key never decreases. A kernel that is not MASKED has none of this.
template <bool MASKED>
struct Documents {
    const u32* offsets;  // of the sequence's rows
    u32 end;             // the number of rows

    __device__ Documents(const u32* all, u64 first, u32 end) : offsets(MASKED ? all + first : all), end(end) {}

    // The first key that query `i` sees; for a query after the end, that of the last query.
    __device__ u32 first_seen(u32 i) const {
        if constexpr (!MASKED) return 0;
        i = min(i, end - 1);
        return i - min(offsets[i], i);
    }

    // Whether some query from `i` on may see a key before `j_end`.
    __device__ bool reach(u32 i, u32 j_end) const { return !MASKED || first_seen(i) < j_end; }
};

// As Documents, decided at run time: `all` is null where rows are seen whole.
__device__ inline u32 first_seen(const u32* all, u64 first, u32 end, u32 i) {
    return all ? Documents<true>(all, first, end).first_seen(i) : 0;
}

struct AttentionArgs {
    const void* qkv;     // [batch, seq_len, width], queries and keys already rotated
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
    // Column sums of qkv_grad, or null. For attention_grad_short_stream [2 gridDim.x / keys, width], where each head of
    // keys has one head of queries and a block always has the same head; for long sequences [batch, tiles of 64 rows,
    // width].
    float* sums;
    u32* taken;  // of attention_grad_keys_pipeline: the number of items taken, which the queries' kernel sets to 0
    const u32* offsets;    // [batch, seq_len]: see Documents; or null
};

// As AttentionArgs, with tiles copied by the tensor memory accelerator; a head's elements are a multiple of eight.
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
