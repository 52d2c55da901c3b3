// Runs a grid of a kernel on fibers.
#pragma once

#include <string>

#include "device.h"

namespace stand_in {

const Kernel* find(const char* name);

// Runs every block. Empty, or what went wrong.
std::string run_grid(const Kernel& kernel, const void* arguments, Index grid, Index block);

}  // namespace stand_in
