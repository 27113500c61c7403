#include <terrace/offload/watch/decision_log.h>

#include <array>

namespace terrace {
std::string_view name_of(DecisionKind kind) {
  constexpr std::array<std::string_view, 11> kNames = {"step",  "evaluation", "update", "use",
                                                       "fetch", "ahead",      "evict",  "bypass",
                                                       "stale", "gradient",   "landed"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace terrace
