#include <terrace/runtime/config/name_pattern.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace terrace {
namespace {

// The part of the pattern at its beginning that stands for one character, or for any text: "*", "?", "[0-3]",
// "a". A bracket that nothing closes stands for itself.
std::string_view first_unit(std::string_view pattern) {
  if (!pattern.starts_with('[')) return pattern.substr(0, 1);
  const size_t first = pattern.starts_with("[!") ? 3 : 2;  // behind one character, which may be a bracket
  const size_t end = pattern.find(']', first);
  return pattern.substr(0, end == std::string_view::npos ? 1 : end + 1);
}

bool is_star(std::string_view unit) {
  return unit == "*";
}

bool stands_for(std::string_view unit, char c) {
  if (unit.size() == 1) return unit == "?" || unit[0] == c;
  const bool others = unit[1] == '!';
  const std::string_view set = unit.substr(others ? 2 : 1, unit.size() - (others ? 3 : 2));
  bool listed = false;
  for (size_t i = 0; i < set.size(); ++i) {
    const bool range = i + 2 < set.size() && set[i + 1] == '-';
    listed = listed || (range ? set[i] <= c && c <= set[i + 2] : set[i] == c);
    if (range) i += 2;
  }
  return listed != others;
}

}  // namespace

// Tries the shortest text for the latest star and lengthens it at every mismatch: earlier stars never need
// another look.
bool matches_pattern(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t after_star = 0;
  while (n < name.size()) {
    const std::string_view unit = first_unit(pattern.substr(p));
    if (is_star(unit)) {
      star = p++;
      after_star = n;
    } else if (!unit.empty() && stands_for(unit, name[n])) {
      p += unit.size();
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++after_star;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

size_t pattern_distance(std::string_view pattern, std::string_view name) {
  std::vector<size_t> last(name.size() + 1);
  std::vector<size_t> row(name.size() + 1);
  for (size_t n = 0; n <= name.size(); ++n) last[n] = n;
  while (!pattern.empty()) {
    const std::string_view unit = first_unit(pattern);
    pattern.remove_prefix(unit.size());
    const bool star = is_star(unit);
    row[0] = last[0] + (star ? 0 : 1);
    for (size_t n = 1; n <= name.size(); ++n) {
      const bool same = !star && stands_for(unit, name[n - 1]);
      row[n] = star ? std::min(last[n], row[n - 1])
                    : std::min({last[n] + 1, row[n - 1] + 1, last[n - 1] + (same ? 0 : 1)});
    }
    std::swap(last, row);
  }
  return last[name.size()];
}

bool matches_any(std::span<const std::string> patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches_pattern(pattern, name); });
}

}  // namespace terrace
