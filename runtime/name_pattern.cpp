#include <terrace/runtime/name_pattern.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace terrace {

// Tries the shortest text for the latest star and lengthens it at every mismatch: earlier stars never need
// another look.
bool matches_pattern(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t after_star = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      after_star = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
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
  for (const char wanted : pattern) {
    const bool star = wanted == '*';
    row[0] = last[0] + (star ? 0 : 1);
    for (size_t n = 1; n <= name.size(); ++n) {
      const bool same = wanted == '?' || wanted == name[n - 1];
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
