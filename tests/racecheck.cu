// Reports of compute-sanitizer's racecheck about words in shared memory that are passed with barriers, in the ways used
// in kernels/cuda, in isolation. All four ways are free of races: a stage is written after the arrival of all its
// readers, and read after the arrival of its writers. A report here is a false positive, and the same report there may
// be one.
//   nvcc -arch=sm_90a -lineinfo -o racecheck tests/racecheck.cu && compute-sanitizer --tool racecheck ./racecheck N
#include <cstdio>
#include <cstdlib>

constexpr int STAGES = 2, WIDE = 128, READERS = 256, TILES = 9;

__device__ void arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ void wait(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ unsigned place(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

__device__ float read(const float* stage) {
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += stage[(threadIdx.x * 3 + i * 7) % WIDE];
    return sum;
}

// Numbered barriers: copies of 128 threads bring a stage's 128 words, and two groups of 128 read them. With OWN each
// group waits at a barrier of its own before it arrives.
template <bool OWN>
__global__ void numbered(const float* from, float* to) {
    __shared__ float stages[STAGES * WIDE];
    auto full = [](int t, int group) { return 1 + 2 * (t % STAGES) + group; };
    auto empty = [](int t) { return 1 + 2 * STAGES + t % STAGES; };
    if (threadIdx.x >= READERS) {
        int r = threadIdx.x - READERS;
        for (int t = 0; t < TILES; t++) {
            if (t >= STAGES) wait(empty(t), READERS + WIDE);
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place(&stages[t % STAGES * WIDE + r])),
                         "l"(__cvta_generic_to_global(from + t * WIDE + r))
                         : "memory");
            asm volatile("cp.async.wait_all;" ::: "memory");
            for (int group = 0; group < 2; group++) arrive(full(t, group), 2 * WIDE);
        }
        return;
    }
    int group = threadIdx.x / WIDE;
    float sum = 0;
    for (int t = 0; t < TILES; t++) {
        wait(full(t, group), 2 * WIDE);
        sum += read(stages + t % STAGES * WIDE);
        if (OWN) wait(1 + 3 * STAGES + group, WIDE);
        if (t + STAGES < TILES) arrive(empty(t), READERS + WIDE);
    }
    to[threadIdx.x] = sum;
}

// Barriers that count arrivals: one warp writes, eight warps read, and one lane of each arrives after __syncwarp.
template <int LAST>
__global__ void counted(const float* from, float* to) {
    __shared__ float stages[STAGES * WIDE];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    auto start = [](unsigned long long* barrier, int arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(place(barrier)), "r"(arrivals) : "memory");
    };
    auto arrive_by_warp = [](unsigned long long* barrier) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place(barrier)) : "memory");
    };
    auto wait_for = [](unsigned long long* barrier, int parity) {
        asm volatile("{ .reg .pred over; again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1; "
                     "@over bra done; bra again; done: }" ::"r"(place(barrier)),
                     "r"(parity)
                     : "memory");
    };
    if (threadIdx.x == 0)
        for (int s = 0; s < STAGES; s++) start(full + s, 1), start(empty + s, READERS / 32);
    __syncthreads();
    float sum = 0;
    for (int t = 0; t < LAST; t++) {
        int s = t % STAGES, parity = t / STAGES & 1;
        float* stage = stages + s * WIDE;
        if (threadIdx.x >= READERS) {
            wait_for(empty + s, parity ^ 1);
            for (int r = threadIdx.x % 32; r < WIDE; r += 32) stage[r] = from[t * WIDE + r];
            arrive_by_warp(full + s);
        } else {
            wait_for(full + s, parity);
            sum += read(stage);
            arrive_by_warp(empty + s);
        }
    }
    if (threadIdx.x < READERS) to[threadIdx.x] = sum;
}

int main(int count, char** words) {
    float *from, *to;
    cudaMallocManaged(&from, TILES * WIDE * sizeof(float));
    cudaMallocManaged(&to, READERS * sizeof(float));
    for (int i = 0; i < TILES * WIDE; i++) from[i] = i % 13;
    switch (count > 1 ? atoi(words[1]) : 0) {
        case 1: numbered<false><<<1, READERS + WIDE>>>(from, to); break;
        case 2: numbered<true><<<1, READERS + WIDE>>>(from, to); break;
        case 3: counted<STAGES><<<1, READERS + 32>>>(from, to); break;  // no stage is reused
        case 4: counted<TILES><<<1, READERS + 32>>>(from, to); break;
        default: puts("racecheck N: 1 numbered barriers, 2 and one of the readers' own, 3 counted arrivals, each stage once, 4 again"); return 2;
    }
    cudaError_t error = cudaDeviceSynchronize();
    printf("%s, %g\n", cudaGetErrorString(error), to[5]);
    return error != cudaSuccess;
}
