// The gradient of SwiGLU as 8-bit copies, plain and transposed, and SwiGLU's output transposed. An element of d moves
// 11 bytes: gate, up and the output's gradient are read; two gradients are written twice and the output once.
#include "swiglu.cuh"
#include "../turned.cuh"

struct SwiGluCopiesArgs {
    const void* gate_up;             // [rows, 2 d]: the gate, then up
    const void* out_grad;            // [rows, d]
    CopyArgs copy;                   // [rows, 2 d]: of the gradients of gate and up
    unsigned char* gate_up_turned;   // [2 d, rows]
    unsigned char* out_turned;       // [d, rows]
    const float* out_scale;
    u32 rows, d;                     // whole runs
};

// One block for each tile of the output.
template <class T>
__device__ void swiglu_grad_copies(const SwiGluCopiesArgs& a) {
    __shared__ CodeTile tiles[3];
    Copier<E5m2> copier(a.copy);
    u32 across = (a.d + TILE - 1) / TILE;
    u32 row0 = blockIdx.x / across * TILE, column0 = blockIdx.x % across * TILE;
    u32 own = threadIdx.x / 4, run = threadIdx.x % 4 * RUN;
    u32 row = row0 + own, column = column0 + run;
    if (row < a.rows && column < a.d) {
        u64 at = (u64)row * 2 * a.d + column;
        const T* gates = (const T*)a.gate_up + at;
        float gate[RUN], up[RUN], out_grad[RUN], out[RUN];
        u32 codes[RUN / 4];
        read(gate, gates);
        read(up, gates + a.d);
        read(out_grad, (const T*)a.out_grad + (u64)row * a.d + column);
        derive_swiglu<T>(gate, up, out, out_grad);
        round_to<T>(gate), round_to<T>(up), round_to<T>(out);
        copier.convert(codes, gate);
        put(a.copy.codes + at, codes);
        tiles[0].take(own, run, codes);
        copier.convert(codes, up);
        put(a.copy.codes + at + a.d, codes);
        tiles[1].take(own, run, codes);
        codes_of_all<E4m3>(codes, out, *a.out_scale);
        tiles[2].take(own, run, codes);
    }
    __syncthreads();
    if (u32 which = threadIdx.x / WRITERS; which < 3) {
        unsigned char* to = which == 2 ? a.out_turned : a.gate_up_turned + (u64)which * a.d * a.rows;
        tiles[which].turn(threadIdx.x % WRITERS, [&](u32 c, u32 r, const u32(&turned)[RUN / 4]) {
            if (row0 + r < a.rows && column0 + c < a.d) put(to + (u64)(column0 + c) * a.rows + row0 + r, turned);
        });
    }
    copier.finish(a.copy);
}

EXPORT(swiglu_grad_copies_f32, SwiGluCopiesArgs, 256, swiglu_grad_copies<float>)
EXPORT(swiglu_grad_copies_bf16, SwiGluCopiesArgs, 256, swiglu_grad_copies<bf16>)
