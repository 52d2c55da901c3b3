// Expands a weight that is stored in fewer bits.
#include "../common.cuh"

struct DequantiseArgs {
    const void* codes;   // [rows, columns]: integers of 8 bits, with the bytes of two rows interleaved; or bf16
    const void* scales;  // [rows] f16, or null for bf16
    void* out;           // [rows, columns]
    u32 rows, columns;
    u32 paired;          // rows in pairs, from the first on
};

// The number of f16 bits that are finite and not negative.
__device__ inline float half_bits(u32 bits) {
    u32 exponent = bits >> 10, mantissa = bits & 0x3ff;
    // Subnormal numbers are multiples of 2^-24; the exponent biases differ by 112.
    return exponent == 0 ? (float)mantissa * 5.9604644775390625e-8f : __uint_as_float((exponent + 112) << 23 | mantissa << 13);
}

// Each thread has the two rows of a pair at one column.
template <class T>
__device__ void dequantise(const DequantiseArgs& a) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x, pair = at / a.columns;
    u32 column = (u32)(at - pair * a.columns);
    u64 row = 2 * pair;
    if (row >= a.rows) return;
    T* out = (T*)a.out + row * a.columns + column;
    bool second = row + 1 < a.rows;
    if (!a.scales) {
        const bf16* from = (const bf16*)a.codes + row * a.columns + column;
        out[0] = store<T>(load(from[0]));
        if (second) out[a.columns] = store<T>(load(from[a.columns]));
        return;
    }
    const unsigned short* scales = (const unsigned short*)a.scales;
    const unsigned char* from = (const unsigned char*)a.codes + row * a.columns;
    if (row >= a.paired) {
        out[0] = store<T>((float)(signed char)from[column] * half_bits(scales[row]));
        return;
    }
    u32 both = ((const unsigned short*)from)[column];
    out[0] = store<T>((float)(signed char)((both & 0xff) ^ 0x80) * half_bits(scales[row]));
    out[a.columns] = store<T>((float)(signed char)(both >> 8) * half_bits(scales[row + 1]));
}

EXPORT_BOTH(dequantise, DequantiseArgs, 256, dequantise)
