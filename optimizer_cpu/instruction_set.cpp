#include <terrace/optimizer_cpu/instruction_set.h>

#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <vector>

#include <terrace/optimizer_cpu/update_kernels.h>

namespace terrace {
namespace {

constexpr std::array kAllSets = {InstructionSet::scalar, InstructionSet::avx2, InstructionSet::avx512};

// Highway reads cpuid and also asks whether the operating system saves the wide registers.
bool machine_runs(InstructionSet set) {
  switch (set) {
    case InstructionSet::scalar:
      return true;
    case InstructionSet::avx2:
      return (hwy::SupportedTargets() & HWY_AVX2) != 0;
    case InstructionSet::avx512:
      return (hwy::SupportedTargets() & HWY_AVX3) != 0;
  }
  return false;
}

std::vector<InstructionSet> find_supported() {
  std::vector<InstructionSet> found;
  for (const InstructionSet set : kAllSets) {
    if (kernels::compiled_in(set) && machine_runs(set)) found.push_back(set);
  }
  return found;
}

}  // namespace

std::string_view name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::scalar:
      return "scalar";
    case InstructionSet::avx2:
      return "avx2";
    case InstructionSet::avx512:
      return "avx512";
  }
  return "unknown";
}

std::span<const InstructionSet> supported_instruction_sets() {
  static const std::vector<InstructionSet> supported = find_supported();
  return supported;
}

bool is_supported(InstructionSet set) {
  return std::ranges::find(supported_instruction_sets(), set) != supported_instruction_sets().end();
}

InstructionSet best_instruction_set() {
  return supported_instruction_sets().back();
}

}  // namespace terrace
