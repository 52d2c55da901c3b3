// Copies regions.
#include "../vector.cuh"

constexpr u32 REGIONS = 16;

struct CarryArgs {
    const unsigned char* from[REGIONS];
    unsigned char* to[REGIONS];
    u64 bytes[REGIONS];
    u32 wide[REGIONS];  // whether both begin at multiples of 16 bytes
};

// Grid (bytes of the largest, regions).
__device__ void copy(const CarryArgs& a) {
    u32 r = blockIdx.y;
    each_wide<unsigned char>(a.bytes[r], a.wide[r], [&](auto count, u64 at) {
        constexpr int N = decltype(count)::value;
        *(Vector<unsigned char, N>*)(a.to[r] + at) = fetch<unsigned char, N>(a.from[r] + at);
    });
}

EXPORT(carry, CarryArgs, 256, copy)
