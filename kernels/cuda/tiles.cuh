// Tiles of bf16 rows in shared memory, and their multiplication by a warp on tensor cores. A warp has 16 rows of the
// left factor and of the result; of the result, lane l has the columns 2 (l % 4) and 2 (l % 4) + 1 of every eight
// columns, in rows l / 4 (the first two of a float[4]) and l / 4 + 8 (the others).
#pragma once
#include "attention/attention.cuh"
#include "ptx.cuh"

// A head padded to SIZE. The additional 16 bytes put the same column of eight rows into different banks.
template <int SIZE>
using Row = bf16[SIZE + 8];

// One head of consecutive rows in global memory.
struct Part {
    bf16* first;
    u32 stride, size;
    // Whether each row consists of whole pieces of 16 bytes, at multiples of 16.
    bool whole;

    __device__ Part(const void* rows, u64 row, u32 stride, u32 column, u32 size)
        : first((bf16*)rows + row * stride + column),
          stride(stride),
          size(size),
          whole(((u64)rows / 2 + column) % 8 == 0 && stride % 8 == 0 && size % 8 == 0) {}

    __device__ bf16* at(u32 row, u32 column) const { return first + (u64)row * stride + column; }
};

// Starts copying rows [row, row + COUNT) to a tile; zeros for rows from `end` on and beyond the head's size.
template <int SIZE, int COUNT, int THREADS>
__device__ inline void fetch(Row<SIZE>* tile, const Part& part, u32 row, u32 end) {
    constexpr u32 PIECES = SIZE / 8, STEP = THREADS / PIECES;
    static_assert(COUNT % STEP == 0, "every thread copies as many pieces");
    if (part.whole) {
        u32 r = threadIdx.x / PIECES, c = threadIdx.x % PIECES * 8, rows = row < end && c < part.size ? end - row : 0;
        const bf16* from = part.at(row + r, c);
#pragma unroll
        for (u32 i = 0; i < COUNT; i += STEP) {
            copy_piece(&tile[r + i][c], from, r + i < rows);
            from += (u64)STEP * part.stride;
        }
    } else {
#pragma unroll 1
        for (u32 e = threadIdx.x; e < COUNT * SIZE; e += THREADS) {
            u32 r = e / SIZE, c = e % SIZE;
            tile[r][c] = row + r < end && c < part.size ? *part.at(row + r, c) : bf16{0};
        }
    }
}

// Loads elements [column, column + 16) of the 16 rows at `rows` as a left factor.
template <int SIZE>
__device__ inline void load_left(u32 (&left)[4], const Row<SIZE>* rows, u32 column) {
    u32 lane = threadIdx.x % 32;
    load_matrices(left, &rows[lane % 16][column + lane / 16 * 8]);
}

// A left factor of 16 rows of shared memory; if HELD, in registers from the beginning, else read at each use.
template <int SIZE, bool HELD>
struct Left {
    const Row<SIZE>* rows;
    u32 pairs[HELD ? SIZE / 16 : 1][4];

    __device__ explicit Left(const Row<SIZE>* rows) : rows(rows) {
        if constexpr (HELD)
#pragma unroll
            for (int k = 0; k < SIZE / 16; k++) load_left<SIZE>(pairs[k], rows, 16 * k);
    }

    __device__ const u32 (&at(int k))[4] {
        if constexpr (!HELD) load_left<SIZE>(pairs[0], rows, 16 * k);
        return pairs[HELD ? k : 0];
    }
};

// sums [16, 8 N] = left [16, SIZE] times the transpose of the 8 N rows at `right`.
template <int SIZE, bool HELD, int N>
__device__ inline void multiply_turned(float (&sums)[N][4], Left<SIZE, HELD>& left, const Row<SIZE>* right) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[n][e] = 0;
#pragma unroll
    for (int k = 0; k < SIZE / 16; k++) {
        const u32(&a)[4] = left.at(k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 b[4];
            load_matrices(b, &right[8 * n + lane / 16 * 8 + lane % 8][16 * k + lane / 8 % 2 * 8]);
            multiply(sums[n], a, b[0], b[1]);
            multiply(sums[n + 1], a, b[2], b[3]);
        }
    }
}

// sums [16, SIZE] += left [16, 8 N], rounded to bf16, times the 8 N rows at `right`.
template <int SIZE, int N>
__device__ inline void multiply_add(float (&sums)[SIZE / 8][4], const float (&left)[N][4], const Row<SIZE>* right) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        const float(&low)[4] = left[k], (&high)[4] = left[k + 1];
        u32 a[4] = {pack(low[0], low[1]), pack(low[2], low[3]), pack(high[0], high[1]), pack(high[2], high[3])};
#pragma unroll
        for (int c = 0; c < SIZE / 8; c += 2) {
            u32 b[4];
            load_turned(b, &right[8 * k + lane % 16][8 * c + lane / 16 * 8]);
            multiply(sums[c], a, b[0], b[1]);
            multiply(sums[c + 1], a, b[2], b[3]);
        }
    }
}

// The first tile of SIDE rows from `from` on, up to `end`, for which `seen(tile, tile's end)`; `end` if there is none.
// The warp's lanes check 32 tiles at a time.
template <u32 SIDE, class Seen>
__device__ inline u32 next_tile(u32 from, u32 end, Seen seen) {
    // Most often the very next tile.
    if (from >= end || seen(from, min(from + SIDE, end))) return min(from, end);
    u32 lane = threadIdx.x % 32;
    for (; from < end; from += 32 * SIDE) {
        u32 tile = from + SIDE * lane;
        u32 found = __ballot_sync(FULL_WARP, tile < end && seen(tile, min(tile + SIDE, end)));
        if (found) return from + SIDE * (__ffs(found) - 1);
    }
    return end;
}

// Scores of the 16 queries from `row` with the 8 N keys from `column` (of keys with queries if TURNED): the scores that
// the pattern masks become -infinity. The pattern is dense, or its block size is a multiple of 16.
template <bool TURNED, int N>
__device__ inline void hide(float (&scores)[N][4], const Pattern& pattern, u32 row, u32 column) {
    u32 i0 = TURNED ? column : row, i_end = i0 + (TURNED ? 8 * N : 16);
    u32 j0 = TURNED ? row : column, j_end = j0 + (TURNED ? 16 : 8 * N);
    bool whole = pattern.whole(i0, i_end, j0, j_end);
    if (whole && j_end <= i0 + 1) return;
    u32 lane = threadIdx.x % 32, eights = FULL_WARP;
    if (!whole) {
        // 16 rows lie in one block, and so do eight columns: each lane checks one group of eight columns against the
        // pattern.
        u32 c0 = column + lane % N * 8;
        eights = __ballot_sync(FULL_WARP, pattern.sees(TURNED ? c0 + 7 : row + 15, TURNED ? row : c0));
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u32 r = row + lane / 4 + e / 2 * 8, c = column + 8 * n + lane % 4 * 2 + e % 2;
            if (!(eights >> n & 1) || (TURNED ? r > c : c > r)) scores[n][e] = -INFINITY;
        }
}

// The first keys that a warp's 16 queries see because of documents; a lane has two of them.
template <bool MASKED>
struct FirstKeys {
    u32 of[2], least;

    // The first query is `row` of the sequence.
    __device__ FirstKeys(const Documents<MASKED>& documents, u32 row) : least(documents.first_seen(row)) {
        for (int h = 0; h < 2; h++) of[h] = documents.first_seen(row + threadIdx.x % 32 / 4 + 8 * h);
    }

    // Scores with the 8 N keys from `column` on: the scores of keys in earlier documents become -infinity.
    template <int N>
    __device__ void hide(float (&scores)[N][4], u32 column) const {
        if (!MASKED || of[1] <= column) return;
        u32 own = column + threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (own + 8 * n + e % 2 < of[e / 2]) scores[n][e] = -INFINITY;
    }
};

// Scores of a warp's 16 keys from `row` on with the 8 N queries from `column` on, which have these `offsets`: the
// scores of queries in later documents become -infinity.
template <bool MASKED, int N>
__device__ inline void hide_before(float (&scores)[N][4], u32 row, u32 column, const u32* offsets) {
    if constexpr (MASKED) {
        auto first = [&](u32 c) { return column + c - min(offsets[c], column + c); };
        if (first(8 * N - 1) <= row) return;
        u32 lane = threadIdx.x % 32, own = row + lane / 4;
#pragma unroll
        for (int n = 0; n < N; n++) {
            u32 firsts[2] = {first(8 * n + lane % 4 * 2), first(8 * n + lane % 4 * 2 + 1)};
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (own + e / 2 * 8 < firsts[e % 2]) scores[n][e] = -INFINITY;
        }
    }
}

// Where sequences of `length` rows, a power of two, are contiguous, masks keys of other sequences and later keys.
template <bool TURNED, int N>
__device__ inline void hide_others(float (&scores)[N][4], u32 length, u32 row, u32 column) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u32 r = row + lane / 4 + e / 2 * 8, c = column + 8 * n + lane % 4 * 2 + e % 2;
            if ((r ^ c) >= length || (TURNED ? r > c : c > r)) scores[n][e] = -INFINITY;
        }
}

// The index of the log_sum of head `head` of row `i`, where sequences of `length` rows are contiguous.
__device__ inline u64 place(u32 i, u32 length, u32 heads, u32 head) {
    return ((u64)(i / length) * heads + head) * length + i % length;
}

// Rounds 16 rows of a warp's sums, with a scale for each half of the rows, into shared memory.
template <int SIZE>
__device__ inline void put(Row<SIZE>* rows, const float (&sums)[SIZE / 8][4], float scale1, float scale2) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < SIZE / 8; c++) {
        *(u32*)&rows[lane / 4][8 * c + lane % 4 * 2] = pack(sums[c][0] * scale1, sums[c][1] * scale1);
        *(u32*)&rows[lane / 4 + 8][8 * c + lane % 4 * 2] = pack(sums[c][2] * scale2, sums[c][3] * scale2);
    }
    __syncwarp();
}

struct alignas(16) Piece {
    u32 words[4];
};

// Writes 16 rows from shared memory to the rows from `row` on, up to `end`.
template <int SIZE>
__device__ inline void write(const Part& part, const Row<SIZE>* rows, u32 row, u32 end) {
    u32 lane = threadIdx.x % 32, step = part.whole ? 8 : 1, pieces = part.size / step;
    if (part.whole && part.size == SIZE && row + 16 <= end) {
#pragma unroll
        for (u32 e = lane; e < 2 * SIZE; e += 32)
            *(Piece*)part.at(row + e / (SIZE / 8), e % (SIZE / 8) * 8) =
                *(const Piece*)&rows[e / (SIZE / 8)][e % (SIZE / 8) * 8];
        __syncwarp();
        return;
    }
    for (u32 e = lane; e < 16 * pieces; e += 32) {
        u32 r = e / pieces, c = e % pieces * step;
        if (row + r >= end) continue;
        if (part.whole) *(Piece*)part.at(row + r, c) = *(const Piece*)&rows[r][c];
        else *part.at(row + r, c) = rows[r][c];
    }
    __syncwarp();
}

// The maximum of `so_far` and of a lane's scores in its first row (h = 0) or second.
template <int N>
__device__ inline float largest_of(const float (&scores)[N][4], int h, float so_far) {
    // Two independent chains, so that neither waits for the other.
    float other = scores[0][2 * h];
#pragma unroll
    for (int n = 0; n < N; n++)
        so_far = fmaxf(so_far, scores[n][2 * h + 1]), other = fmaxf(other, scores[n][2 * h]);
    return fmaxf(so_far, other);
}

// The maximum over the four lanes of a row.
__device__ inline float largest_of_row(float own) {
    own = fmaxf(own, __shfl_xor_sync(FULL_WARP, own, 1));
    return fmaxf(own, __shfl_xor_sync(FULL_WARP, own, 2));
}

// The base that weights are relative to, as an exponent of two; finite even if no score has been seen.
__device__ inline float base_of(float largest, float c) { return largest == -INFINITY ? 0.0f : largest * c; }

// Turns scores into weights relative to a base, and sums this lane's; `c` times a score is an exponent of two.
template <int N>
__device__ inline void make_weights(float (&scores)[N][4], const float (&base)[2], float (&total)[2], float c) {
    float sum[4] = {};
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            scores[n][e] = power_of_two(scores[n][e] * c - base[e / 2]);
            sum[e] += scores[n][e];
        }
#pragma unroll
    for (int h = 0; h < 2; h++) total[h] += sum[2 * h] + sum[2 * h + 1];
}

// Online softmax of a warp's 16 rows: turns scores into weights relative to a base, which is the largest score so far
// or is exceeded by it by a factor below 2^8: rescaling the sums costs as much as a matrix multiplication, so the base
// is raised no more often than that.
struct Softmax {
    // Scores times c are exponents of two.
    float c;
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {}, before[2] = {1, 1};
    bool raised = false;

    template <int N>
    __device__ void weigh(float (&scores)[N][4]) {
        float now[2];
        bool larger = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            now[h] = largest_of_row(largest_of(scores, h, largest[h]));
            larger |= (now[h] - largest[h]) * c > 8.0f;
        }
        raised = __ballot_sync(FULL_WARP, larger) != 0;
        if (raised)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                // No score seen yet: keep the exponent finite.
                before[h] = now[h] == -INFINITY ? 0.0f : power_of_two((largest[h] - now[h]) * c);
                largest[h] = now[h];
                total[h] *= before[h];
            }
        const float base[2] = {base_of(largest[0], c), base_of(largest[1], c)};
        make_weights(scores, base, total, c);
    }

    // Rescales the sums so far to the current base.
    template <int N>
    __device__ void settle(float (&sums)[N][4]) const {
        if (!raised) return;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[n][e] *= before[e / 2];
    }

    // The sum of a row's weights over the lanes that have its scores.
    __device__ float row_total(int h) const {
        float sum = total[h];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        return sum + __shfl_xor_sync(FULL_WARP, sum, 2);
    }
};

// Writes 16 rows of outputs, through shared memory, and their log_sum, whose index for row i is `place(i)`.
template <int SIZE, class Place>
__device__ inline void finish(const AttentionArgs& a, Row<SIZE>* rows, const float (&sums)[SIZE / 8][4],
                              const Softmax& softmax, u64 first, u32 head, u32 row, u32 end, Place place) {
    u32 lane = threadIdx.x % 32, size = a.heads.size;
    float total[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        total[h] = softmax.row_total(h);
        u32 i = row + lane / 4 + 8 * h;
        if (lane % 4 == 0 && i < end) a.log_sum[place(i)] = softmax.largest[h] * a.scale + logf(total[h]);
    }
    put<SIZE>(rows, sums, 1 / total[0], 1 / total[1]);
    write<SIZE>(Part(a.out, first, a.heads.queries * size, head * size, size), rows, row, end);
}

__device__ inline void turn_back(float& low, float& high, float cosine, float sine) {
    float before = low;
    low = before * cosine + high * sine;
    high = high * cosine - before * sine;
}

// Rotates 16 rows in shared memory back; the first is row `row` of all rows.
template <int SIZE>
__device__ inline void turn_back(Row<SIZE>* rows, const AttentionGradArgs& a, u64 row) {
    u32 pairs = a.dims / 2, first = row % a.period;
    for (u32 e = threadIdx.x % 32; e < 16 * pairs; e += 32) {
        u32 r = e / pairs, at = (first + r) % a.period;
        turn(rows[r], a.table + (u64)at * a.dims, a.dims, e % pairs, true);
    }
    __syncwarp();
}

// The angles for rotating 16 rows of a warp's sums back, where 16, 32 or all of a head's elements are rotated: one lane
// then has both elements of each pair. h is a half of the rows.
template <int SIZE>
struct TurnBack {
    // Two cosines and two sines each.
    Piece of[2][SIZE / 16];

    static __device__ bool paired(const AttentionGradArgs& a) {
        bool some = a.dims == 16 || a.dims == 32 || a.dims == SIZE;
        return some && a.dims <= SIZE && (u64)a.table % sizeof(Piece) == 0;
    }

    // The first row is row `row` of all rows.
    __device__ void ask(const AttentionGradArgs& a, u64 row, int h) {
        u32 lane = threadIdx.x % 32, at = (u32)(row + lane / 4 + 8 * h) % a.period;
        const Piece* angles = (const Piece*)(a.table + (u64)at * a.dims) + lane % 4;
#pragma unroll
        for (u32 n = 0; n < SIZE / 16; n++)
            if (16 * n < a.dims) of[h][n] = angles[4 * n];
    }

    // Loads the angles for both halves.
    __device__ void ask(const AttentionGradArgs& a, u64 row) {
        for (int h = 0; h < 2; h++) ask(a, row, h);
    }

    __device__ void turn(float (&sums)[SIZE / 8][4], const AttentionGradArgs& a) const {
        for (int h = 0; h < 2; h++) turn(sums, a, h);
    }

    __device__ void turn(float (&sums)[SIZE / 8][4], const AttentionGradArgs& a, int h) const {
        if (a.dims == SIZE) turn_some<SIZE / 16>(sums, h);
        else if (a.dims == 16) turn_some<1>(sums, h);
        else turn_some<2>(sums, h);
    }

  private:
    template <int SIXTEENS>
    __device__ void turn_some(float (&sums)[SIZE / 8][4], int h) const {
#pragma unroll
        for (int n = 0; n < SIXTEENS; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float cosine = __uint_as_float(of[h][n].words[2 * e]), sine = __uint_as_float(of[h][n].words[2 * e + 1]);
                turn_back(sums[n][2 * h + e], sums[n + SIXTEENS][2 * h + e], cosine, sine);
            }
    }
};

// Rounds 16 rows of sums, times the scale and rotated back, into shared memory; the first is row `row` of all rows.
// ASKED: whether the angles were loaded before, as they are for pairs.
template <int SIZE, bool ASKED = false>
__device__ inline void put_back(Row<SIZE>* rows, float (&sums)[SIZE / 8][4], const AttentionGradArgs& a, u64 row,
                                TurnBack<SIZE> angles = {}) {
    if (!TurnBack<SIZE>::paired(a)) {
        put<SIZE>(rows, sums, a.scale, a.scale);
        return turn_back<SIZE>(rows, a, row);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if constexpr (!ASKED) angles.ask(a, row, h);
        angles.turn(sums, a, h);
    }
    put<SIZE>(rows, sums, a.scale, a.scale);
}
