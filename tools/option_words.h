// The library's advice names its own options, as an embedding program sets them: OffloadOptions::durable.
// Whoever runs the program has flags and keys of the configuration instead. One table says which; it must
// name nothing that the program does not take.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <terrace/runtime/train/planning/ways_out.h>

namespace terrace {

// The same text with the options of the table as the program has them: "raise --host-memory
// (terrace.host_memory)"; where an option stands in parentheses by itself, "(terrace.host_memory,
// --host-memory)".
std::string in_flags_and_keys(std::string_view text);

// How changes are asked for together, flags first: "--context 512, with bf16.enabled true in the
// configuration". Each of their options has a row.
std::string in_flags_and_keys(std::span<const ChangedOption> changes);

}  // namespace terrace
