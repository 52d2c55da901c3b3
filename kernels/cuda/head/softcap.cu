// A smooth cap on logits.
#include "softcap.cuh"
#include "../vector.cuh"

struct SoftcapArgs {
    float* x;
    u64 count;
    u32 wide;  // whether the logits begin at a multiple of 16 bytes
    float cap;
};

__device__ void cap_all(const SoftcapArgs& a) {
    each_wide<float>(a.count, a.wide, [&](auto n, u64 at) {
        float x[n.value];
        read(x, a.x + at);
#pragma unroll
        for (int i = 0; i < n.value; i++) x[i] = softcap<float>(x[i], a.cap);
        write(a.x + at, x);
    });
}

EXPORT(softcap, SoftcapArgs, 256, cap_all)
