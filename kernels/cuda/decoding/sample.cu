// Draws a token from the logits, with the same bits as the sampler on the CPU: weights are integers, so the order of
// sums is irrelevant.
//
// One block. It sorts ids by descending logits, a window at a time, as far as the choice needs. Groups of four threads
// find the largest of their share of the ids that are not sorted yet, and the n-th largest of these bounds the window:
// at least n ids are not below it, and seldom many more. These ids are collected, sorted by counting the larger ones,
// weighed and summed, which shows whether the wanted position is among them. Most choices need one window.
#include "most_likely.cuh"
#include "../random.cuh"
#include "../vector.cuh"

struct SampleArgs {
    const float* logits;  // [vocabulary]
    const u32* limit;     // [1]: ids from this one on are never chosen
    const u32* settings;  // [7]: temperature, top k, top p, seed and stream of the random numbers, their lower halves first
    u32* drawn;           // [2]: the count of random numbers drawn before, the lower half first
    u32* id;              // [1]
    u32* cursor;          // [1]
    u32* chosen;          // [places]
    u32 vocabulary, places;
    u32 wide;             // whether logits begin at a multiple of 16 bytes
};

// Threads, which limit the ids of a window; shares of the ids.
constexpr u32 THREADS = 1024, SHARES = THREADS / 4;
// The rank, among the shares' largest, of the bound of the first window, and of later windows.
constexpr u32 FIRST = 64, FURTHER = 224;

// e^x for x <= 0 in units of 2^-36, with the same operations as the sampler on the CPU.
__device__ inline u64 weight(float x) {
    // The logarithm of 2 as a number of nine bits, whose multiples are exact, and the rest.
    constexpr float HIGH = 0.6933594f, LOW = -2.1219444e-4f;
    if (!(x >= -25.0f)) return 0;
    int twos = (int)__fsub_rn(__fmul_rn(x, LOG2_E), 0.5f);
    float power = (float)twos;
    float r = __fsub_rn(__fsub_rn(x, __fmul_rn(power, HIGH)), __fmul_rn(power, LOW)), sum = 1.0f / 5040;
    const float factors[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1, 1};
#pragma unroll
    for (float factor : factors) sum = __fadd_rn(__fmul_rn(sum, r), factor);
    return (u64)(sum * (1 << 24)) << 12 >> -twos;
}

// Number `index` of the random numbers: 64 bits.
__device__ inline u64 random_bits(const u32* seed, u64 index) {
    u32 words[4] = {(u32)index, (u32)(index >> 32), seed[2], seed[3]};
    philox(words, seed[0], seed[1]);
    return (u64)words[1] << 32 | words[0];
}

// The number of elements, out of `count`, that are larger than `than`.
__device__ inline u32 larger(const u64* of, u32 count, u64 than) {
    u32 sum = 0;
#pragma unroll 4
    for (u32 i = 0; i < count; i += 2) {
        Vector<u64, 2> pair = fetch<u64, 2>(of + i);
        sum += (pair.x[0] > than) + (i + 1 < count && pair.x[1] > than);
    }
    return sum;
}

// The state in shared memory.
struct Windows {
    alignas(16) u64 list[THREADS];  // the window's ids, in any order
    alignas(16) u64 largest[SHARES];
    u64 sorted[THREADS];
    u64 sums[THREADS];  // of the weights in this window, up to and including each
    u64 bound, below;   // the window has the ids that are at least `bound` and below `below`
    u64 weight_before;  // sum of the weights in earlier windows
    u64 best;           // the best of all ids
    u64 found, reached;
    u32 count, count_before;
    u32 numbers;        // whether all candidates' logits are numbers
};

struct Drawing {
    const SampleArgs& a;
    Windows& w;
    u32 end;
    float inverse;  // of the temperature

    __device__ u64 weigh(float logit) const {
        return weight(__fmul_rn(__fsub_rn(logit, candidate_logit(w.best)), inverse));
    }

    // Calls `visit(logit, id)` for this thread's share.
    template <class Visit>
    __device__ void each(Visit visit) const {
        u32 vectors = a.wide ? end / 4 : 0;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < vectors; i += THREADS) {
            Vector<float, 4> logits = fetch<float, 4>(a.logits + 4 * i);
#pragma unroll
            for (u32 j = 0; j < 4; j++) visit(logits.x[j], 4 * i + j);
        }
        for (u32 i = 4 * vectors + threadIdx.x; i < end; i += THREADS) visit(a.logits[i], i);
    }

    // Makes the window below `w.below` of at least the `wanted` largest of the shares' largest; of fewer where more ids
    // reach the bound than there is room for.
    __device__ void make(u32 wanted) {
        u64 below = w.below;
        for (;; wanted = max(wanted / 4, 1u)) {
            u64 own = 0;
            each([&](float logit, u32 id) {
                u64 now = candidate(logit, id);
                if (now < below && now > own) own = now;
            });
            __syncthreads();
            w.list[threadIdx.x] = own;
            if (threadIdx.x == 0) w.bound = 1, w.count = 0;
            __syncthreads();
            if (threadIdx.x < SHARES) {
                for (u32 i = threadIdx.x + SHARES; i < THREADS; i += SHARES) own = w.list[i] > own ? w.list[i] : own;
                w.largest[threadIdx.x] = own;
            }
            __syncthreads();
            if (threadIdx.x < SHARES && own) {
                u32 place = larger(w.largest, SHARES, own);
                if (place == wanted - 1) w.bound = own;
                if (place == 0 && below == ~(u64)0) w.best = own;
            }
            __syncthreads();
            u64 bound = w.bound;
            each([&](float logit, u32 id) {
                u64 now = candidate(logit, id);
                if (now < bound || now >= below) return;
                u32 place = atomicAdd(&w.count, 1);
                if (place < THREADS) w.list[place] = now;
            });
            __syncthreads();
            if (w.count <= THREADS) break;
        }
        bool there = threadIdx.x < w.count;
        u64 own = there ? w.list[threadIdx.x] : 0;
        if (there) w.sorted[larger(w.list, w.count, own)] = own;
        __syncthreads();
        u64 sum = there ? weigh(candidate_logit(w.sorted[threadIdx.x])) : 0;
        w.sums[threadIdx.x] = sum;
        for (u32 step = 1; step < w.count; step *= 2) {
            __syncthreads();
            u64 before = threadIdx.x >= step ? w.sums[threadIdx.x - step] : 0;
            __syncthreads();
            w.sums[threadIdx.x] = sum += before;
        }
        __syncthreads();
    }

    __device__ void make_first() {
        if (threadIdx.x == 0) w.below = ~(u64)0, w.weight_before = 0, w.count_before = 0;
        __syncthreads();
        make(FIRST);
    }

    // Finds the first id at which the sum of weights exceeds `target`, or id number `ids`, counted from 1; also returns
    // that sum.
    __device__ void find(u64 target, u32 ids) {
        bool again = w.count_before > 0;
        __syncthreads();
        if (again) make_first();
        for (;;) {
            __syncthreads();
            if (threadIdx.x == 0) w.found = 0;
            __syncthreads();
            if (threadIdx.x < w.count) {
                u64 before = w.weight_before + (threadIdx.x > 0 ? w.sums[threadIdx.x - 1] : 0);
                u64 with = w.weight_before + w.sums[threadIdx.x];
                u32 number = w.count_before + threadIdx.x + 1;
                u64 own = w.sorted[threadIdx.x];
                if ((before <= target && target < with) || number == ids) w.found = own, w.reached = with;
                if (number <= ids && ids < ~0u && candidate_logit(own) != candidate_logit(own)) w.numbers = 0;
            }
            __syncthreads();
            if (w.found || w.count == 0) return;
            __syncthreads();
            if (threadIdx.x == 0) {
                w.weight_before += w.sums[w.count - 1], w.count_before += w.count;
                w.below = w.sorted[w.count - 1];
            }
            __syncthreads();
            make(FURTHER);
        }
    }

    // The sum of the weights of all ids.
    __device__ u64 weigh_all() {
        u64 sum = 0;
        bool numbers = true;
        each([&](float logit, u32) {
            sum += weigh(logit);
            numbers &= logit == logit;
        });
        if (!numbers) w.numbers = 0;
        __syncthreads();
        w.list[threadIdx.x] = sum;
        for (u32 half = THREADS / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half) w.list[threadIdx.x] += w.list[threadIdx.x + half];
        }
        __syncthreads();
        return w.list[0];
    }
};

__device__ void draw(const SampleArgs& a) {
    __shared__ Windows w;
    float temperature = __uint_as_float(a.settings[0]), top_p = __uint_as_float(a.settings[2]);
    u32 end = min(a.vocabulary, *a.limit), top_k = a.settings[1];
    u64 index = (u64)a.drawn[1] << 32 | a.drawn[0];
    Drawing of = {a, w, end, __fdiv_rn(1.0f, fmaxf(temperature, 1e-30f))};
    if (threadIdx.x == 0) w.best = 0, w.numbers = 1;
    of.make_first();
    u32 id = chosen_id(w.best);
    if (id != NO_TOKEN && temperature > 0) {
        bool all = top_k == 0 || top_k >= end;
        if (!all) of.find(~(u64)0, top_k);
        u64 total = all ? of.weigh_all() : w.reached;
        bool numbers = w.numbers;
        if (top_p < 1) {
            u64 limit = (u64)((double)total * (double)top_p);
            of.find(limit > 0 ? limit - 1 : 0, ~0u);
            total = w.reached;
        }
        // The upper half of the product is uniform below `total`.
        u64 target = (u64)((unsigned __int128)random_bits(a.settings + 3, index) * total >> 64);
        of.find(target, ~0u);
        id = numbers ? chosen_id(w.found) : NO_TOKEN;
    }
    if (threadIdx.x == 0) {
        u32 now = *a.cursor;
        a.chosen[now % a.places] = *a.id = id;
        *a.cursor = now + 1;
        index++;
        a.drawn[0] = (u32)index, a.drawn[1] = (u32)(index >> 32);
    }
}

EXPORT(sample, SampleArgs, THREADS, draw)
