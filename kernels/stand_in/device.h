// CUDA C++ for g++: a kernel's threads are fibers of one CPU thread, blocks run one after the other unless the launch
// says that they wait for each other.
//
// What it catches: accesses beyond the allocation (a guard page), outputs never written (storage starts as NaN, and so
// does every block's shared memory), unknown kernels and wrong block sizes, barriers that not all threads reach. Blocks run their threads forwards and
// backwards in turn, so that many a missing barrier shows.
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

// A thread's stack lies in a place of its own, at a multiple of its size, with the thread's data behind it: wherever the
// stack is, the data is found without memory being read. Places that all began alike would be in each other's way in the
// cache, so 32 neighbours' data lie on different lines.
constexpr uintptr_t PLACE = 256 << 10, DATA = 512, APART = 33 * 64;

inline uintptr_t data_of(uintptr_t place) { return place + PLACE - DATA - place / PLACE % 32 * APART; }

// The thread of a kernel that this is called in.
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
// What a lane brings to an exchange.
struct Words {
    uint64_t word[3];
};

// Waits until every lane of the warp is here; gives what each of them brought.
const Words* warp_exchange(Words brought, const char* file, int line);
inline const Words* warp_exchange(uint64_t brought, const char* file, int line) {
    return warp_exchange(Words{{brought, 0, 0}}, file, line);
}

// For who waits for another block.
void let_others_run();

// Blocks that wait for each other run at the same time.
inline void raise(unsigned long long* at, unsigned long long value) {
    unsigned long long before = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (before < value &&
           !__atomic_compare_exchange_n(at, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

// A copy of at most 16 bytes as they are now, which arrive when its thread waits for it, so that a missing wait shows as
// well as a start before they were written. From nowhere: zeros.
void copy_later(void* to, const void* from, size_t bytes);
// What was started since the last of these is one group.
void end_copies();
// All but the last `left` groups.
void copy_now(unsigned left = 0);

// A barrier of the block by its number, for so many of its threads: who arrives goes on, who waits does not.
void arrive_at(unsigned id, unsigned threads);
void wait_at(unsigned id, unsigned threads, const char* file, int line);

// A barrier in shared memory that counts arrivals and the bytes of tiles, phase after phase, as `start_phases` says.
void start_phases(const void* barrier, unsigned arrivals);
void arrive_in_phase(const void* barrier, unsigned bytes);
// Whether a phase, the first of which has parity 0, is over.
bool phase_over(const void* barrier, unsigned parity);
void wait_for_phase(const void* barrier, unsigned parity, const char* file, int line);

// Matrices of bf16 and how many of their rows are a tile, of 64 columns: what driver.cpp makes of a tensor map. Which matrix it
// is two more dimensions say. Pitches are bytes, of all dimensions but the columns.
struct TileMap {
    uint64_t address, sizes[4], pitches[3], tile_rows;
};

// A tile as it is now, rows of eight pieces of 16 bytes, piece p of row r at p ^ r % 8; zeros beyond the matrix. It is
// there when the barrier's phase ends.
void copy_tile(void* to, const TileMap& map, const void* barrier, unsigned column, unsigned row, unsigned head = 0,
               unsigned sequence = 0);

// Makes a kernel known by its name.
struct Kernel {
    const char* name;
    size_t argument_bytes;
    unsigned threads;  // the most a block may have
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
// So that all of it lies in one place, which is poisoned before a block starts.
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

// Not contracted: build.rs says so to the compiler.
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
// Threads never run at the same time here.
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
