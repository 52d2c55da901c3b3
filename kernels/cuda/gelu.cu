// The exact GELU by itself.
#include "common.cuh"

struct GeluArgs {
    const void* x;
    void* out;
    u64 count;
};

template <class T>
__device__ void gelu_all(const GeluArgs& a) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) ((T*)a.out)[i] = store<T>(gelu(load(((const T*)a.x)[i])));
}

EXPORT_BOTH(gelu, GeluArgs, 256, gelu_all)
