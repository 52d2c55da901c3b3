// The rotation of queries and keys, all rows in place.
#include "heads.cuh"

struct RotateArgs {
    void* rows;          // [count, width]: turned in place
    const float* table;  // [positions, dims / 2, 2]: cosine and sine
    u32 count, dims, positions;
    u32 inverse;
    Heads heads;
};

template <class T>
__device__ void rotate(const RotateArgs& a) {
    u32 row = blockIdx.x;
    rotate_row((T*)a.rows + (u64)row * a.heads.width(), a.table + (u64)(row % a.positions) * a.dims, a.heads, a.dims,
               a.inverse);
}

EXPORT_BOTH(rotate, RotateArgs, 128, rotate)
