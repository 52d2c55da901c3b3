// The maximum of the ranks' numbers.
#include "../common.cuh"

struct MaxPartsArgs {
    const float* parts;  // [n, count]
    float* largest;      // [count]
    u32 n, count;
};

// One thread for each column.
__device__ void largest_of(const MaxPartsArgs& a) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    float largest = a.parts[i];
    for (u32 part = 1; part < a.n; part++) largest = fmaxf(largest, a.parts[part * a.count + i]);
    a.largest[i] = largest;
}

EXPORT(max_parts, MaxPartsArgs, 128, largest_of)
