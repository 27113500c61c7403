#include "text_table.h"

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/base/text/shown_text.h>

namespace terrace {

TextTable::TextTable(std::vector<std::string> headings) {
  rows_.push_back(std::move(headings));
}

void TextTable::add(std::vector<std::string> cells) {
  TERRACE_ASSERT(cells.size() == rows_.front().size(), fmt::format("a row of {} cells", cells.size()));
  for (std::string& cell : cells) cell = shown_line(cell);
  rows_.push_back(std::move(cells));
}

std::string TextTable::text() const {
  std::vector<size_t> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string result;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      line += c == 0 ? fmt::format("{:<{}}", row[c], widths[c]) : fmt::format("{:>{}}", row[c], widths[c]);
      line += "  ";
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    result += line + "\n";
  }
  return result;
}

size_t TextTable::width() const {
  const std::string lines = text();
  size_t widest = 0;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = lines.find('\n', begin);
    widest = std::max(widest, end - begin);
    begin = end + 1;
  }
  return widest;
}

std::string grouped(unsigned long long number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string counted(unsigned long long number, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(number), noun, number == 1 ? "" : "s");
}

std::string seconds_text(double seconds) {
  return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 3 : 1);
}

std::string percent_text(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "-";
}

}  // namespace terrace
