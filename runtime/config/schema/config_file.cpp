#include <terrace/runtime/config/schema/config_file.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include <terrace/base/text/json_writer.h>

namespace terrace {
namespace {

constexpr std::string_view kStage = "zero_optimization.stage";

// Opens and ends objects so that the members of a path lie in those that its dots name.
class Nested {
 public:
  explicit Nested(JsonWriter& json) : json_(json) { json_.begin_object(JsonLayout::lines); }
  void add(std::string_view path, std::string_view literal) {
    std::vector<std::string_view> sections;
    for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.')) {
      sections.push_back(path.substr(0, dot));
      path.remove_prefix(dot + 1);
    }
    const auto common = std::ranges::mismatch(open_, sections);
    const auto shared = static_cast<size_t>(common.in1 - open_.begin());
    close_to(shared);
    for (; open_.size() < sections.size(); open_.push_back(sections[open_.size()]))
      json_.begin_object(sections[open_.size()], JsonLayout::lines);
    json_.member(path, json_raw(literal));
  }
  std::string take() {
    close_to(0);
    return json_.end().take() + "\n";
  }

 private:
  void close_to(size_t depth) {
    for (; open_.size() > depth; open_.pop_back()) json_.end();
  }
  JsonWriter& json_;
  std::vector<std::string_view> open_;
};

// DeepSpeed offloads parameters in stage 3 alone, and states from stage 1 on.
uint32_t stage_for(const TrainConfig& config) {
  const PlacementConfig& placement = config.placement;
  const uint32_t least = placement.parameters != Placement::none ? 3
                         : placement.states != Placement::none   ? 2
                                                                 : 0;
  return std::max(config.zero_stage, least);
}

bool is_given(const ResolvedValue& line) {
  const bool follows = line.origin.starts_with("from ");  // from what is given
  const bool is_batch =
      line.key == "train_micro_batch_size_per_gpu" || line.key == "gradient_accumulation_steps";
  return is_batch || (line.origin != "default" && !follows && line.value != "null");
}

}  // namespace

std::string config_file_json(const TrainConfig& config) {
  JsonWriter json;
  Nested nested(json);
  for (const ResolvedValue& line : config.resolved) {
    if (line.key == kStage) {
      if (const uint32_t stage = stage_for(config); stage > 0) nested.add(kStage, std::to_string(stage));
    } else if (is_given(line)) {
      nested.add(line.key, line.value);
    }
  }
  return nested.take();
}

}  // namespace terrace
