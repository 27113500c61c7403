// merge_traces: the traces of all ranks of a run as one file, in which each rank is a process. It copies what
// TraceFile has written and must never hold more than a piece of it in memory.
#pragma once

#include <filesystem>
#include <span>

namespace terrace {

// `parts` by rank, as TraceFile::finish() left them. `whole` gets its name when it is complete; the parts
// stay. Throws Error(io).
void merge_traces(std::span<const std::filesystem::path> parts, const std::filesystem::path& whole);

}  // namespace terrace
