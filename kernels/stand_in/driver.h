// What the stand-in's libraries share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace stand_in {

// Gives 0 or a CUresult.
using Work = std::function<int()>;

// Runs the work, or appends it to the graph that the stream is recording.
int queue(void* stream, Work work);

// Makes what runs on the stream seem to have taken so much longer, by the clock of its events.
void seem_slow(void* stream, double seconds);

// Whether the bytes lie in one allocation.
bool inside(uint64_t start, size_t bytes);

// A number out of the environment.
size_t setting(const char* name, size_t otherwise);

}  // namespace stand_in
