#include <terrace/runtime/config/compute_threads.h>

#include <fmt/format.h>

namespace terrace {

Workers make_compute_threads(const TerraceConfig& config) {
  if (config.bind_threads) return Workers(config.thread_count, read_topology());
  return Workers(config.thread_count);
}

std::string compute_threads_text(const Workers& workers) {
  const Binding& binding = workers.binding();
  const std::string where =
      binding.cpus.empty() ? fmt::format("not bound ({})", binding.reason) : "bound " + binding.reason;
  return fmt::format("{} compute thread{}, {}", workers.thread_count(),
                     workers.thread_count() == 1 ? "" : "s", where);
}

}  // namespace terrace
