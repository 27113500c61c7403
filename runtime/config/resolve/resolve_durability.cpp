// When the state on nvme is committed, and how memory is shared with others. What is said of
// commits where there can be none has no effect, and is listed as such.
#include <fmt/format.h>

#include <terrace/runtime/config/resolve/internal/resolver.h>

namespace terrace {
namespace {

constexpr std::string_view kPressure = "terrace.memory_pressure";
constexpr std::string_view kDurable = "terrace.durable";
constexpr std::string_view kSteps = "terrace.commit_every_steps";
constexpr std::string_view kSeconds = "terrace.commit_every_seconds";
constexpr std::string_view kRetained = "terrace.retained_checkpoints";

}  // namespace

void Resolver::resolve_durability() {
  TerraceConfig& own = config_.terrace;
  if (!for_engine_) own.memory_pressure = boolean(kPressure, own.memory_pressure);
  own.durable = boolean(kDurable, own.durable);
  own.commit_every_steps = integer(kSteps, own.commit_every_steps);
  own.commit_every_seconds = integer(kSeconds, own.commit_every_seconds);
  own.retained_checkpoints = small(kRetained, own.retained_checkpoints);
  const auto idle = [&](std::string_view key, const std::string& reason) {
    const ConfigEntry* const entry = given(key);
    // In a loop of one's own 0 commits, and durability where nothing is committed, ask for nothing.
    const bool asks = !for_engine_ || (entry != nullptr && entry->value.number > 0);
    if (entry != nullptr && asks) idle_.push_back({entry->written_key, reason});
  };
  const bool on_nvme = config_.placement.states == Placement::nvme;
  const std::string elsewhere = "optimizer states are not on nvme";
  if (!on_nvme && !for_engine_) {
    idle(kPressure, elsewhere);
    idle(kDurable, elsewhere);
  }
  if (on_nvme && own.durable) return;
  for (const std::string_view key : {kSteps, kSeconds, kRetained})
    idle(key, on_nvme ? fmt::format("{} is false", kDurable) : elsewhere);
}

}  // namespace terrace
