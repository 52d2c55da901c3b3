// All operations of one token, in sequence in one launch.
//
// With a separate kernel for each of some fifty operations of a microsecond, more time would go into launches than into
// work. Here one block stays on each multiprocessor and processes a list of steps. Large steps, matrix multiplications
// and attention, are divided among the blocks. Small ones, norms and SwiGLU, are computed redundantly by every block
// into its shared memory, where the next multiplication reads them; the first block also writes them to memory. All
// blocks wait for each other only before a step that reads or overwrites data that others wrote since the last wait, as
// the host sets in `wait`.
//
// Where the most likely token is chosen, the list is repeated for that token, and so on: each time, the blocks raise a
// common word to the best of the logits that they computed, and all blocks read it after the wait before the next
// token.
#include "../attention/cached_attention.cuh"
#include "../head/softcap.cuh"
#include "most_likely.cuh"
#include "../row.cuh"
#include "../sigmoid.cuh"

struct TokenEmbedArgs {
    const u32* id;      // [1]
    const void* table;  // [vocabulary, columns]
    void* out;          // [columns]
    u32 columns, vocabulary;
};

struct TokenNormArgs {
    const void* x;        // [columns]
    float* stats;         // mean and 1 / sqrt(variance + eps); RMS: 1 / sqrt(mean square + eps)
    const void* gain[2];  // [columns]
    const void* bias[2];  // [columns]; RMS: none
    void* out[2];         // [columns]
    u32 columns, outputs;
    u32 rms;
    float eps;
};

struct TokenSwiGluArgs {
    const void* gate_up;  // [2 d]
    void* out;            // [d]
    u32 d;
};

struct TokenChoiceArgs {
    u32 wide;  // as in the multiplication that wrote the logits, if no wait came between
};

enum StepKind { EMBED, NORM, PRODUCT, TURNED, ATTENTION, SWIGLU, MOST_LIKELY };

// The location of a multiplication's input: in memory, or in a slot of shared memory.
constexpr u32 NOWHERE = 3;

union AnyStepArgs {
    TokenEmbedArgs embed;
    TokenNormArgs norm;
    RowArgs product;  // TURNED: the weight is [k, n]
    CachedAttentionArgs attention;
    TokenSwiGluArgs swiglu;
    TokenChoiceArgs choice;
};

struct StepArgs {
    AnyStepArgs of;
    u32 kind;   // a StepKind
    u32 wait;   // whether all blocks wait for each other before it
    u32 slot;   // the first slot that a norm writes; or the slot of a multiplication's input, or NOWHERE
    u32 exact;  // whether the result of a multiplication is f32 whatever its operands are
    u32 beside; // query heads of the attention that runs beside a multiplication; 0: there is none
    float softcap; // C of C tanh(y / C), applied to the results of a multiplication; 0: not applied
};

constexpr u32 MOST_STEPS = 192;

struct TokenArgs {
    StepArgs step[MOST_STEPS];
    const u32* cursor;  // the token's position, for every attention
    u32* arrivals;  // 0 before the launch
    u64* best;      // [tokens]: 0 before; the largest candidate after each token. Null where no token is chosen
    MostLikelyArgs choice;  // the operands of MOST_LIKELY
    u32 steps, tokens;
};

// f32 numbers of a slot: two slots for norms, one for SwiGLU, which overlaps with the sums of attention.
constexpr u32 NORMED = 4096, WIDEST = 7168, THREADS = 32 * TOKEN_WARPS;
static_assert(sizeof(PieceSums) <= WIDEST * sizeof(float), "attention's sums fit");

__device__ inline float* slot_at(unsigned char* pool, u32 slot) { return (float*)pool + slot * NORMED; }

// The sum over the block; every thread receives it.
__device__ inline float token_sum(float x) {
    __shared__ float warps[TOKEN_WARPS];
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < TOKEN_WARPS ? warps[threadIdx.x % 32] : 0.0f);
}

template <class T>
__device__ NOINLINE void token_embed(const TokenEmbedArgs& a, u32 id) {
    const T* from = (const T*)a.table + (u64)id * a.columns;
    // Every block writes the same values, so that no block waits for another.
    for (u32 c = threadIdx.x; c < a.columns; c += THREADS)
        ((T*)a.out)[c] = id < a.vocabulary ? from[c] : store<T>(__uint_as_float(0x7fc00000u));
}

// Short loops without unrolling: a step runs once, and fetching its instructions takes longer than fetching its data.
template <class T>
__device__ NOINLINE void token_norm(const TokenNormArgs& a, T* slot) {
    T* second = (T*)((float*)slot + NORMED);
    const T* x = (const T*)a.x;
    float sum = 0, squares = 0, mean = 0, own = threadIdx.x < a.columns ? load(x[threadIdx.x]) : 0.0f;
    // The first value stays in a register, others are in the cache.
    auto each = [&](auto visit) {
        if (threadIdx.x < a.columns) visit(threadIdx.x, own);
#pragma unroll 1
        for (u32 c = threadIdx.x + THREADS; c < a.columns; c += THREADS) visit(c, load(x[c]));
    };
    if (!a.rms) {
        each([&](u32, float x) { sum += x; });
        mean = token_sum(sum) / a.columns;
    }
    each([&](u32, float x) { squares += (x - mean) * (x - mean); });
    float scale = 1.0f / sqrtf(token_sum(squares) / a.columns + a.eps);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        if (!a.rms) a.stats[0] = mean;
        a.stats[a.rms ? 0 : 1] = scale;
    }
#pragma unroll 1
    for (u32 o = 0; o < a.outputs; o++)
        each([&](u32 c, float x) {
            float bias = a.rms ? 0.0f : load(((const T*)a.bias[o])[c]);
            T out = store<T>((x - mean) * scale * load(((const T*)a.gain[o])[c]) + bias);
            (o ? second : slot)[c] = out;
            if (blockIdx.x == 0) ((T*)a.out[o])[c] = out;
        });
}

template <class T>
__device__ NOINLINE void token_swiglu(const TokenSwiGluArgs& a, T* slot) {
    const T *gate = (const T*)a.gate_up, *up = gate + a.d;
#pragma unroll 2
    for (u32 c = threadIdx.x; c < a.d; c += THREADS) {
        float g = load(gate[c]);
        slot[c] = store<T>(load(up[c]) * (g * sigmoid<T>(g)));
        if (blockIdx.x == 0) ((T*)a.out)[c] = slot[c];
    }
}

// The division of a multiplication's rows among the last `blocks` blocks: AT_ONCE neighbouring rows for each group of
// warps, with as many groups in a block as fit. It depends only on the number of rows, so that in two multiplications
// with equal numbers of rows a thread finishes the same rows.
constexpr u32 AT_ONCE = 4;
struct Sharing {
    u32 group = 1, at_once = 1;

    __device__ explicit Sharing(u32 rows, u32 blocks) {
        u32 warps = blocks * TOKEN_WARPS;
        if (rows >= 2 * AT_ONCE * warps) at_once = AT_ONCE;
        else
            while (group < TOKEN_WARPS && 2 * group * rows <= warps) group *= 2;
    }
};

// Prefetches `bytes` bytes into L2, for faster access by a block.
__device__ inline void expect(const void* from, u32 bytes) {
    for (u32 at = 128 * threadIdx.x; at < bytes; at += 128 * THREADS) prefetch((const char*)from + at);
}

// Prefetches the data of a step that no other step writes.
template <class T>
__device__ inline void expect_own(const StepArgs& s, u32 now) {
    if (s.kind == NORM) {
        const TokenNormArgs& n = s.of.norm;
        for (u32 o = 0; o < n.outputs; o++) {
            expect(n.gain[o], n.columns * sizeof(T));
            if (!n.rms) expect(n.bias[o], n.columns * sizeof(T));
        }
    } else if (s.kind == ATTENTION) {
        expect_cached<T>(s.of.attention, now);
    }
}

// The terms to add to the sum of a row.
template <class T>
__device__ inline float token_added(const RowArgs& a, u32 at, u32 exact) {
    return exact ? added_to_row<T, float>(a, at) : added_to_row<T, T>(a, at);
}

template <class T>
__device__ NOINLINE void token_write(const RowArgs& a, u32 at, float value, u32 exact, float cap) {
    if (cap > 0) value = softcap<float>(value, cap);
    exact ? write_row<float>(a, at, value) : write_row<T>(a, at, value);
}

// The sums of ROWS rows for each group of warps, on the blocks from `skip` on. Rows that are read once leave L2 to
// other data.
template <class T, int N, int ROWS, bool ONCE>
__device__ inline void token_rows(const RowArgs& a, const T* x, u32 group, u32 exact, float cap, u32 skip) {
    __shared__ float parts[TOKEN_WARPS][ROWS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, groups = TOKEN_WARPS / group, block = blockIdx.x - skip;
    u32 own = (block * groups + warp / group) * ROWS, step = (gridDim.x - skip) * groups * ROWS;
    // The same number of iterations in every warp of the block.
#pragma unroll 1
    for (u32 first = block * groups * ROWS; first < a.n; first += step, own += step) {
        float sums[ROWS] = {}, added = 0;
        // Lane r finishes the r-th row.
        bool finishes = lane < ROWS && warp % group == 0 && own + lane < a.n;
        if (finishes) added = token_added<T>(a, own + lane, exact);
        if (own < a.n) share<T, T, N, ROWS, 4 / ROWS, ONCE>(a, x, own, warp % group * 32 + lane, group * 32, sums);
#pragma unroll
        for (int r = 0; r < ROWS; r++) sums[r] = warp_sum(sums[r]);
        float sum = sums[0];
#pragma unroll
        for (int r = 1; r < ROWS; r++) sum = lane == (u32)r ? sums[r] : sum;
        if (group > 1) {
            if (lane < ROWS) parts[warp][lane] = sum;
            __syncthreads();
            if (finishes)
#pragma unroll 1
                for (u32 w = 1; w < group; w++) sum += parts[warp + w][lane];
            __syncthreads();
        }
        if (finishes) token_write<T>(a, own + lane, sum + added, exact, cap);
    }
}

template <class T>
__device__ NOINLINE void token_product(const RowArgs& a, const T* x, u32 exact, float cap, u32 skip) {
    if (blockIdx.x < skip) return;
    Sharing sharing(a.n, gridDim.x - skip);
    if (!a.wide) token_rows<T, 1, 1, false>(a, x, sharing.group, exact, cap, skip);
    else if (sharing.at_once > 1) token_rows<T, WIDE<T>, AT_ONCE, true>(a, x, 1, exact, cap, skip);
    else token_rows<T, WIDE<T>, 1, false>(a, x, sharing.group, exact, cap, skip);
}

// The first blocks have an item of attention each. A concurrent multiplication leaves these blocks alone, if they are
// at most half of all blocks.
__device__ inline u32 blocks_of_attention(u32 heads, u32 now) {
    u32 items = heads * (now / PIECE + 1);
    return 2 * items > gridDim.x ? 0 : items;
}

// x [k] times [k, n]: a block computes 32 columns, and each of its warps takes every sixteenth row.
template <class T>
__device__ NOINLINE void token_turned(const RowArgs& a, const T* x) {
    __shared__ float parts[TOKEN_WARPS][32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const T* weight = (const T*)a.weight;
    for (u32 first = blockIdx.x * 32; first < a.n; first += gridDim.x * 32) {
        float sum = 0;
        if (first + lane < a.n)
#pragma unroll 8
            for (u32 k = warp; k < a.k; k += TOKEN_WARPS)
                sum += load(x[k]) * load(weight[(u64)k * a.n + first + lane]);
        parts[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && first + lane < a.n) {
            float total = token_added<T>(a, first + lane, false);
            for (u32 w = 0; w < TOKEN_WARPS; w++) total += parts[w][lane];
            token_write<T>(a, first + lane, total, false, 0);
        }
        __syncthreads();
    }
}

template <class T>
__device__ NOINLINE void token_attention(const CachedAttentionArgs& a, u32 now, unsigned char* pool) {
    cached_attention<T>(a, now, *(PieceSums*)slot_at(pool, 2));
}

// Raises `best` to the best logit of this block: of the logits that its threads finished, unless all blocks have waited
// since.
__device__ NOINLINE void token_most_likely(const MostLikelyArgs& a, u64* best, u32 wide) {
    Sharing sharing(a.vocabulary, gridDim.x);
    u32 rows = wide ? sharing.at_once : 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 groups = TOKEN_WARPS / sharing.group, end = min(a.vocabulary, *a.limit);
    u64 own = 0;
    if (lane < rows && warp % sharing.group == 0)
#pragma unroll 4
        for (u32 i = (blockIdx.x * groups + warp / sharing.group) * rows + lane; i < end; i += gridDim.x * groups * rows) {
            u64 now = candidate(a.logits[i], i);
            own = now > own ? now : own;
        }
    own = block_largest<THREADS>(own);
    if (threadIdx.x == 0 && own) raise(best, own);
}

// The first block writes the token chosen after each token, once all blocks have raised the last one's word.
__device__ NOINLINE void token_chosen(const TokenArgs& a, u32 first, u32 waited) {
    if (threadIdx.x == 0) arrive(a.arrivals);
    if (blockIdx.x > 0) return;
    if (threadIdx.x == 0) await_arrivals(a.arrivals, waited + gridDim.x);
    __syncthreads();
    if (threadIdx.x >= a.tokens) return;
    u32 id = chosen_id(a.best[threadIdx.x]);
    a.choice.chosen[(first + threadIdx.x) % a.choice.places] = id;
    if (threadIdx.x + 1 < a.tokens) return;
    *a.choice.id = id;
    *a.choice.cursor = first + a.tokens;
}

// A step, its index in the list, the number of tokens chosen before, and whether the list starts again with it.
struct Held {
    StepArgs step;
    u32 at, tokens, again;
};

template <class T>
__device__ void token(const TokenArgs& a) {
    LAUNCH_SHARED(pool, (2 * NORMED + WIDEST) * sizeof(float));
    // The current step and the next one, which is loaded while the current one runs, since kernel arguments are slow to
    // arrive. Other state that changes is here as well, because the functions of the steps need the registers.
    __shared__ Held held[2];
    __shared__ u32 first;
    constexpr u32 WORDS = sizeof(StepArgs) / 8;
    const u64* words = opaque((const u64*)a.step);
    auto next_word = [&](u32 i) { return threadIdx.x < WORDS ? words[i * WORDS + threadIdx.x] : 0; };
    auto keep = [&](Held& next, u64 word, u32 at, u32 tokens, bool again) {
        if (threadIdx.x < WORDS) ((u64*)&next.step)[threadIdx.x] = word;
        if (threadIdx.x == 0) next.at = at, next.tokens = tokens, next.again = again;
    };
    if (threadIdx.x == 0) first = *a.cursor;
    keep(held[0], next_word(0), 0, 0, false);
    u32 waited = 0, total = a.steps * a.tokens;
    // Only the loop and a parity depend on n: otherwise ptxas assumes diverged warps, and its code is a third longer.
    for (u32 n = 0; n < total; n++) {
        __syncthreads();
        const Held& h = held[n % 2];
        const StepArgs& s = h.step;
        u64 word = next_word(h.at + 1 < a.steps ? h.at + 1 : 0);
        if (s.wait || h.again) {
            waited += gridDim.x;
            if (threadIdx.x == 0) arrive(a.arrivals);
            expect_own<T>(s, first + h.tokens);
            if (threadIdx.x == 0) await_arrivals(a.arrivals, waited);
            __syncthreads();
        }
        T* slot = s.slot == NOWHERE ? nullptr : (T*)slot_at(pool, s.slot);
        switch (s.kind) {
            case EMBED: token_embed<T>(s.of.embed, h.tokens > 0 ? chosen_id(a.best[h.tokens - 1]) : *s.of.embed.id); break;
            case NORM: token_norm<T>(s.of.norm, slot); break;
            case SWIGLU: token_swiglu<T>(s.of.swiglu, slot); break;
            case TURNED: token_turned<T>(s.of.product, slot ? slot : (const T*)s.of.product.x); break;
            case ATTENTION: token_attention<T>(s.of.attention, first + h.tokens, pool); break;
            case PRODUCT:
                token_product<T>(s.of.product, slot ? slot : (const T*)s.of.product.x, s.exact, s.softcap,
                                 blocks_of_attention(s.beside, first + h.tokens));
                break;
            case MOST_LIKELY: token_most_likely(a.choice, a.best + h.tokens, s.of.choice.wide); break;
        }
        bool last = h.at + 1 == a.steps;
        keep(held[(n + 1) % 2], word, last ? 0 : h.at + 1, h.tokens + last, last);
    }
    if (a.best) token_chosen(a, first, waited);
}

EXPORT_MANY(token_f32, TokenArgs, THREADS, 1, token<float>)
EXPORT_MANY(token_bf16, TokenArgs, THREADS, 1, token<bf16>)
