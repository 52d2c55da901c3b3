// What belongs to a linear layer beside its product: the rotation of queries and keys, and, where the product was
// a library's, the GELU.
#include "heads.cuh"

EXPORT_BOTH(linear_rotate, RotateArgs, 128, rotate)

struct EpilogueArgs {
    const void* before_gelu;  // [rows, columns] or null: out is multiplied by gelu'(this)
    void* out;                // [rows, columns]: updated
    void* activated;          // [rows, columns] or null: takes gelu(out)
    u64 count;
};

template <class T>
__device__ void linear_epilogue(const EpilogueArgs& a) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    T* out = (T*)a.out + i;
    float value = load(*out);
    if (a.before_gelu) value *= gelu_derivative(load(((const T*)a.before_gelu)[i]));
    if (a.before_gelu) *out = store<T>(value);
    if (a.activated) ((T*)a.activated)[i] = store<T>(gelu(load(store<T>(value))));
}

EXPORT_BOTH(linear_epilogue, EpilogueArgs, 256, linear_epilogue)
