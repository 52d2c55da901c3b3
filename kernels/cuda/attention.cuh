// What the kernels of attention and of its gradient take.
#pragma once
#include "heads.cuh"

struct AttentionArgs {
    const void* qkv;  // [batch, seq_len, width], queries and keys already turned
    void* out;        // [batch, seq_len, queries * size]
    float* log_sum;   // [batch, queries, seq_len]
    u32 seq_len;
    float scale;
    Heads heads;
    Pattern pattern;
    u32 rows;         // batch * seq_len
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
    // Of attention_grad_short_stream: [2 gridDim.x / keys, width] or null: sums of qkv_grad's columns, where heads have their
    // keys to themselves and a block always the same head.
    float* sums;
};
