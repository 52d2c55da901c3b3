// The part of the CUDA driver's interface that capful uses, on the CPU. Every call runs immediately, on the caller's
// thread; captured graphs are in streams.cpp.
//
// The properties of its machine are read from the environment at every call:
//   CAPFUL_STAND_IN_VERSION=12040        the driver's CUDA version
//   CAPFUL_STAND_IN_NAME=text            the GPUs' name
//   CAPFUL_STAND_IN_GPUS=2               GPUs, which share one memory
//   CAPFUL_STAND_IN_CAPABILITY=75        their compute capability
//   CAPFUL_STAND_IN_CACHE=bytes          their last-level cache
//   CAPFUL_STAND_IN_TOTAL=bytes          their memory
//   CAPFUL_STAND_IN_FREE=bytes           the part of it that is free
//   CAPFUL_STAND_IN_FAIL_AT=graph:5:214  the 5th call of a kind (init, context, launch, graph) fails with this
//                                        CUresult, 719 if none is given; launches and graphs fail as on a GPU: the
//                                        call itself returns success, and everything after it the error
//   CAPFUL_STAND_IN_SLOW=text            kernels whose names begin with this seem to take a second longer
//   CAPFUL_STAND_IN_EAGER=1              other streams of a graph run as early as possible
//   CAPFUL_STAND_IN_ABORT_HANGS=1        aborting a group of ranks never returns
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "driver.h"
#include "fibers.h"

using namespace stand_in;

namespace {

const std::map<int, const char*> NAMES = {
    {SUCCESS, "CUDA_SUCCESS"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT"},
    {FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    {UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    {913, "CUDA_ERROR_FUNCTION_NOT_LOADED"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

struct Allocation {
    void* mapped;
    size_t mapped_bytes, bytes;
};

std::recursive_mutex lock;
std::map<uint64_t, Allocation> allocations;
size_t used = 0, made_allocations = 0;
int context, module;

// The calling thread's context. Not thread_local, since thread-local storage is the kernels' shared memory here.
pthread_key_t current_key() {
    static pthread_key_t key = [] {
        pthread_key_t made;
        pthread_key_create(&made, nullptr);
        return made;
    }();
    return key;
}

constexpr size_t PAGE = 4096, ALIGNMENT = 256;

size_t total() { return setting("CAPFUL_STAND_IN_TOTAL", (size_t)8 << 30); }

size_t free_bytes() {
    size_t left = std::min(setting("CAPFUL_STAND_IN_FREE", total()), total());
    return left > used ? left - used : 0;
}

int gpus() { return (int)setting("CAPFUL_STAND_IN_GPUS", 1); }

// The end of an allocation adjoins an inaccessible page; its bytes are NaN.
uint64_t allocate(size_t bytes) {
    size_t size = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, pages = (size + PAGE - 1) / PAGE * PAGE;
    char* mapped = (char*)mmap(nullptr, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return 0;
    mprotect(mapped + pages, PAGE, PROT_NONE);
    memset(mapped, 0xff, pages);
    uint64_t start = (uint64_t)(mapped + pages - size);
    allocations[start] = {mapped, pages + PAGE, bytes};
    used += bytes;
    made_allocations++;
    return start;
}

}  // namespace

namespace stand_in {

std::atomic<int> broken = SUCCESS;

// The result code with which this call of a kind must fail.
int injected(const char* kind) {
    static std::map<std::string, size_t> calls;
    const char* plan = getenv("CAPFUL_STAND_IN_FAIL_AT");
    if (!plan) return SUCCESS;
    std::lock_guard guard(lock);
    size_t number = 0, length = strlen(kind);
    int code = FAILED;
    if (strncmp(plan, kind, length) || plan[length] != ':') return SUCCESS;
    sscanf(plan + length, ":%zu:%d", &number, &code);
    return ++calls[kind] == number ? code : (int)SUCCESS;
}

size_t setting(const char* name, size_t otherwise) {
    const char* value = getenv(name);
    return value ? strtoull(value, nullptr, 10) : otherwise;
}

bool inside(uint64_t start, size_t bytes) {
    std::lock_guard guard(lock);
    auto after = allocations.upper_bound(start);
    if (after == allocations.begin()) return false;
    auto& [base, allocation] = *--after;
    return start + bytes <= base + allocation.bytes;
}

}  // namespace stand_in

namespace {

int copy(void* stream, void* to, const void* from, size_t bytes, uint64_t device1, uint64_t device2) {
    return queue(stream, [=] {
        if ((device1 && !inside(device1, bytes)) || (device2 && !inside(device2, bytes))) return INVALID_VALUE;
        memcpy(to, from, bytes);
        return SUCCESS;
    });
}

template <class T>
int fill(void* stream, uint64_t to, T value, size_t count) {
    return queue(stream, [=] {
        if (!inside(to, count * sizeof(T))) return INVALID_VALUE;
        if (sizeof(T) == 1) memset((void*)to, (int)value, count);
        else std::fill_n((T*)to, count, value);
        return SUCCESS;
    });
}

}  // namespace

// The number of allocations ever made, of the GPU's memory and of the host's pinned memory.
extern "C" __attribute__((visibility("default"))) uint64_t capful_stand_in_allocations() {
    std::lock_guard guard(lock);
    return made_allocations;
}

API cuInit(unsigned) {
    if (int code = injected("init")) return code;
    return gpus() ? SUCCESS : NO_DEVICE;
}
API cuDriverGetVersion(int* version) {
    return *version = (int)setting("CAPFUL_STAND_IN_VERSION", 13000), SUCCESS;
}
API cuGetErrorName(int code, const char** name) {
    auto found = NAMES.find(code);
    if (found == NAMES.end()) return INVALID_VALUE;
    return *name = found->second, SUCCESS;
}
API cuGetErrorString(int code, const char** text) { return cuGetErrorName(code, text); }

API cuDeviceGetCount(int* count) { return *count = gpus(), SUCCESS; }
API cuDeviceGet(int* device, int ordinal) {
    return *device = ordinal, ordinal >= 0 && ordinal < gpus() ? SUCCESS : INVALID_DEVICE;
}
API cuDeviceGetName(char* name, int length, int) {
    const char* text = getenv("CAPFUL_STAND_IN_NAME");
    return snprintf(name, length, "%s", text ? text : "CPU stand-in"), SUCCESS;
}
API cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = total(), SUCCESS; }
API cuDeviceGetAttribute(int* value, int attribute, int) {
    int capability = (int)setting("CAPFUL_STAND_IN_CAPABILITY", 90);
    switch (attribute) {
        case 75: *value = capability / 10; break;
        case 76: *value = capability % 10; break;
        case 16: *value = 4; break;  // multiprocessors
        case 95: *value = 1; break;  // cooperative launches
        case 97: *value = 80 << 10; break;  // shared memory of a block: the limit in modules.cu
        case 38: *value = (int)setting("CAPFUL_STAND_IN_CACHE", 0); break;
        default: *value = 0;
    }
    return SUCCESS;
}
// 100 W, measured every millisecond.
API nvmlInit_v2() { return SUCCESS; }
API nvmlShutdown() { return SUCCESS; }
API nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** gpu) {
    return *gpu = &context, strcmp(address, "00000000:00:00.0") ? INVALID_VALUE : SUCCESS;
}
API nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) {
    using namespace std::chrono;
    auto now = steady_clock::now().time_since_epoch();
    return *millijoules = 100 * duration_cast<milliseconds>(now).count(), SUCCESS;
}
API cuDevicePrimaryCtxRetain(void** made, int) {
    if (int code = injected("context")) return code;
    return *made = &context, broken;
}
API cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return SUCCESS; }
API cuDevicePrimaryCtxReset_v2(int) { return broken = SUCCESS; }
API cuCtxSetCurrent(void* made) { return pthread_setspecific(current_key(), made), SUCCESS; }
API cuCtxGetCurrent(void** made) { return *made = pthread_getspecific(current_key()), SUCCESS; }
API cuCtxPushCurrent_v2(void* made) { return cuCtxSetCurrent(made); }
API cuCtxPopCurrent_v2(void** made) { return cuCtxGetCurrent(made), cuCtxSetCurrent(nullptr); }
API cuCtxGetDevice(int* device) { return *device = 0, SUCCESS; }
API cuCtxSynchronize() { return broken; }

API cuMemAlloc_v2(uint64_t* made, size_t bytes) {
    std::lock_guard guard(lock);
    if (broken) return broken;
    if (bytes == 0) return INVALID_VALUE;
    if (bytes > free_bytes()) return OUT_OF_MEMORY;
    *made = allocate(bytes);
    return *made ? SUCCESS : OUT_OF_MEMORY;
}
API cuMemFree_v2(uint64_t start) {
    std::lock_guard guard(lock);
    auto found = allocations.find(start);
    if (found == allocations.end()) return INVALID_VALUE;
    munmap(found->second.mapped, found->second.mapped_bytes);
    used -= found->second.bytes;
    allocations.erase(found);
    return SUCCESS;
}
API cuMemGetInfo_v2(size_t* free, size_t* all) {
    std::lock_guard guard(lock);
    *all = total();
    *free = free_bytes();
    return broken;
}
API cuMemAllocHost_v2(void** made, size_t bytes) {
    std::lock_guard guard(lock);
    if (broken) return broken;
    made_allocations++;
    return *made = calloc(1, bytes), *made ? SUCCESS : OUT_OF_MEMORY;
}
API cuMemFreeHost(void* start) { return free(start), SUCCESS; }
API cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t n) { return copy(nullptr, (void*)to, from, n, to, 0); }
API cuMemcpyDtoH_v2(void* to, uint64_t from, size_t n) { return copy(nullptr, to, (void*)from, n, from, 0); }
API cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t n) { return copy(nullptr, (void*)to, (void*)from, n, to, from); }
API cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t n, void* s) { return copy(s, (void*)to, from, n, to, 0); }
API cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t n, void* s) { return copy(s, to, (void*)from, n, from, 0); }
API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void* s) {
    return copy(s, (void*)to, (void*)from, n, to, from);
}
API cuMemsetD8_v2(uint64_t to, unsigned char value, size_t n) { return fill(nullptr, to, value, n); }
API cuMemsetD8Async(uint64_t to, unsigned char value, size_t n, void* s) { return fill(s, to, value, n); }
API cuMemsetD32_v2(uint64_t to, unsigned value, size_t n) { return fill(nullptr, to, value, n); }
API cuMemsetD32Async(uint64_t to, unsigned value, size_t n, void* s) { return fill(s, to, value, n); }

// The image is for a GPU; the kernels here are the linked ones.
API cuModuleLoadData(void** made, const void*) { return *made = &module, SUCCESS; }
API cuModuleLoadDataEx(void** made, const void*, unsigned, void*, void*) { return *made = &module, SUCCESS; }
API cuModuleUnload(void*) { return SUCCESS; }
API cuModuleGetFunction(const void** made, void*, const char* name) {
    *made = stand_in::find(name);
    if (!*made) fprintf(stderr, "stand-in: no kernel %s\n", name);
    return *made ? SUCCESS : NOT_FOUND;
}
API cuFuncSetAttribute(const void*, int, int) { return SUCCESS; }
// One matrix of bf16 (9) or several, tiles of 64 columns swizzled by 128 bytes (3), zeros beyond: see fibers.cpp for
// the copies.
API cuTensorMapEncodeTiled(void* map, int type, unsigned rank, uint64_t address, const uint64_t* sizes,
                           const uint64_t* pitches, const unsigned* tile, const unsigned* steps, int interleave,
                           int swizzle, int, int fill) {
    bool known = type == 9 && (rank == 2 || rank == 4) && interleave == 0 && swizzle == 3 && fill == 0;
    if (!known || (uint64_t)map % 64 || address % 16 || tile[0] != 64 || !tile[1] || tile[1] > 256) return INVALID_VALUE;
    stand_in::TileMap made = {address, {1, 1, 1, 1}, {}, tile[1]};
    uint64_t end = 2 * sizes[0];
    for (unsigned d = 0; d < rank; d++) {
        if (steps[d] != 1 || !sizes[d] || (d > 1 && tile[d] != 1)) return INVALID_VALUE;
        made.sizes[d] = sizes[d];
        if (d == 0) continue;
        if (pitches[d - 1] % 16) return INVALID_VALUE;
        made.pitches[d - 1] = pitches[d - 1];
        end += pitches[d - 1] * (sizes[d] - 1);
    }
    if (!inside(address, end)) return INVALID_VALUE;
    static_assert(sizeof made <= 128, "a tensor map");
    memset(map, 0, 128);
    return memcpy(map, &made, sizeof made), SUCCESS;
}
static int launch(const void* function, Index grid, Index block, unsigned shared, void* stream, void** arguments,
                  bool together) {
    // The limit of a block on the GPUs with the most shared memory; here the kernels declare their own.
    if (shared > 227 << 10 || !arguments) return INVALID_VALUE;
    const auto& kernel = *(const stand_in::Kernel*)function;
    const char* first = (const char*)arguments[0];
    auto kept = std::make_shared<std::vector<uint64_t>>((kernel.argument_bytes + 7) / 8);
    memcpy(kept->data(), first, kernel.argument_bytes);
    return queue(stream, [=, &kernel]() -> int {
        if (int code = injected("launch")) return broken = code, SUCCESS;
        const char* slow = getenv("CAPFUL_STAND_IN_SLOW");
        if (slow && !strncmp(kernel.name, slow, strlen(slow))) stand_in::seem_slow(stream, 1);
        std::string wrong = together ? stand_in::run_grid_together(kernel, kept->data(), grid, block)
                                     : stand_in::run_grid(kernel, kept->data(), grid, block);
        if (wrong.empty()) return SUCCESS;
        fprintf(stderr, "stand-in: %s\n", wrong.c_str());
        return broken = FAILED;
    });
}
API cuLaunchKernel(const void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void**) {
    return launch(function, {gx, gy, gz}, {bx, by, bz}, shared, stream, arguments, false);
}
// A CUlaunchAttribute.
struct Attribute {
    unsigned id, padding;
    uint64_t value[8];
};
// A CUlaunchConfig.
struct Launch {
    unsigned grid[3], block[3], shared;
    void* stream;
    const Attribute* attributes;
    unsigned count;
};
// Here, a kernel always ends before the next one begins.
API cuLaunchKernelEx(const Launch* l, const void* function, void** arguments, void**) {
    bool together = false;
    for (unsigned i = 0; i < l->count; i++) together |= l->attributes[i].id == 2 && l->attributes[i].value[0];
    auto index = [](const unsigned(&sizes)[3]) { return Index{sizes[0], sizes[1], sizes[2]}; };
    return launch(function, index(l->grid), index(l->block), l->shared, l->stream, arguments, together);
}
