// The end of a step for tensors in 8 bits: the history moves up by one step and determines the next scales.
#include "../common.cuh"

struct RescaleArgs {
    float* amax;
    float* history;  // [16, count], the oldest first
    float* scale;
    float* inverse;  // [count, 4], each inverse four times
    u32 count;
    float max;  // the format's largest number
};

// One thread for each tensor.
__device__ void rescale_all(const RescaleArgs& a) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    float largest = a.amax[i];
    for (u32 age = 0; age < 15; age++) {
        float x = a.history[(age + 1) * a.count + i];
        a.history[age * a.count + i] = x;
        largest = fmaxf(largest, x);
    }
    a.history[15 * a.count + i] = a.amax[i];
    a.amax[i] = 0;
    // The power of two below max / largest, with exponents limited to ±62.
    u32 exponent = __float_as_uint(a.max / largest) >> 23;
    exponent = min(max(exponent, 127u - 62), 127u + 62);
    float scale = largest == 0 ? 1.0f : __uint_as_float(exponent << 23);
    a.scale[i] = scale;
    for (u32 n = 4 * i; n < 4 * i + 4; n++) a.inverse[n] = 1.0f / scale;
}

EXPORT(rescale, RescaleArgs, 128, rescale_all)
