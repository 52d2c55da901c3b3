// Runs a grid of a kernel on fibers.
#pragma once

#include <string>

#include "device.h"

namespace stand_in {

const Kernel* find(const char* name);

// Runs every block. Returns an empty string, or a description of the error.
std::string run_grid(const Kernel& kernel, const void* arguments, Index grid, Index block);

// As `run_grid`, with all blocks concurrent: each on a CPU thread of its own, so that they may wait for each other.
std::string run_grid_together(const Kernel& kernel, const void* arguments, Index grid, Index block);

}  // namespace stand_in
