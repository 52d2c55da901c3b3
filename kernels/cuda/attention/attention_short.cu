// Attention over sequences of 65 to 128 tokens, in bf16 by warpgroups (wgmma): a head's keys and values of a sequence
// are read once and stay in shared memory for all of its heads of queries in turn.
#include "../stripe.cuh"

#ifdef WARPGROUPS

namespace {

// Two tiles of keys, of values and of queries, and the rows that a warp writes.
constexpr u32 ROOM = 6 * TILE * sizeof(bf16) + SIDE * sizeof(Row<SIDE>);
static_assert(3 * (ROOM + 1024) <= 228 << 10, "three blocks a multiprocessor");

}  // namespace

#endif

// Grid (keys, batch). A block is one warpgroup.
__device__ inline void attention_of_short(const AttentionArgs& a) {
#ifdef WARPGROUPS
    LAUNCH_SHARED(pool, ROOM);
    bf16 *all_keys = (bf16*)pool, *all_values = all_keys + 2 * TILE, *all_queries = all_values + 2 * TILE;
    u32 own = threadIdx.x / 32 * 16, group = a.heads.group(), head = blockIdx.x * group, heads_end = head + group;
    Row<SIDE>* rows = (Row<SIDE>*)(all_queries + 2 * TILE) + own;
    u32 width = a.heads.width(), end = a.seq_len;
    u64 first = (u64)blockIdx.y * end;
    auto of_qkv = [&](u32 column) { return HeadRows(a.qkv, first, width, column, end); };
#pragma unroll
    for (u32 t = 0; t < 2; t++) {
        of_qkv(a.heads.query(head)).fetch(all_queries + t * TILE, t);
        of_qkv(a.heads.key(blockIdx.x)).fetch(all_keys + t * TILE, t);
        of_qkv(a.heads.value(blockIdx.x)).fetch(all_values + t * TILE, t);
    }
    Matrix keys[2] = {Matrix(all_keys), Matrix(all_keys + TILE)};
    Matrix values[2] = {Matrix(all_values), Matrix(all_values + TILE)};
    Matrix first_keys[1] = {keys[0]}, first_values[1] = {values[0]};
    await_tiles();
#pragma unroll 1
    for (; head < heads_end; head++) {
        HeadRows outs(a.out, first, a.heads.queries * SIDE, head * SIDE, end);
        float* log_sum = a.log_sum + ((u64)blockIdx.y * a.heads.queries + head) * end;
        attend<2>(a, Matrix(all_queries + TILE), keys, values, rows, outs, log_sum, SIDE + own);
        // The next head's later queries arrive while this head's earlier ones are processed, and the other way round.
        await_tiles();
        if (head + 1 < heads_end) of_qkv(a.heads.query(head + 1)).fetch(all_queries + TILE, 1);
        attend<1>(a, Matrix(all_queries), first_keys, first_values, rows, outs, log_sum, own);
        await_tiles();
        if (head + 1 < heads_end) of_qkv(a.heads.query(head + 1)).fetch(all_queries, 0);
    }
#else
    __trap();
#endif
}

EXPORT_MANY(attention_short, AttentionArgs, 128, 3, attention_of_short)
