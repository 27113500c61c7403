// The compute threads that a configuration asks for, and what is said about them.
#pragma once

#include <string>

#include <terrace/base/workers.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// As many as terrace.threads says, bound to processors unless terrace.bind_threads says otherwise.
Workers make_compute_threads(const TerraceConfig& config);

// "2 compute threads, bound one per core, node by node", "2 compute threads, not bound (...)".
std::string compute_threads_text(const Workers& workers);

}  // namespace terrace
