// InstructionSet: the implementation of the kernels that runs. It is an argument, so that tests and a run
// that must repeat another machine's numbers can ask for one; it never changes an element-wise result.
// ProductType: the arithmetic of matrix products on the processor, which changes results
// (docs/host_compute.md).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace terrace {

// The sets are ordered from slow to fast. `scalar` is the specification and runs everywhere.
enum class InstructionSet : uint8_t { scalar, avx2, avx512 };

std::string_view name_of(InstructionSet set);

// The sets that this processor, its operating system and this build can run, from slow to fast; never empty.
// Thread-safe.
std::span<const InstructionSet> supported_instruction_sets();
bool is_supported(InstructionSet set);
// The fastest of the supported sets.
InstructionSet best_instruction_set();

// fp32: operands as they are. The others round operands to bf16 and sum in fp32: bf16 in the order of
// AVX512_BF16, bf16_amx in that of AMX. Any processor can do each, with the same bits.
enum class ProductType : uint8_t { fp32, bf16, bf16_amx };
constexpr std::string_view name_of(ProductType type) {
  return type == ProductType::fp32 ? "fp32" : type == ProductType::bf16 ? "bf16" : "bf16_amx";
}

}  // namespace terrace
