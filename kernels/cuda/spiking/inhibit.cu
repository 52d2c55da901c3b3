// Keeps inhibitory synapses inhibitory.
#include "../vector.cuh"

struct InhibitArgs {
    const u32* sources;
    float* weights;
    u64 synapses;
    u32 first, count;  // inhibitory sources
};

__device__ void hold_down(const InhibitArgs& a) {
    u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i < a.synapses && a.sources[i] - a.first < a.count && a.weights[i] > 0) a.weights[i] = 0;
}

EXPORT(inhibit, InhibitArgs, 256, hold_down)
