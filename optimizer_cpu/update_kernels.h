// The kernels of the optimizer step as one table of plain functions for each instruction set, by rule.
// Element types and the form of the masters are data, checked once for every few vectors, so that their
// number multiplies neither code nor compile time.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <terrace/base/data_type.h>
#include <terrace/base/record_layout.h>
#include <terrace/optimizer_cpu/instruction_set.h>
#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace::kernels {

// A run of consecutive elements: each pointer is at the first of `count`.
struct UpdateRun {
  std::byte* master;  // fp32, or int16 remainders; not looked at where the parameters are the masters
  std::array<std::byte*, 2> moments;
  const std::byte* gradients;
  const std::byte* old_parameters;  // without whole masters, of master_parameter_type(form)
  std::byte* parameters;
  size_t count;
  MasterForm form;
  MomentType moment_type;  // no codes
  DataType gradient_type;
  DataType parameter_type;
  // The bytes between the end of each array and its place in the caller's next run. Only prefetches use them.
  size_t master_gap_bytes;
  size_t moment_gap_bytes;

  size_t master_element_bytes() const { return master_bytes_of(form); }
  // The rest of the run after its first elements.
  UpdateRun after(size_t elements) const {
    UpdateRun rest = *this;
    rest.master += elements * master_element_bytes();
    for (std::byte*& moment : rest.moments) {
      if (moment != nullptr) moment += elements * bytes_of(moment_type);
    }
    rest.gradients += elements * bytes_of(gradient_type);
    if (old_parameters != nullptr) rest.old_parameters += elements * bytes_of(master_parameter_type(form));
    rest.parameters += elements * bytes_of(parameter_type);
    rest.count -= elements;
    return rest;
  }
};

using UpdateKernel = void (*)(const OptimizerStep&, const UpdateRun&);

// There is one rule per formula of optimizer.h.
enum class Rule : uint8_t { adam, adamw, adagrad, lion, sgd, sgd_momentum, muon_momentum, muon_weights };
inline constexpr size_t kRules = 8;
using UpdateKernels = std::array<UpdateKernel, kRules>;  // by Rule

// The one NaN that an update leaves in a master.
inline constexpr uint32_t kCanonicalNan = 0x7fc00000u;

// bits(master) = (bf16 << 16) + remainder.
constexpr float join_master(Bf16 parameter, int16_t remainder) {
  const uint32_t upper = static_cast<uint32_t>(parameter.bits) << 16;
  return std::bit_cast<float>(upper + static_cast<uint32_t>(int32_t{remainder}));
}
// The remainder of a master beside to_bf16(master) is its low half; that of a NaN is 0.
constexpr int16_t remainder_of(float master) {
  const uint32_t bits = std::bit_cast<uint32_t>(master);
  return (bits & 0x7fffffffu) > 0x7f800000u ? int16_t{0} : static_cast<int16_t>(static_cast<uint16_t>(bits));
}

// The kernels of masters.h.
struct MasterKernels {
  void (*split)(const std::byte* masters, std::byte* parameters, std::byte* remainders, size_t count);
  void (*join)(const std::byte* parameters, const std::byte* remainders, std::byte* masters, size_t count);
};

// Null where this build has no such kernels (another processor family).
const UpdateKernels* find_update_kernels(InstructionSet set);
const MasterKernels* find_master_kernels(InstructionSet set);
// The kernel of a step for such a run, after checking what the type system cannot: the rules for writing over
// what was read.
UpdateKernel choose_update_kernel(InstructionSet set, const OptimizerStep& step, const RecordLayout& layout,
                                  const UpdateRun& run);
// Whether this build has every table of `set`.
bool compiled_in(InstructionSet set);

// The implementations behind these functions.
extern const UpdateKernels kScalarUpdate;
extern const MasterKernels kScalarMasters;
const UpdateKernels* find_vector_update_kernels(InstructionSet set);
const MasterKernels* find_vector_master_kernels(InstructionSet set);

}  // namespace terrace::kernels
