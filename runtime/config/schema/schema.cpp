#include <terrace/runtime/config/schema/schema.h>

#include <fmt/format.h>

#include <limits>
#include <string>
#include <unordered_map>

namespace terrace {
namespace {

// " from 0 to 3", " of at least 1".
std::string range_of(const SchemaKey& row) {
  constexpr double kLargestSaid = 1099511627776.0;
  const KeyLimits& limits = row.limits;
  if (limits.maximum <= kLargestSaid && limits.maximum != std::numeric_limits<uint32_t>::max()) {
    if (limits.maximum < 1) return fmt::format(" from {} to below 1", limits.minimum);
    return fmt::format(" from {:.0f} to {:.0f}", limits.minimum, limits.maximum);
  }
  if (row.type == ValueType::number && limits.maximum < std::numeric_limits<double>::max())
    return fmt::format(" from {:.0f} to {:.3g}", limits.minimum, limits.maximum);
  return fmt::format(" of at least {:.0f}", limits.minimum);
}

std::string with_commas(std::string_view allowed) {
  std::string text;
  for (char c : allowed) text += c == '|' ? std::string(", ") : std::string(1, c);
  return text;
}

}  // namespace

std::string_view name_of(KeyEffect effect) {
  switch (effect) {
    case KeyEffect::honoured:
      return "honoured";
    case KeyEffect::mapped:
      return "mapped";
    case KeyEffect::without_effect:
      return "without effect";
    case KeyEffect::refused:
      return "refused";
  }
  return "?";
}

std::string SchemaKey::path() const {
  return section.empty() ? std::string(key) : std::string(section) + "." + std::string(key);
}

const SchemaKey* find_key(std::string_view section, std::string_view key) {
  static const auto by_path = [] {
    std::unordered_map<std::string, const SchemaKey*> rows;
    for (const SchemaKey& row : schema()) rows.emplace(row.path(), &row);
    return rows;
  }();
  const auto found = by_path.find(section.empty() ? std::string(key) : fmt::format("{}.{}", section, key));
  const bool same = found != by_path.end() && found->second->section == section;
  return same ? found->second : nullptr;
}

const SchemaKey* find_path(std::string_view path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return find_key("", path);
  return find_key(path.substr(0, dot), path.substr(dot + 1));
}

std::string expected_values(const SchemaKey& row) {
  switch (row.type) {
    case ValueType::boolean:
      return "true or false";
    case ValueType::integer:
      return "a whole number" + range_of(row);
    case ValueType::number:
      return "a number" + range_of(row);
    case ValueType::number_list:
      return "a list of numbers" + range_of(row);
    case ValueType::rates:
      return "a number or a list of numbers" + range_of(row);
    case ValueType::text:
      return "a text";
    case ValueType::choice:
      return "one of " + with_commas(row.limits.allowed);
    case ValueType::text_list:
      return "a text or a list of texts";
    case ValueType::path_list:
      return "a folder or a list of folders";
    case ValueType::size:
      return "a number of bytes or a text such as \"256MiB\"" + range_of(row);
    case ValueType::any:
      return "any value";
    case ValueType::section:
    case ValueType::open_section:
      return "an object";
    case ValueType::section_list:
      return "a list of objects";
  }
  return "?";
}

std::string accepted_values(const SchemaKey& row) {
  const std::string_view allowed = row.limits.allowed;
  if (row.effect != KeyEffect::refused) {
    if (row.type == ValueType::section_list) return "a list of sections";
    return has_subkeys(row) ? "a section" : expected_values(row);
  }
  if (allowed.empty()) return "not accepted";
  if (has_subkeys(row)) return "only with nothing enabled";
  std::string text;
  for (char c : allowed) text += c == '|' ? std::string(" or ") : std::string(1, c);
  return "only " + text;
}

bool has_subkeys(const SchemaKey& row) {
  return row.type == ValueType::section || row.type == ValueType::section_list ||
         row.type == ValueType::open_section;
}

std::string section_name(std::string_view section) {
  return section.empty() ? "the top level" : std::string(section);
}

}  // namespace terrace
