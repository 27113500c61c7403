#include <terrace/runtime/compute_threads.h>

#include <fmt/format.h>

namespace terrace {

Workers make_compute_threads(const TerraceConfig& config) {
  if (config.bind_threads) return Workers(config.thread_count, read_topology());
  return Workers(config.thread_count);
}

std::string compute_threads_text(const Workers& workers) {
  const Binding& binding = workers.binding();
  return fmt::format(
      binding.cpus.empty() ? "{} compute thread{}, not bound ({})" : "{} compute thread{}, bound {}",
      workers.thread_count(), workers.thread_count() == 1 ? "" : "s", binding.reason);
}

}  // namespace terrace
