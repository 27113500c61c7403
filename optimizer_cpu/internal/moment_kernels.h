// The kernels of moments as codes of one instruction set; moment_codes.cpp chooses from them.
#pragma once

#include <array>
#include <cstddef>

#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/moment_codes.h>
#include <terrace/optimizer_cpu/update_kernels.h>

namespace terrace::kernels {

// As decode_blocks() and encode_blocks(); `chance` is null for rounding to the nearest.
struct MomentKernels {
  void (*decode)(std::array<const std::byte*, 2> codes, size_t count, std::array<float*, 2> values);
  void (*encode)(std::array<const float*, 2> values, size_t count, const Chance* chance,
                 std::array<std::byte*, 2> codes);
};

// Null where this build has no such kernels (another processor family).
const MomentKernels* find_moment_kernels(InstructionSet set);

// The implementations behind find_moment_kernels().
extern const MomentKernels kScalarMoments;
const MomentKernels* find_vector_moment_kernels(InstructionSet set);

// Updates a run whose moments are codes of whole blocks, in one pass.
using CodedUpdate = void (*)(const OptimizerStep&, const UpdateRun&, const Chance&);
using CodedUpdates = std::array<CodedUpdate, kRules>;  // by Rule
// Null where there is no such pass, and codes become numbers before an update and codes behind it. The bits
// are the same.
CodedUpdate find_coded_update(InstructionSet set, Rule rule, const UpdateRun& run);

}  // namespace terrace::kernels
