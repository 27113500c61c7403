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
  // Returns lines with newlines, without spaces at their ends.
  std::string text() const;
  // Returns the columns of the widest line of the text.
  size_t width() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Returns "12,345,678" for 12345678.
std::string grouped(unsigned long long number);
// Returns "1 commit", "2,000 commits", for nouns that take an s.
std::string counted(unsigned long long number, std::string_view noun);
// Returns seconds for tables: "0.000 s" for 0.000123, "83.4 s" for 83.4.
std::string seconds_text(double seconds);
// Returns the share of a whole in percent; "-" if the whole is 0.
std::string percent_text(double part, double whole);

}  // namespace terrace
