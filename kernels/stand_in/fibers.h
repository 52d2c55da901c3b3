// Runs a grid of a kernel on fibers.
#pragma once

#include <string>

#include "device.h"

namespace stand_in {

const Kernel* find(const char* name);

// Runs every block. Empty, or what went wrong.
std::string run_grid(const Kernel& kernel, const void* arguments, Index grid, Index block);

// The same, all blocks at the same time: a thread of the CPU each, so that they may wait for each other.
std::string run_grid_together(const Kernel& kernel, const void* arguments, Index grid, Index block);

}  // namespace stand_in
