// Declarations that the stand-in's libraries share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#define API extern "C" __attribute__((visibility("default"))) int

namespace stand_in {

// CUresults.
enum Code {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    NOT_FOUND = 500,
    FAILED = 719,
    UNJOINED = 904
};

// The result of every call after a kernel has failed, as on a GPU.
extern std::atomic<int> broken;

// The result code with which this call of a kind must fail.
int injected(const char* kind);

// Returns 0 or a CUresult.
using Work = std::function<int()>;

// Runs the work, or appends it to the graph that the stream is recording.
int queue(void* stream, Work work);

// Makes the work on the stream seem to take this much longer, by the clock of its events.
void seem_slow(void* stream, double seconds);

// Whether the bytes lie in one allocation.
bool inside(uint64_t start, size_t bytes);

// A number from the environment.
size_t setting(const char* name, size_t otherwise);

}  // namespace stand_in
