// The plainest matrix product, a thread an element: what product.cu is measured against. No step uses it.
#include "../common.cuh"

struct NaiveArgs {
    const void* a;  // [m, k]
    const void* b;  // [k, n]
    void* c;        // [m, n]
    u32 m, n, k;
};

template <class T>
__device__ void naive(const NaiveArgs& a) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (u64)a.m * a.n) return;
    const T* row = (const T*)a.a + at / a.n * a.k;
    const T* column = (const T*)a.b + at % a.n;
    float sum = 0;
    for (u32 i = 0; i < a.k; i++) sum += load(row[i]) * load(column[(u64)i * a.n]);
    ((T*)a.c)[at] = store<T>(sum);
}

EXPORT_BOTH(naive, NaiveArgs, 256, naive)
