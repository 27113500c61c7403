// The table of kernels of each instruction set, and the bridge from the program's types to theirs.
#pragma once

#include <terrace/base/assert.h>
#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/reference/model/compute/internal/kernels.h>
#include <terrace/runtime/config/product_type.h>

namespace terrace::compute {

// `set` must be supported on this machine.
const Kernels& kernels_of(InstructionSet set);

// True if a processor with this set multiplies by an instruction of its own, false if it emulates the type.
bool has_instruction(InstructionSet set, ProductType type);

using ProductKernel = void (*)(const KernelProduct& product);
// The kernel of products of the type: the processor's own instructions where it has them, else those of the
// set, with the same bits.
ProductKernel product_kernel(InstructionSet set, ProductType type);

constexpr Format format_of(DataType type) {
  return type == DataType::fp32 ? Format::fp32 : type == DataType::bf16 ? Format::bf16 : Format::fp16;
}

}  // namespace terrace::compute
