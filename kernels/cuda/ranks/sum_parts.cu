// The sum of the ranks' numbers, in the order of the ranks.
#include "../vector.cuh"

struct SumPartsArgs {
    const float* parts;  // [n, stride]
    float* sum;          // [count]
    u64 count, stride;
    u32 n;
    u32 adds;            // whether the previous sum is the first summand
    u32 wide;            // whether all begin at multiples of 16 bytes
};

// Each addition is rounded by itself: the same bits as on every other device.
__device__ void add_parts(const SumPartsArgs& a) {
    each_wide<float>(a.count, a.wide, [&](auto count, u64 at) {
        constexpr int N = decltype(count)::value;
        float sum[N], x[N];
        read(sum, a.adds ? a.sum + at : a.parts + at);
        for (u32 i = a.adds ? 0 : 1; i < a.n; i++) {
            read(x, a.parts + i * a.stride + at);
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] += x[j];
        }
        write(a.sum + at, sum);
    });
}

EXPORT(sum_parts, SumPartsArgs, 256, add_parts)
