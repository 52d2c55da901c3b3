// Copying a region.
#include "vector.cuh"

struct CarryArgs {
    const unsigned char* from;
    unsigned char* to;
    u64 bytes;
    u32 wide;  // whether both begin at multiples of 16 bytes
};

__device__ void copy(const CarryArgs& a) {
    each_wide<unsigned char>(a.bytes, a.wide, [&](auto count, u64 at) {
        constexpr int N = decltype(count)::value;
        *(Vector<unsigned char, N>*)(a.to + at) = fetch<unsigned char, N>(a.from + at);
    });
}

EXPORT(carry, CarryArgs, 256, copy)
