// The part of cublasLt's interface that capful uses, on the CPU: column-major matrix multiplications of f32, bf16 or
// 8-bit floats by plain loops, in stream order.
//
// It proposes three algorithms, which differ in the order of their sums, and a fourth that a careful caller excludes.
// From the environment:
//   CAPFUL_STAND_IN_BLAS=0               no handle can be made
//   CAPFUL_STAND_IN_BLAS=130001          the library's version
//   CAPFUL_STAND_IN_BLAS_FASTEST=2       which algorithm is the fastest, 1 unless it says so: the others seem to take
//                                        a second longer, so that the clock chooses the same one every time
#include <cmath>
#include <cstring>
#include <vector>

#include "driver.h"

namespace {

// The constants of cublasLt.h.
enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { F32 = 0, BF16 = 14, E4M3 = 28, E5M2 = 29, COMPUTE_F32 = 68, COMPUTE_TF32 = 77, EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4 };
enum { REDUCE_IN_PLACE = 1, REDUCE_COMPUTE_TYPE = 2 };

struct Desc {
    int compute, scale;
    int transpose_a = 0, transpose_b = 0, epilogue = EPILOGUE_DEFAULT;
    uint64_t bias = 0, scale_a = 0, scale_b = 0;
};

size_t size_of(int type) { return type == F32 ? 4 : type == BF16 ? 2 : 1; }
bool narrow(int type) { return type == E4M3 || type == E5M2; }

struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t leading;

    size_t bytes() const { return leading * columns * size_of(type); }
};
struct Preference {
    uint64_t workspace = 0;
    uint32_t reductions = 7;
    uint32_t alignment[4] = {256, 256, 256, 256};
};
struct Algorithm {
    uint64_t number, reduction, workspace, alignment, rest[4];
};
struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
static_assert(sizeof(Algorithm) == 64 && sizeof(Heuristic) == 96);

// The number of a code, by the definition of its format.
float decode(int type, uint8_t code) {
    int mantissa = type == E4M3 ? 3 : 2, bias = type == E4M3 ? 7 : 15;
    int exponent = (code & 0x7f) >> mantissa, fraction = code & ((1 << mantissa) - 1);
    float sign = code & 0x80 ? -1.0f : 1.0f;
    if (type == E4M3 ? (code & 0x7f) == 0x7f : exponent == 31 && fraction) return NAN;
    if (type == E5M2 && exponent == 31) return sign * INFINITY;
    if (!exponent) return sign * ldexpf((float)fraction, 1 - bias - mantissa);
    return sign * ldexpf((float)(fraction + (1 << mantissa)), exponent - bias - mantissa);
}

float load(const void* from, int type, uint64_t at) {
    if (type == F32) return ((const float*)from)[at];
    if (narrow(type)) return decode(type, ((const uint8_t*)from)[at]);
    uint32_t bits = (uint32_t)((const uint16_t*)from)[at] << 16;
    float x;
    return memcpy(&x, &bits, 4), x;
}

void store(void* to, int type, uint64_t at, float x) {
    if (type == F32) {
        ((float*)to)[at] = x;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bool nan = x != x;
    ((uint16_t*)to)[at] = nan ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// Rounds to 10 bits of mantissa.
float to_tf32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7f800000) != 0x7f800000) bits = (bits + 0x1000) & ~0x1fffu;
    return memcpy(&x, &bits, 4), x;
}

// op(x) as rows of k: contiguous, in f32.
std::vector<float> rows_of(const void* x, const Layout& layout, bool rows_are_columns) {
    uint64_t count = rows_are_columns ? layout.columns : layout.rows, k = rows_are_columns ? layout.rows : layout.columns;
    std::vector<float> made(count * k);
    for (uint64_t i = 0; i < count; i++)
        for (uint64_t at = 0; at < k; at++)
            made[i * k + at] = load(x, layout.type, rows_are_columns ? i * layout.leading + at : at * layout.leading + i);
    return made;
}

// Rows in groups of eight, with the eight values at one k next to each other; zeros for missing rows.
std::vector<float> eights_of(const std::vector<float>& rows, uint64_t k) {
    uint64_t count = rows.size() / k;
    std::vector<float> made((count + 7) / 8 * 8 * k);
    for (uint64_t i = 0; i < count; i++)
        for (uint64_t at = 0; at < k; at++) made[i / 8 * 8 * k + 8 * at + i % 8] = rows[i * k + at];
    return made;
}

// Whether the types and shapes match; also returns k.
int shapes(const Desc& d, const Layout& a, const Layout& b, const Layout& c, const Layout& out, uint64_t* k) {
    if (d.compute != COMPUTE_F32 && (d.compute != COMPUTE_TF32 || a.type != F32)) return NOT_SUPPORTED;
    if (d.scale != F32 || c.type != out.type || narrow(out.type)) return NOT_SUPPORTED;
    if (narrow(a.type) || narrow(b.type)) {
        // As on compute capability 8.9 and 9.0: at most one E5M2, both contiguous along the sum, sizes in multiples of
        // 16.
        bool pair = narrow(a.type) && narrow(b.type) && (a.type != E5M2 || b.type != E5M2);
        if (!pair || !d.transpose_a || d.transpose_b || stand_in::setting("CAPFUL_STAND_IN_CAPABILITY", 90) < 89)
            return NOT_SUPPORTED;
        if (a.rows % 16 || a.columns % 16 || b.rows % 16 || a.leading % 16 || b.leading % 16) return NOT_SUPPORTED;
    } else if (a.type != b.type) {
        return NOT_SUPPORTED;
    }
    if (a.type == F32 && out.type == BF16) return NOT_SUPPORTED;
    *k = d.transpose_a ? a.rows : a.columns;
    uint64_t m = d.transpose_a ? a.columns : a.rows, n = d.transpose_b ? b.rows : b.columns;
    bool fit = (d.transpose_b ? b.columns : b.rows) == *k && c.rows == m && c.columns == n && out.rows == m;
    for (const Layout& l : {a, b, c, out}) fit = fit && l.leading >= (int64_t)l.rows && l.rows && l.columns;
    return fit && out.columns == n && (d.epilogue != EPILOGUE_BIAS || d.bias) ? SUCCESS : INVALID_VALUE;
}

void multiply(const Desc& d, float alpha, const void* a, const Layout& la, const void* b, const Layout& lb, float beta,
              const void* c, const Layout& lc, void* out, const Layout& lo, uint64_t number, uint64_t k) {
    std::vector<float> left = eights_of(rows_of(a, la, d.transpose_a), k), right = rows_of(b, lb, !d.transpose_b);
    if (d.compute == COMPUTE_TF32)
        for (std::vector<float>* side : {&left, &right})
            for (float& x : *side) x = to_tf32(x);
    float sums[2][8];
    for (uint64_t j = 0; j < lo.columns; j++)
        for (uint64_t i = 0; i < lo.rows; i++) {
            if (i % 8 == 0) {
                memset(sums, 0, sizeof sums);
                for (uint64_t step = 0; step < k; step++) {
                    uint64_t at = number == 2 ? k - 1 - step : step;
                    float *sum = sums[number > 2 ? at % 2 : 0], y = right[j * k + at];
                    const float* x = &left[i * k + 8 * at];
                    for (int r = 0; r < 8; r++) sum[r] += x[r] * y;
                }
            }
            float value = alpha * (sums[0][i % 8] + sums[1][i % 8]);
            if (d.scale_a) value *= *(const float*)d.scale_a;
            if (d.scale_b) value *= *(const float*)d.scale_b;
            if (beta != 0) value += beta * load(c, lc.type, j * lc.leading + i);
            if (d.epilogue == EPILOGUE_BIAS) value += load((const void*)d.bias, lo.type, i);
            store(out, lo.type, j * lo.leading + i, value);
        }
}

template <class T>
int set(T& field, const void* value, size_t bytes) {
    if (bytes != sizeof field) return INVALID_VALUE;
    return memcpy(&field, value, bytes), SUCCESS;
}

template <class T>
int destroy(T* made) {
    return delete made, SUCCESS;
}

}  // namespace

API cublasLtCreate(void** handle) {
    return *handle = new int, stand_in::setting("CAPFUL_STAND_IN_BLAS", 130000) ? SUCCESS : NOT_INITIALIZED;
}
API cublasLtDestroy(int* handle) { return destroy(handle); }
extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() {
    return stand_in::setting("CAPFUL_STAND_IN_BLAS", 130000);
}
API cublasLtMatmulDescCreate(Desc** made, int compute, int scale) {
    return *made = new Desc{compute, scale}, SUCCESS;
}
API cublasLtMatmulDescDestroy(Desc* desc) { return destroy(desc); }
API cublasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value, size_t bytes) {
    switch (attribute) {
        case 3: return set(desc->transpose_a, value, bytes);
        case 4: return set(desc->transpose_b, value, bytes);
        case 7: return set(desc->epilogue, value, bytes);
        case 8: return set(desc->bias, value, bytes);
        case 17: return set(desc->scale_a, value, bytes);
        case 18: return set(desc->scale_b, value, bytes);
        default: return INVALID_VALUE;
    }
}
API cublasLtMatrixLayoutCreate(Layout** made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    return *made = new Layout{type, rows, columns, leading}, SUCCESS;
}
API cublasLtMatrixLayoutDestroy(Layout* layout) { return destroy(layout); }
API cublasLtMatmulPreferenceCreate(Preference** made) { return *made = new Preference, SUCCESS; }
API cublasLtMatmulPreferenceDestroy(Preference* preference) { return destroy(preference); }
API cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t bytes) {
    switch (attribute) {
        case 1: return set(preference->workspace, value, bytes);
        case 3: return set(preference->reductions, value, bytes);
        case 5: case 6: case 7: case 8: return set(preference->alignment[attribute - 5], value, bytes);
        default: return INVALID_VALUE;
    }
}
API cublasLtMatmulAlgoConfigGetAttribute(const Algorithm* algorithm, int attribute, void* value, size_t bytes,
                                         size_t* written) {
    if (attribute != 3 || bytes != 4) return INVALID_VALUE;
    *written = 4;
    return memcpy(value, &algorithm->reduction, 4), SUCCESS;
}
API cublasLtMatmulAlgoCheck(void*, const Desc* desc, const Layout* a, const Layout* b, const Layout* c, const Layout* out,
                            const Algorithm* algorithm, Heuristic* result) {
    uint64_t k;
    if (int status = shapes(*desc, *a, *b, *c, *out, &k)) return status;
    if (algorithm->number < 1 || algorithm->number > 4) return INVALID_VALUE;
    *result = {*algorithm, algorithm->workspace, SUCCESS, 1.0f, {}};
    return SUCCESS;
}
API cublasLtMatmulAlgoGetHeuristic(void*, const Desc* desc, const Layout* a, const Layout* b, const Layout* c,
                                   const Layout* out, const Preference* preference, int room, Heuristic* results,
                                   int* count) {
    *count = 0;
    uint64_t k, alignment = 256;
    if (int status = shapes(*desc, *a, *b, *c, *out, &k)) return status;
    for (uint32_t least : preference->alignment) alignment = least < alignment ? least : alignment;
    const uint64_t reductions[4] = {0, 0, REDUCE_COMPUTE_TYPE, REDUCE_IN_PLACE};
    for (uint64_t number = 1; number <= 4 && *count < room; number++) {
        uint64_t reduction = reductions[number - 1], workspace = reduction ? 4096 : 0;
        if ((reduction & ~(uint64_t)preference->reductions) || workspace > preference->workspace) continue;
        results[(*count)++] = {{number, reduction, workspace, alignment, {}}, workspace, SUCCESS, 1.0f, {}};
    }
    return SUCCESS;
}
API cublasLtMatmul(void*, const Desc* desc, const float* alpha, const void* a, const Layout* la, const void* b,
                   const Layout* lb, const float* beta, const void* c, const Layout* lc, void* out, const Layout* lo,
                   const Algorithm* algorithm, void* workspace, size_t workspace_bytes, void* stream) {
    uint64_t k;
    if (int status = shapes(*desc, *la, *lb, *lc, *lo, &k)) return status;
    uint64_t all = (uint64_t)a | (uint64_t)b | (uint64_t)c | (uint64_t)out;
    bool good = algorithm->number >= 1 && algorithm->number <= 4 && all % algorithm->alignment == 0 &&
                workspace_bytes >= algorithm->workspace;
    // The bias is as long as a column.
    size_t bias_bytes = lo->rows * size_of(lo->type);
    for (uint64_t scale : {desc->scale_a, desc->scale_b})
        good = good && (!scale || (scale % 16 == 0 && stand_in::inside(scale, 4)));
    // The alignment of operands that are read 16 bytes at a time.
    if (narrow(la->type)) good = good && ((uint64_t)a | (uint64_t)b) % 16 == 0;
    good = good && stand_in::inside((uint64_t)a, la->bytes()) && stand_in::inside((uint64_t)b, lb->bytes()) &&
           stand_in::inside((uint64_t)c, lc->bytes()) && stand_in::inside((uint64_t)out, lo->bytes()) &&
           stand_in::inside((uint64_t)workspace, workspace_bytes) &&
           (desc->epilogue != EPILOGUE_BIAS || stand_in::inside(desc->bias, bias_bytes));
    if (!good) return INVALID_VALUE;
    auto work = [=, d = *desc, la = *la, lb = *lb, lc = *lc, lo = *lo, alpha = *alpha, beta = *beta,
                 algorithm = *algorithm] {
        // Overwrites the scratch, so that another user of it notices.
        if (algorithm.workspace) memset(workspace, 0xff, algorithm.workspace);
        if (algorithm.number != stand_in::setting("CAPFUL_STAND_IN_BLAS_FASTEST", 1)) stand_in::seem_slow(stream, 1);
        multiply(d, alpha, a, la, b, lb, beta, c, lc, out, lo, algorithm.number, k);
        return 0;
    };
    return stand_in::queue(stream, work) ? 14 : SUCCESS;
}
