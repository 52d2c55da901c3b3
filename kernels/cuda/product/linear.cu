// The part of a linear layer after a library's matrix multiplication: the GELU.
#include "../pointwise/gelu.cuh"
#include "../vector.cuh"

struct EpilogueArgs {
    const void* before_gelu;  // [rows, columns] or null: out is multiplied by gelu'(this)
    void* out;                // [rows, columns]: updated
    void* activated;          // [rows, columns] or null: receives gelu(out)
    u64 count;
    u32 wide;                 // whether all begin at multiples of 16 bytes
};

template <class T, int N>
__device__ inline void epilogue(const EpilogueArgs& a, u64 at) {
    T* out = (T*)a.out + at;
    float value[N], before[N];
    read(value, out);
    if (a.before_gelu) {
        read(before, (const T*)a.before_gelu + at);
#pragma unroll
        for (int i = 0; i < N; i++) value[i] *= gelu_derivative<T>(before[i]);
        write(out, value);
    }
    if (a.activated) {
        // Of the stored value, so that recomputing it later gives the same bits.
        if (a.before_gelu) read(value, out);
#pragma unroll
        for (int i = 0; i < N; i++) value[i] = gelu<T>(value[i]);
        write((T*)a.activated + at, value);
    }
}

template <class T>
__device__ void linear_epilogue(const EpilogueArgs& a) {
    each_wide<T>(a.count, a.wide, [&](auto n, u64 at) { epilogue<T, n.value>(a, at); });
}

EXPORT_BOTH(linear_epilogue, EpilogueArgs, 256, linear_epilogue)
