// Looking up rows of a table, and adding gradients back to them in the order of the rows.
#include "vector.cuh"

struct EmbedArgs {
    const u32* ids;     // [rows]
    const void* table;  // [vocabulary, columns]
    void* out;          // [rows, columns]
    u32 columns, vocabulary;
};

// A block a row. An id beyond the vocabulary gives NaN, which the loss then shows.
template <class T>
__device__ void embed(const EmbedArgs& a) {
    u32 id = a.ids[blockIdx.x];
    const T* from = (const T*)a.table + (u64)id * a.columns;
    T* to = (T*)a.out + (u64)blockIdx.x * a.columns;
    for (u32 c = threadIdx.x; c < a.columns; c += blockDim.x)
        to[c] = id < a.vocabulary ? from[c] : store<T>(__uint_as_float(0x7fc00000u));
}

EXPORT_BOTH(embed, EmbedArgs, 128, embed)

// The rows are sorted by their ids, rows of the same id in their order, eight bits of the id a pass: how often each
// digit occurs in each piece of the rows, the sums of that before each, then every row to its place.
struct SortArgs {
    const u32* ids;   // [rows]
    const u32* from;  // [rows]: the rows as the last pass left them, or null before the first
    u32* to;          // [rows]
    u32* counts;      // [DIGITS, pieces]
    u32 rows, vocabulary, shift, pieces;

    __device__ u32 row(u32 at) const { return from ? from[at] : at; }
    // Those beyond the vocabulary come last.
    __device__ u32 digit(u32 row) const { return (min(ids[row], vocabulary) >> shift) % DIGITS; }

    static constexpr u32 DIGITS = 256;
    static constexpr u32 PIECE = 1024;
    static constexpr u32 FEW = 8192;
};

// A block a piece. Integers have one sum in every order.
__device__ void count_digits(const SortArgs& a) {
    __shared__ u32 counts[SortArgs::DIGITS];
    counts[threadIdx.x] = 0;
    __syncthreads();
    u32 start = blockIdx.x * a.PIECE, end = min(a.rows, start + a.PIECE);
    for (u32 at = start + threadIdx.x; at < end; at += 256) atomicAdd(&counts[a.digit(a.row(at))], 1);
    __syncthreads();
    a.counts[threadIdx.x * a.pieces + blockIdx.x] = counts[threadIdx.x];
}

EXPORT(embed_count, SortArgs, 256, count_digits)

// One block: every count becomes the sum of those before it.
__device__ void add_counts(const SortArgs& a) {
    __shared__ u32 sums[1024];
    u32 all = a.DIGITS * a.pieces, share = (all / 4 + 1023) / 1024 * 4;
    u32 start = min(all, threadIdx.x * share), end = min(all, start + share), sum = 0;
#pragma unroll 4
    for (u32 i = start; i < end; i += 4) {
        Vector<u32, 4> counts = fetch<u32, 4>(a.counts + i);
        for (int j = 0; j < 4; j++) sum += counts.x[j];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (u32 step = 1; step < 1024; step *= 2) {
        u32 before = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
        __syncthreads();
        sums[threadIdx.x] += before;
        __syncthreads();
    }
    sum = sums[threadIdx.x] - sum;
    for (u32 i = start; i < end; i += 4) {
        Vector<u32, 4> counts = fetch<u32, 4>(a.counts + i), before;
        for (int j = 0; j < 4; j++) {
            before.x[j] = sum;
            sum += counts.x[j];
        }
        *(Vector<u32, 4>*)(a.counts + i) = before;
    }
}

EXPORT(embed_add_counts, SortArgs, 1024, add_counts)

// A block a piece: 256 of its rows at a time.
__device__ void place_rows(const SortArgs& a) {
    __shared__ u32 next[SortArgs::DIGITS];       // the place of the next row with this digit
    __shared__ u32 counts[8][SortArgs::DIGITS];  // of each warp
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    next[threadIdx.x] = a.counts[threadIdx.x * a.pieces + blockIdx.x];
    u32 start = blockIdx.x * a.PIECE, end = min(a.rows, start + a.PIECE);
    for (; start < end; start += 256) {
        for (u32 w = 0; w < 8; w++) counts[w][threadIdx.x] = 0;
        __syncthreads();
        bool there = start + threadIdx.x < end;
        u32 row = there ? a.row(start + threadIdx.x) : 0, digit = there ? a.digit(row) : 0;
        u32 alike = __ballot_sync(FULL_WARP, there);
        for (u32 bit = 1; bit < a.DIGITS; bit *= 2) {
            u32 votes = __ballot_sync(FULL_WARP, (digit & bit) != 0);
            alike &= digit & bit ? votes : ~votes;
        }
        u32 before = __popc(alike & ((1u << lane) - 1));
        if (there && before == 0) counts[warp][digit] = __popc(alike);
        __syncthreads();
        if (there) {
            u32 place = next[digit] + before;
            for (u32 w = 0; w < warp; w++) place += counts[w][digit];
            a.to[place] = row;
        }
        __syncthreads();
        for (u32 w = 0; w < 8; w++) next[threadIdx.x] += counts[w][threadIdx.x];
    }
}

EXPORT(embed_place, SortArgs, 256, place_rows)

// Few rows in one launch: a row's place is the number of rows that come before it. A block has 32 rows, one a lane, and each
// warp compares them with its share of all.
__device__ void place_few(const SortArgs& a) {
    constexpr u32 AT_ONCE = 16;
    alignas(16) __shared__ u32 ids[SortArgs::FEW];
    __shared__ u32 before[8][32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * 32 + lane, share = (a.rows + 31) / 32 * 4;
    for (u32 first = threadIdx.x; first < 8 * share; first += AT_ONCE * 256) {
        u32 some[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) some[i] = first + 256 * i < a.rows ? a.ids[first + 256 * i] : ~0u;
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
            if (first + 256 * i < 8 * share) ids[first + 256 * i] = min(some[i], a.vocabulary);
    }
    __syncthreads();
    u32 id = row < a.rows ? ids[row] : 0, place = 0;
#pragma unroll 4
    for (u32 first = warp * share; first < (warp + 1) * share; first += 4) {
        Vector<u32, 4> others = fetch<u32, 4>(ids + first);
#pragma unroll
        for (u32 i = 0; i < 4; i++) place += others.x[i] < id + (first + i < row);
    }
    before[warp][lane] = place;
    __syncthreads();
    if (warp != 0 || row >= a.rows) return;
    for (u32 w = 1; w < 8; w++) place += before[w][lane];
    a.to[place] = row;
}

EXPORT(embed_place_few, SortArgs, 256, place_few)

struct EmbedGradArgs {
    const u32* ids;        // [rows]
    const u32* sorted;     // [rows]: the rows by their ids
    const void* out_grad;  // [rows, columns]
    float* table_grad;     // [vocabulary, columns]
    u32 rows, columns, vocabulary;
    u32 wide;              // whether rows begin at multiples of 16 bytes
};

// Adds N columns of `count` rows to `sums`.
template <class T, int N>
__device__ inline void add_rows(const EmbedGradArgs& a, float (&sums)[N], const u32* rows, u32 count, u32 column) {
#pragma unroll 8
    for (u32 i = 0; i < count; i++) {
        float g[N];
        read(g, (const T*)a.out_grad + (u64)rows[i] * a.columns + column);
#pragma unroll
        for (int j = 0; j < N; j++) sums[j] += g[j];
    }
}

template <int N>
__device__ inline void add_to(float* to, const float (&sums)[N]) {
    float before[N];
    read(before, to);
#pragma unroll
    for (int j = 0; j < N; j++) before[j] += sums[j];
    write(to, before);
}

// A warp a place and 32 N columns: where an id begins, it adds up the rows of that id. Those of an id with 32 or more are left to
// the block, whose warps take 32 at a time each.
template <class T, int N>
__device__ inline void add_ids(const EmbedGradArgs& a) {
    __shared__ u32 found[8][32];
    __shared__ u32 counts[8];  // 32: there may be more
    __shared__ float parts[8][N][32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * 8;
    u32 column = (blockIdx.y * 32 + lane) * N;
    // The rows of an id among the 32 at a place.
    auto find = [&](u32 place, u32 id) {
        u32 row = place + lane < a.rows ? a.sorted[place + lane] : 0;
        found[warp][lane] = row;
        u32 count = __popc(__ballot_sync(FULL_WARP, place + lane < a.rows && a.ids[row] == id));
        __syncwarp();
        return count;
    };
    auto id_at = [&](u32 place) { return place < a.rows ? a.ids[a.sorted[place]] : a.vocabulary; };

    u32 place = first + warp, id = id_at(place);
    bool begins = id < a.vocabulary && (place == 0 || id_at(place - 1) != id);
    u32 count = begins ? find(place, id) : 0;
    if (lane == 0) counts[warp] = count;
    if (count > 0 && count < 32 && column < a.columns) {
        float sums[N] = {};
        add_rows<T, N>(a, sums, found[warp], count, column);
        add_to(a.table_grad + (u64)id * a.columns + column, sums);
    }
    __syncthreads();
    for (u32 w = 0; w < 8; w++) {
        if (counts[w] < 32) continue;
        id = id_at(first + w);
        float sums[N] = {};
        count = 32;
        for (place = first + w + 32 * warp; count == 32; place += 256) {
            __syncwarp();
            count = find(place, id);
            if (column < a.columns) add_rows<T, N>(a, sums, found[warp], count, column);
        }
#pragma unroll
        for (int j = 0; j < N; j++) parts[warp][j][lane] = sums[j];
        __syncthreads();
        if (warp == 0 && column < a.columns) {
            for (u32 part = 1; part < 8; part++)
#pragma unroll
                for (int j = 0; j < N; j++) sums[j] += parts[part][j][lane];
            add_to(a.table_grad + (u64)id * a.columns + column, sums);
        }
        __syncthreads();
    }
}

// Grid (rows / 8, columns / 32 N).
template <class T>
__device__ void embed_grad(const EmbedGradArgs& a) {
    a.wide ? add_ids<T, WIDE<T>>(a) : add_ids<T, 1>(a);
}

EXPORT_BOTH(embed_grad, EmbedGradArgs, 256, embed_grad)
