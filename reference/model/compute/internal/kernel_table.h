// The table of kernels of each instruction set, and the bridge from the program's types to theirs.
#pragma once

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/products/products.h>
#include <terrace/reference/model/compute/internal/kernels.h>

namespace terrace::compute {

using kernels::format_of;

// `set` must be supported on this machine.
const Kernels& kernels_of(InstructionSet set);

}  // namespace terrace::compute
