// The exact GELU by itself.
#include "gelu.cuh"
#include "../vector.cuh"

struct GeluArgs {
    const void* x;
    void* out;
    u64 count;
    u32 wide;  // whether both begin at multiples of 16 bytes
};

template <class T>
__device__ void gelu_all(const GeluArgs& a) {
    each_wide<T>(a.count, a.wide, [&](auto n, u64 at) {
        float x[n.value];
        read(x, (const T*)a.x + at);
#pragma unroll
        for (int i = 0; i < n.value; i++) x[i] = gelu<T>(x[i]);
        write((T*)a.out + at, x);
    });
}

EXPORT_BOTH(gelu, GeluArgs, 256, gelu_all)
