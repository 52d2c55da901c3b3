// CUDA C++ for g++: a kernel's threads are fibers of one CPU thread; blocks run one after the other unless the launch
// says that they wait for each other.
//
// Errors that it detects: accesses beyond the allocation (a guard page), outputs never written (storage starts as NaN,
// and so does every block's shared memory), unknown kernels and wrong block sizes, barriers that not all threads reach.
// Blocks alternate between running their threads forwards and backwards, so that many a missing barrier is detected.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace stand_in {

struct Index {
    unsigned x, y, z;
};

struct Running {
    Index thread, block, block_size, grid;
};

// A thread's stack lies in a slot of its own, at a multiple of the slot's size, with the thread's data after it: from
// the stack pointer the data is found without reading memory. If all data began at the same offset in their slots, they
// would conflict in the cache, so the data of 32 neighbours lie on different lines.
constexpr uintptr_t PLACE = 256 << 10, DATA = 512, APART = 33 * 64;

inline uintptr_t data_of(uintptr_t place) { return place + PLACE - DATA - place / PLACE % 32 * APART; }

// The thread of the kernel that calls this.
inline Running& now() {
#ifdef __x86_64__
    uintptr_t here;
    asm("movq %%rsp, %0" : "=r"(here));
#else
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
#endif
    return *(Running*)data_of(here & ~(PLACE - 1));
}

// Waits until every thread of the block is here.
void block_barrier(const char* file, int line);
// The data of a lane in an exchange.
struct Words {
    uint64_t word[3];
};

// Waits until every lane of the warp is here; returns the data of each lane.
const Words* warp_exchange(Words brought, const char* file, int line);
inline const Words* warp_exchange(uint64_t brought, const char* file, int line) {
    return warp_exchange(Words{{brought, 0, 0}}, file, line);
}

// For threads that wait for another block.
void let_others_run();

// Blocks that wait for each other run concurrently.
inline void raise(unsigned long long* at, unsigned long long value) {
    unsigned long long before = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (before < value &&
           !__atomic_compare_exchange_n(at, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

// A copy of at most 16 bytes with their current content, which arrives when its thread waits for it, so that a missing
// wait is detected as well as a start before they were written. Without a source: zeros.
void copy_later(void* to, const void* from, size_t bytes);
// Makes one group of all copies since the last call.
void end_copies();
// Completes all groups except the last `left`.
void copy_now(unsigned left = 0);

// A barrier of the block by its number, for this number of threads: arriving continues, waiting blocks.
void arrive_at(unsigned id, unsigned threads);
void wait_at(unsigned id, unsigned threads, const char* file, int line);

// A barrier in shared memory that counts arrivals and bytes of tiles, in phases that `start_phases` defines.
void start_phases(const void* barrier, unsigned arrivals);
void arrive_in_phase(const void* barrier, unsigned bytes);
// Whether the phase with this parity is over; the first phase has parity 0.
bool phase_over(const void* barrier, unsigned parity);
void wait_for_phase(const void* barrier, unsigned parity, const char* file, int line);

// Matrices of bf16, and the rows of a tile, which has 64 columns: driver.cpp makes this from a tensor map. Two more
// dimensions select the matrix. Pitches are in bytes, for all dimensions except the columns.
struct TileMap {
    uint64_t address, sizes[4], pitches[3], tile_rows;
};

// Copies a tile with its current content: rows of eight pieces of 16 bytes, piece p of row r at p ^ r % 8; zeros beyond
// the matrix. It arrives when the barrier's phase ends.
void copy_tile(void* to, const TileMap& map, const void* barrier, unsigned column, unsigned row, unsigned head = 0,
               unsigned sequence = 0);

// Registers a kernel under its name.
struct Kernel {
    const char* name;
    size_t argument_bytes;
    unsigned threads;  // the largest size of a block
    void (*run)(const void* arguments);
    Kernel* next;
};
struct Registration {
    explicit Registration(Kernel* kernel);
};

template <class To, class From>
inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

}  // namespace stand_in

#define __device__
#define __global__
// Thread-local, so that all of it is contiguous, and is poisoned before a block starts.
#define __shared__ static thread_local
#define threadIdx (stand_in::now().thread)
#define blockIdx (stand_in::now().block)
#define blockDim (stand_in::now().block_size)
#define gridDim (stand_in::now().grid)
#define __syncthreads() stand_in::block_barrier(__FILE__, __LINE__)
#define __syncwarp() stand_in::warp_exchange((uint64_t)0, __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, lanes) \
    stand_in::bits<float>((uint32_t)stand_in::warp_exchange( \
        (uint64_t)stand_in::bits<uint32_t>((float)(value)), __FILE__, __LINE__)[(threadIdx.x % 32) ^ (lanes)].word[0])
#define __ballot_sync(mask, predicate) \
    stand_in_ballot(stand_in::warp_exchange((uint64_t)((predicate) ? 1 : 0), __FILE__, __LINE__))

inline unsigned stand_in_ballot(const stand_in::Words* votes) {
    unsigned all = 0;
    for (int lane = 0; lane < 32; lane++) all |= (unsigned)votes[lane].word[0] << lane;
    return all;
}

// Not contracted: build.rs sets the compiler option.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline float __uint_as_float(unsigned x) { return stand_in::bits<float>(x); }
inline unsigned __float_as_uint(float x) { return stand_in::bits<unsigned>(x); }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
// Threads never run in parallel here.
inline unsigned atomicAdd(unsigned* at, unsigned value) {
    unsigned before = *at;
    *at += value;
    return before;
}

inline unsigned atomicMax(unsigned* at, unsigned value) {
    unsigned before = *at;
    if (value > before) *at = value;
    return before;
}

#define EXPORT(name, Args, threads, ...)                                                                     \
    static void name##_run(const void* arguments) { __VA_ARGS__(*(const Args*)arguments); }                  \
    static stand_in::Kernel name##_kernel = {#name, sizeof(Args), threads, name##_run, nullptr};             \
    static stand_in::Registration name##_registration(&name##_kernel);
#define EXPORT_PAIR EXPORT
#define EXPORT_MANY(name, Args, threads, blocks, ...) EXPORT(name, Args, threads, __VA_ARGS__)
