#include <terrace/runtime/config/schema.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace terrace {
namespace {

constexpr size_t kLongestKey = 64;  // that is compared with others

char lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

// Longer names may differ in more places and still be meant.
size_t tolerance(std::string_view key) {
  return key.size() <= 3 ? 1 : std::min<size_t>(4, 1 + key.size() / 5);
}

struct Nearest {
  const SchemaKey* row = nullptr;
  size_t distance = 0;
};

template <typename Predicate>
Nearest nearest(std::string_view key, Predicate considered) {
  Nearest best;
  for (const SchemaKey& row : schema()) {
    if (!considered(row)) continue;
    const size_t distance = edit_distance(key, row.key);
    if (distance <= tolerance(key) && (best.row == nullptr || distance < best.distance))
      best = {&row, distance};
  }
  return best;
}

// " from 0 to 3", " of at least 1".
std::string range_of(const SchemaKey& row) {
  constexpr double kLargestSaid = 1099511627776.0;
  const KeyLimits& limits = row.limits;
  if (limits.maximum <= kLargestSaid && limits.maximum != std::numeric_limits<uint32_t>::max()) {
    if (limits.maximum < 1) return fmt::format(" from {} to below 1", limits.minimum);
    return fmt::format(" from {:.0f} to {:.0f}", limits.minimum, limits.maximum);
  }
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
  const auto rows = schema();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const SchemaKey& row) {
    return row.section == section && row.key == key;
  });
  return found == rows.end() ? nullptr : &*found;
}

const SchemaKey* find_path(std::string_view path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return find_key("", path);
  return find_key(path.substr(0, dot), path.substr(dot + 1));
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped =
          i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
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

bool has_subkeys(const SchemaKey& row) {
  return row.type == ValueType::section || row.type == ValueType::section_list ||
         row.type == ValueType::open_section;
}

std::string section_name(std::string_view section) {
  return section.empty() ? "the top level" : std::string(section);
}

std::string suggestion_for(std::string_view section, std::string_view key) {
  if (key.size() > kLongestKey) return "";
  const Nearest here = nearest(key, [&](const SchemaKey& row) { return row.section == section; });
  if (here.row != nullptr && here.distance <= 1) return fmt::format("did you mean \"{}\"?", here.row->key);
  std::string elsewhere;
  for (const SchemaKey& row : schema()) {
    if (row.key != key) continue;
    elsewhere += (elsewhere.empty() ? "" : " or ") + section_name(row.section);
  }
  if (!elsewhere.empty()) return "it belongs to " + elsewhere;
  if (here.row != nullptr) return fmt::format("did you mean \"{}\"?", here.row->key);
  const Nearest anywhere = nearest(key, [](const SchemaKey&) { return true; });
  if (anywhere.row == nullptr) return "";
  return fmt::format("did you mean \"{}\" in {}?", anywhere.row->key, section_name(anywhere.row->section));
}

std::string suggestion_among(std::string_view allowed, std::string_view text) {
  if (text.size() <= 3 || text.size() > kLongestKey) return "";  // "gpu" is not nearly "cpu"
  std::string_view best;
  size_t least = tolerance(text) + 1;
  while (true) {
    const size_t bar = allowed.find('|');
    const std::string_view choice = allowed.substr(0, bar);
    const size_t distance = edit_distance(text, choice);
    if (distance < least) least = distance, best = choice;
    if (bar == std::string_view::npos) break;
    allowed.remove_prefix(bar + 1);
  }
  return best.empty() ? "" : fmt::format("did you mean \"{}\"?", best);
}

}  // namespace terrace
