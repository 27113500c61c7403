// InstructionSet: the implementation of the kernels that runs. It is an argument, so that tests and a run
// that must repeat another machine's numbers can ask for one; it never changes an element-wise result.
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

}  // namespace terrace
