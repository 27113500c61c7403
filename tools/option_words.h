// The library's advice names its own options, as an embedding program sets them: OffloadOptions::durable. The
// program has flags and keys of the configuration instead. One table maps the options to them; it must name
// nothing that the program does not take.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <terrace/runtime/train/planning/ways_out.h>

namespace terrace {

// Returns the text with the program's names for the options of the table: "raise --host-memory
// (terrace.host_memory)". An option alone in parentheses becomes "(terrace.host_memory, --host-memory)".
std::string in_flags_and_keys(std::string_view text);

// Returns the request for several changes together, flags first: "--context 512, with bf16.enabled true in
// the configuration". Each of their options has a row in the table.
std::string in_flags_and_keys(std::span<const ChangedOption> changes);

}  // namespace terrace
