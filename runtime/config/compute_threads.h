// Compute threads as a configuration asks for them, and the text that reports them.
#pragma once

#include <string>

#include <terrace/base/workers.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// Makes terrace.threads threads, bound to processors unless terrace.bind_threads is false.
Workers make_compute_threads(const TerraceConfig& config);

// Returns for example "2 compute threads, bound one per core, node by node", "2 compute threads, not bound
// (...)".
std::string compute_threads_text(const Workers& workers);

}  // namespace terrace
