#include <fmt/format.h>

#include <algorithm>

#include <terrace/runtime/config/resolve/internal/without_effect.h>

#include <terrace/base/option.h>

namespace terrace {
namespace {

constexpr size_t kColumns = 100;

}  // namespace

void WithoutEffect::add(const std::string& key, const std::string& reason) {
  const size_t dot = key.rfind('.');
  const std::string section = dot == std::string::npos ? "top level" : key.substr(0, dot);
  const auto same = [&](const Group& group) { return group.section == section && group.reason == reason; };
  auto group = std::find_if(groups_.begin(), groups_.end(), same);
  if (group == groups_.end()) group = groups_.insert(group, {section, reason, {}});
  group->keys.push_back(dot == std::string::npos ? key : key.substr(dot + 1));
  ++count_;
}

std::string WithoutEffect::text() const {
  std::string text =
      fmt::format("{} known {} no effect here ({} says why):", count_, count_ == 1 ? "key has" : "keys have",
                  Wording(Option::explanation).in(Door::program));
  for (const Group& group : groups_) {
    const std::string reason = group.reason.empty() ? "" : fmt::format(" ({})", group.reason);
    std::string line = fmt::format("  {}{}:", group.section, reason);
    for (size_t i = 0; i < group.keys.size(); ++i) {
      const std::string word = group.keys[i] + (i + 1 < group.keys.size() ? "," : "");
      if (line.size() + 1 + word.size() > kColumns) {
        text += '\n' + line;
        line = "   ";
      }
      line += ' ' + word;
    }
    text += '\n' + line;
  }
  return text;
}

}  // namespace terrace
