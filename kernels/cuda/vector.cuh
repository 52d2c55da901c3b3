// Neighbouring values read and written 16 bytes at a time, and rows of them in registers.
//
// A kernel for rows has two widths: WIDE<T> values for each thread where rows begin at multiples of 16 bytes, as the
// host sets in `wide`, else one value.
#pragma once
#include "ptx.cuh"

// The number of values in 16 bytes.
template <class T>
constexpr int WIDE = 16 / sizeof(T);

// `N` values in their storage type, in pieces of at most 16 bytes; N is 1 or a multiple of WIDE<T>.
template <class T, int N>
struct alignas(N == 1 ? sizeof(T) : 16) Vector {
    T x[N];
};

template <class T, int N>
__device__ inline Vector<T, N> fetch(const T* from) {
    return *(const Vector<T, N>*)from;
}

// As fetch, for data that will not be read again soon: it is evicted from L2 first.
template <class T, int N>
__device__ inline Vector<T, N> fetch_once(const T* from) {
#ifndef CAPFUL_STAND_IN
    if constexpr (sizeof(Vector<T, N>) == 16) {
        uint4 words = __ldcs((const uint4*)from);
        return *(const Vector<T, N>*)&words;
    }
#endif
    return fetch<T, N>(from);
}

template <int N>
__device__ inline void unpack(float (&to)[N], const Vector<float, N>& from) {
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = from.x[i];
}

template <int N>
__device__ inline void unpack(float (&to)[N], const Vector<bf16, N>& from) {
    if constexpr (N == 1) {
        to[0] = load(from.x[0]);
    } else {
        // By words, with one instruction for each value.
        const u32* words = (const u32*)from.x;
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    }
}

template <int N, class T>
__device__ inline void read(float (&to)[N], const T* from) {
    unpack(to, fetch<T, N>(from));
}

template <int N>
__device__ inline void write(float* to, const float (&from)[N]) {
    Vector<float, N> out;
#pragma unroll
    for (int i = 0; i < N; i++) out.x[i] = from[i];
    *(Vector<float, N>*)to = out;
}

template <int N>
__device__ inline void write(bf16* to, const float (&from)[N]) {
    if constexpr (N == 1) {
        *to = store<bf16>(from[0]);
    } else {
        Vector<u32, N / 2> out;
#pragma unroll
        for (int i = 0; i < N / 2; i++) out.x[i] = pack(from[2 * i], from[2 * i + 1]);
        *(Vector<u32, N / 2>*)to = out;
    }
}

// As write; also replaces `x` with the values as stored.
template <int N>
__device__ inline void write_rounded(float* to, float (&x)[N]) {
    write(to, x);
}

template <int N>
__device__ inline void write_rounded(bf16* to, float (&x)[N]) {
    if constexpr (N == 1) {
        *to = store<bf16>(x[0]);
        x[0] = load(store<bf16>(x[0]));
    } else {
        Vector<u32, N / 2> out;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            out.x[i] = pack(x[2 * i], x[2 * i + 1]);
            x[2 * i] = __uint_as_float(out.x[i] << 16);
            x[2 * i + 1] = __uint_as_float(out.x[i] & 0xffff0000u);
        }
        *(Vector<u32, N / 2>*)to = out;
    }
}

// Rounds `x` to the values that are stored in type `T`.
template <class T, int N>
__device__ inline void round_to(float (&x)[N]) {
    Vector<T, N> stored;
    write(stored.x, x);
    unpack(x, stored);
}

// Keeps the compiler from caching values that it computed from `vector` before.
template <class T, int N>
__device__ inline void opaque(Vector<T, N>& vector) {
#ifndef CAPFUL_STAND_IN
    if constexpr (sizeof vector == 16) {
        uint4& words = *(uint4*)&vector;
        asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
    }
#endif
}

// Writes data that will not be read again soon.
template <int N, class T>
__device__ inline void write_once(T* to, const float (&from)[N]) {
#ifndef CAPFUL_STAND_IN
    if constexpr (N * sizeof(T) == 16) {
        alignas(16) T values[N];
        write(values, from);
        __stcs((uint4*)to, *(const uint4*)values);
        return;
    }
#endif
    write(to, from);
}

// A row for `THREADS` threads, `N` neighbouring values each at a time: a thread's first HELD such vectors stay in
// registers, and are all loaded at once; further ones are read each time. ONCE: the vectors in registers, and those
// that each_back reads, leave L2 to other data.
template <class T, int N, int THREADS, int HELD, bool ONCE = false>
struct Row {
    const T* from;
    u32 first, columns;
    Vector<T, N> held[HELD];

    __device__ Row(const T* from, u32 columns, u32 thread) : from(from), first(thread * N), columns(columns) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const T* at = from + first + i * THREADS * N;
            if (first + i * THREADS * N < columns) held[i] = ONCE ? fetch_once<T, N>(at) : fetch<T, N>(at);
        }
    }

    // Calls `visit(column, values)` for this thread's vectors in order.
    template <class Visit>
    __device__ void each(Visit visit) const {
        float x[N];
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            u32 column = first + i * THREADS * N;
            if (column >= columns) return;
            unpack(x, held[i]);
            visit(column, x);
        }
#pragma unroll 4
        for (u32 column = first + HELD * THREADS * N; column < columns; column += THREADS * N) {
            read(x, from + column);
            visit(column, x);
        }
    }

    // As each, with the vectors that are not in registers in reverse order: L2 has those that `each` read last.
    template <class Visit>
    __device__ void each_back(Visit visit) const {
        float x[N];
        u32 begin = first + HELD * THREADS * N;
        u32 left = begin < columns ? (columns - begin + THREADS * N - 1) / (THREADS * N) : 0;
#pragma unroll 4
        for (; left > 0; left--) {
            u32 column = begin + (left - 1) * THREADS * N;
            unpack(x, ONCE ? fetch_once<T, N>(from + column) : fetch<T, N>(from + column));
            visit(column, x);
        }
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            u32 column = first + i * THREADS * N;
            if (column >= columns) return;
            Vector<T, N> own = held[i];
            opaque(own);
            unpack(x, own);
            visit(column, x);
        }
    }
};

// A number of values as a compile-time constant.
template <int N>
struct Count {
    static constexpr int value = N;
};

// Calls `visit(Count<N>(), first)` for values without rows: each thread has WIDE<T> of them if `wide`, and the threads
// after those have one each of the rest.
template <class T, class Visit>
__device__ inline void each_wide(u64 count, bool wide, Visit visit) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x, vectors = wide ? count / WIDE<T> : 0;
    u64 single = i + vectors * (WIDE<T> - 1);
    if (i < vectors) visit(Count<WIDE<T>>(), i * WIDE<T>);
    else if (single < count) visit(Count<1>(), single);
}
