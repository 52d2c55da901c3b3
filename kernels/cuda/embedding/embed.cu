// Looks up rows of a table, and adds gradients to them in the order of the rows.
#include "../vector.cuh"

struct EmbedArgs {
    const u32* ids;     // [rows]
    const void* table;  // [vocabulary, columns]
    void* out;          // [rows, columns]
    u32 rows, columns, vocabulary;
    u32 wide;  // whether rows begin at multiples of 16 bytes
};

// One warp for each row. An id beyond the vocabulary gives NaN, which the loss then shows.
template <class T, int N>
__device__ inline void copy_row(const EmbedArgs& a) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= a.rows) return;
    u32 id = a.ids[row];
    bool known = id < a.vocabulary;
    const T* from = (const T*)a.table + (u64)(known ? id : 0) * a.columns;
    T* to = (T*)a.out + (u64)row * a.columns;
    for (u32 c = threadIdx.x % 32 * N; c < a.columns; c += 32 * N) {
        Vector<T, N> values = fetch<T, N>(from + c);
        if (!known)
            for (T& value : values.x) value = store<T>(__uint_as_float(0x7fc00000u));
        *(Vector<T, N>*)(to + c) = values;
    }
}

// Grid rows / 8.
template <class T>
__device__ void embed(const EmbedArgs& a) {
    a.wide ? copy_row<T, WIDE<T>>(a) : copy_row<T, 1>(a);
}

EXPORT_BOTH(embed, EmbedArgs, 256, embed)

// A stable sort of the rows by their ids, eight bits of the id in each pass: counts how often each digit occurs in each
// piece of the rows, then moves every row to its position.
struct SortArgs {
    const u32* ids;   // [rows]
    const u32* from;  // [rows]: the rows in the order of the last pass, or null before the first
    u32* to;          // [rows]
    u32* counts;      // [pieces, DIGITS]
    u32 rows, vocabulary, shift, pieces;

    __device__ u32 row(u32 at) const { return from ? from[at] : at; }
    // Rows with ids beyond the vocabulary come last.
    __device__ u32 digit(u32 row) const { return (min(ids[row], vocabulary) >> shift) % DIGITS; }

    static constexpr u32 DIGITS = 256;
    static constexpr u32 PIECE = 1024;
    static constexpr u32 FEW = 8192;
};

// One block for each piece. Integer sums do not depend on the order.
__device__ void count_digits(const SortArgs& a) {
    __shared__ u32 counts[SortArgs::DIGITS];
    counts[threadIdx.x] = 0;
    __syncthreads();
    u32 start = blockIdx.x * a.PIECE, end = min(a.rows, start + a.PIECE);
    for (u32 at = start + threadIdx.x; at < end; at += 256) atomicAdd(&counts[a.digit(a.row(at))], 1);
    __syncthreads();
    a.counts[blockIdx.x * a.DIGITS + threadIdx.x] = counts[threadIdx.x];
}

EXPORT(embed_count, SortArgs, 256, count_digits)

// The first position of the rows of this block's piece with digit `threadIdx.x`: after all rows with smaller digits and
// the rows with this digit in earlier pieces.
__device__ inline u32 first_place(const SortArgs& a) {
    __shared__ u32 sums[SortArgs::DIGITS];
    u32 before = 0, all = 0;
#pragma unroll 16
    for (u32 piece = 0; piece < a.pieces; piece++) {
        u32 count = a.counts[piece * a.DIGITS + threadIdx.x];
        before += piece < blockIdx.x ? count : 0;
        all += count;
    }
    sums[threadIdx.x] = all;
    __syncthreads();
    for (u32 step = 1; step < a.DIGITS; step *= 2) {
        u32 more = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
        __syncthreads();
        sums[threadIdx.x] += more;
        __syncthreads();
    }
    return sums[threadIdx.x] - all + before;
}

// One block for each piece: 256 of its rows at a time.
__device__ void place_rows(const SortArgs& a) {
    __shared__ u32 next[SortArgs::DIGITS];       // the position of the next row with this digit
    __shared__ u32 counts[8][SortArgs::DIGITS];  // of each warp
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    next[threadIdx.x] = first_place(a);
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

// Sorts few rows in one launch: a row's position is the number of rows that come before it. A block has 32 rows, one
// for each lane, and each warp compares them with its share of all rows.
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
    const u32* sorted;     // [rows]: the rows in the order of their ids
    const void* out_grad;  // [rows, columns]
    void* table_grad;      // [vocabulary, columns]
    float* partial;        // [rows / 32, columns]: each piece's sums for the last id of the piece before
    u32 rows, columns, vocabulary;
    u32 wide;     // whether rows begin at multiples of 16 bytes
    u32 reduced;  // whether table_grad is bf16

    static constexpr u32 PIECE = 32;

    // The id at a position; ids beyond the vocabulary count as one id, and there is none after the last position.
    __device__ u32 id_at(u32 place) const { return place < rows ? min(ids[sorted[place]], vocabulary) : ~0u; }
};

template <int N, class T>
__device__ inline void add(T* to, const float (&sums)[N]) {
    float before[N];
    read(before, to);
#pragma unroll
    for (int j = 0; j < N; j++) before[j] += sums[j];
    write(to, before);
}

// Adds to the gradient of N columns of an id's row.
template <int N>
__device__ inline void add_to(const EmbedGradArgs& a, u32 id, u32 column, const float (&sums)[N]) {
    u64 at = (u64)id * a.columns + column;
    a.reduced ? add((bf16*)a.table_grad + at, sums) : add((float*)a.table_grad + at, sums);
}

// One warp for each piece of 32 positions and 32 N columns. The piece in which an id begins adds the id's rows in the
// piece to the table; the contributions of the next pieces to that id go to `partial`, for `add_pieces`.
template <class T, int N>
__device__ inline void add_ids(const EmbedGradArgs& a) {
    constexpr u32 WARPS = 4, AT_ONCE = 8;
    __shared__ u32 rows[WARPS][32], ids[WARPS][32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, piece = blockIdx.x * WARPS + warp, first = piece * a.PIECE;
    u32 column = (blockIdx.y * 32 + lane) * N;
    if (first >= a.rows) return;
    u32 count = min(a.PIECE, a.rows - first);
    rows[warp][lane] = lane < count ? a.sorted[first + lane] : 0;
    ids[warp][lane] = lane < count ? min(a.ids[rows[warp][lane]], a.vocabulary) : ~0u;
    __syncwarp();
    if (column >= a.columns) return;
    float sums[N] = {};
    u32 id = ids[warp][0];
    // Whether the id begins in this piece.
    bool own = first == 0 || a.id_at(first - 1) != id;
    auto put = [&] {
        if (id >= a.vocabulary) return;
        if (own) add_to(a, id, column, sums);
        else write(a.partial + (u64)piece * a.columns + column, sums);
    };
    for (u32 i = 0; i < count; i += AT_ONCE) {
        // All rows are loaded before any is added.
        Vector<T, N> some[AT_ONCE];
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++) {
            u32 at = min(i + j, count - 1);
            some[j] = fetch<T, N>((const T*)a.out_grad + (u64)rows[warp][at] * a.columns + column);
        }
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++) {
            if (i + j >= count) break;
            if (ids[warp][i + j] != id) {
                put();
                id = ids[warp][i + j], own = true;
#pragma unroll
                for (float& sum : sums) sum = 0;
            }
            float x[N];
            unpack(x, some[j]);
#pragma unroll
            for (int e = 0; e < N; e++) sums[e] += x[e];
        }
    }
    put();
}

// One warp for each piece and 32 N columns: if the piece's last id begins in it, adds the contributions of the next
// pieces to that id. Sums over 32 pieces or more are left to the block, in which each warp adds 32 at a time.
template <int N>
__device__ inline void add_pieces(const EmbedGradArgs& a) {
    __shared__ u32 counts[8];  // 32: there may be more
    __shared__ float parts[8][N][32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * 8;
    u32 column = (blockIdx.y * 32 + lane) * N;
    // The number of pieces from `piece` on, at most 32, that begin with an id.
    auto find = [&](u32 piece, u32 id) {
        return (u32)__popc(__ballot_sync(FULL_WARP, a.id_at((piece + lane) * a.PIECE) == id));
    };
    auto add = [&](float (&sums)[N], u32 piece, u32 count) {
#pragma unroll 8
        for (u32 i = 0; i < count; i++) {
            float x[N];
            read(x, a.partial + (u64)(piece + i) * a.columns + column);
#pragma unroll
            for (int e = 0; e < N; e++) sums[e] += x[e];
        }
    };

    u32 piece = first + warp, next = (piece + 1) * a.PIECE, id = next < a.rows ? a.id_at(next) : a.vocabulary;
    bool began = id < a.vocabulary && a.id_at(next - 1) == id && (piece == 0 || a.id_at(next - a.PIECE - 1) != id);
    u32 count = began ? find(piece + 1, id) : 0;
    if (lane == 0) counts[warp] = count;
    if (count > 0 && count < 32 && column < a.columns) {
        float sums[N] = {};
        add(sums, piece + 1, count);
        add_to(a, id, column, sums);
    }
    __syncthreads();
    for (u32 w = 0; w < 8; w++) {
        if (counts[w] < 32) continue;
        id = a.id_at((first + w + 1) * a.PIECE);
        float sums[N] = {};
        count = 32;
        for (piece = first + w + 1 + 32 * warp; count == 32; piece += 256) {
            count = find(piece, id);
            if (column < a.columns) add(sums, piece, count);
        }
#pragma unroll
        for (int e = 0; e < N; e++) parts[warp][e][lane] = sums[e];
        __syncthreads();
        if (warp == 0 && column < a.columns) {
            for (u32 part = 1; part < 8; part++)
#pragma unroll
                for (int e = 0; e < N; e++) sums[e] += parts[part][e][lane];
            add_to(a, id, column, sums);
        }
        __syncthreads();
    }
}

// Grid (pieces / 4, columns / 32 N).
template <class T>
__device__ void embed_grad(const EmbedGradArgs& a) {
    a.wide ? add_ids<T, WIDE<T>>(a) : add_ids<T, 1>(a);
}

// Grid (pieces / 8, columns / 32 N), with N as for values of `T`.
template <class T>
__device__ void embed_grad_pieces(const EmbedGradArgs& a) {
    a.wide ? add_pieces<WIDE<T>>(a) : add_pieces<1>(a);
}

EXPORT_BOTH(embed_grad, EmbedGradArgs, 128, embed_grad)
EXPORT_BOTH(embed_grad_pieces, EmbedGradArgs, 256, embed_grad_pieces)
