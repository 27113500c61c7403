#include <terrace/runtime/observe/step_place.h>

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace terrace {
namespace {

// Takes `prefix` and the number behind it from the front of the text. Returns nothing if they are not there.
std::optional<uint32_t> take_number(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  const char* const begin = text.data() + prefix.size();
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
  if (error != std::errc() || number == UINT32_MAX) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

// A recomputation belongs to the backward pass.
std::string_view direction_of(std::string_view phase) {
  if (phase == "forward") return "forward";
  return phase == "backward" || phase == "recompute" ? "backward" : std::string_view();
}

}  // namespace

std::string place_in_step(std::string_view activity, const StepShape& shape) {
  std::string_view rest = activity;
  const std::optional<uint32_t> micro_batch = take_number(rest, "mb");
  const size_t slash = rest.rfind('/');
  if (!micro_batch || !rest.starts_with('/') || slash == 0) return std::string(activity);
  const std::string_view direction = direction_of(rest.substr(slash + 1));
  if (direction.empty()) return std::string(activity);
  std::string_view operation = rest.substr(1, slash - 1);
  std::string place;
  if (shape.micro_batches > 1)
    place = fmt::format("micro-batch {} of {}, ", *micro_batch + 1, shape.micro_batches);
  place += direction;
  if (const std::optional<uint32_t> layer = take_number(operation, "h."))
    return place + fmt::format(", layer {} of {}", *layer + 1, shape.layers);
  return place + ", " + std::string(operation.substr(0, operation.find('.')));
}

}  // namespace terrace
