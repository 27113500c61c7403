// TextTable: columns of text for people, aligned.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

class TextTable {
 public:
  // The first column is aligned to the left, the others to the right.
  explicit TextTable(std::vector<std::string> headings);
  void add(std::vector<std::string> cells);
  // Lines with newlines, without spaces at their ends.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// 12345678 -> "12,345,678".
std::string grouped(unsigned long long number);
// "1 commit", "2,000 commits", for nouns that take an s.
std::string counted(unsigned long long number, std::string_view noun);
// 0.000123 -> "0.000 s", 83.4 -> "83.4 s": seconds for tables.
std::string seconds_text(double seconds);
// The share of a whole in percent; "-" when there is no whole.
std::string percent_text(double part, double whole);

}  // namespace terrace
