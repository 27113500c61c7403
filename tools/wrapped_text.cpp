#include "wrapped_text.h"

#include <algorithm>

namespace terrace {

std::string wrapped(std::string_view text, size_t at, size_t indent, size_t columns) {
  std::string result;
  while (true) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.starts_with(' ')) {
      result += line;
    } else {
      while (!line.empty()) {
        const std::string_view word = line.substr(0, line.find(' '));
        const bool is_first = result.empty() || result.back() == ' ' || result.back() == '\n';
        if (!is_first && columns > 0 && at + 1 + word.size() > columns) {
          result += "\n" + std::string(indent, ' ');
          at = indent;
        } else if (!is_first) {
          result += ' ';
          ++at;
        }
        result += word;
        at += word.size();
        line.remove_prefix(std::min(line.size(), word.size() + 1));
      }
    }
    if (end == text.size()) return result;
    result += "\n" + std::string(indent, ' ');
    at = indent;
    text.remove_prefix(end + 1);
  }
}

std::string wrapped_message(std::string_view message, size_t columns) {
  constexpr size_t kCommand = 4;
  std::string result;
  while (true) {
    const size_t end = std::min(message.find('\n'), message.size());
    const std::string_view line = message.substr(0, end);
    const size_t blanks = std::min(line.find_first_not_of(' '), line.size());
    const bool is_whole = columns == 0 || line.size() <= columns || blanks >= kCommand;
    result += line.substr(0, blanks);
    result += is_whole ? std::string(line.substr(blanks))
                       : wrapped(line.substr(blanks), blanks, blanks + 2, columns);
    if (end == message.size()) return result;
    result += '\n';
    message.remove_prefix(end + 1);
  }
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

}  // namespace terrace
