// The order of heads in a row of a fused projection, the keys that a query sees, and the rotation of a pair.
#pragma once
#include "../common.cuh"

// Offsets and strides count elements, as in core's Heads.
struct Heads {
    u32 queries, keys, size;
    u32 query_first, query_stride, key_first, key_stride, value_first, value_stride;

    __device__ u32 query(u32 head) const { return query_first + query_stride * head; }
    __device__ u32 key(u32 head) const { return key_first + key_stride * head; }
    __device__ u32 value(u32 head) const { return value_first + value_stride * head; }
    __device__ u32 group() const { return queries / keys; }
    __device__ u32 width() const { return (queries + 2 * keys) * size; }
};

// As core's Pattern; kind 0 dense, 1 local, 2 global, 3 mixed.
struct Pattern {
    u32 kind, block, window, stride;

    __device__ bool sees_block(u32 i, u32 j) const {
        bool local = i - min(i, j) <= window;
        bool global = j % stride == 0 || j == i;
        bool seen = kind == 0 || (kind == 1 && local) || (kind == 2 && global) || (kind == 3 && (local || global));
        return j <= i && seen;
    }

    __device__ bool sees(u32 i, u32 j) const { return j <= i && (kind == 0 || sees_block(i / block, j / block)); }

    // Whether any query of [i, i_end) sees any key of [j, j_end).
    __device__ bool any(u32 i, u32 i_end, u32 j, u32 j_end) const {
        if (j >= i_end) return false;
        if (kind == 0) return true;
        u32 first_i = i / block, last_i = (i_end - 1) / block, first_j = j / block;
        u32 last_j = min((j_end - 1) / block, last_i);
        bool local = first_i <= last_j + window;
        bool global = (first_j + stride - 1) / stride * stride <= last_j || first_i <= last_j;
        return (kind != 2 && local) || (kind != 1 && global);
    }

    // Whether every block with a query of [i, i_end) sees every block with a key of [j, j_end) that is not later; may
    // return false where local and global blocks together cover all.
    __device__ bool whole(u32 i, u32 i_end, u32 j, u32 j_end) const {
        if (kind == 0) return true;
        u32 last_i = (i_end - 1) / block, first_j = j / block, last_j = (j_end - 1) / block;
        bool local = last_i - min(first_j, last_i) <= window;
        bool global = stride == 1 || (first_j == last_j && (first_j % stride == 0 || first_j == last_i));
        return (kind != 2 && local) || (kind != 1 && global);
    }
};

// Rotates pair `pair` (elements pair and pair + dims / 2 of a head).
template <class T>
__device__ inline void turn(T* head, const float* angles, u32 dims, u32 pair, bool inverse) {
    float cosine = angles[2 * pair], sine = inverse ? -angles[2 * pair + 1] : angles[2 * pair + 1];
    float low = load(head[pair]), high = load(head[pair + dims / 2]);
    head[pair] = store<T>(low * cosine - high * sine);
    head[pair + dims / 2] = store<T>(high * cosine + low * sine);
}
