// Wording: a text for people that names options. A user meets the library at one of several doors, and each
// door has names of its own for the options: a member of a struct, a keyword, a flag, a key. A Wording keeps
// which option is meant, and in() writes the name of the door.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace terrace {

enum class Option : uint8_t;  // option.h

// Where a user meets the library: a program in C++, C or Python, the flags of the program `terrace`, or a
// configuration that is read in Python.
enum class Door : uint8_t { cpp, c, python, program, configuration };

// What one thing is called at each door. Where an entry is empty, the thing has no name of its own there.
struct Names {
  std::string_view cpp = {};
  std::string_view c = {};
  std::string_view python = {};
  std::string_view flag = {};
  std::string_view key = {};
  bool operator==(const Names&) const = default;
};

class Wording {
 public:
  Wording() = default;
  Wording(std::string text);
  Wording(std::string_view text) : Wording(std::string(text)) {}
  Wording(const char* text) : Wording(std::string(text)) {}
  Wording(Option option);
  // The texts that `names` views have to outlive every copy: they are literals.
  Wording(const Names& names);

  Wording& operator+=(const Wording& more);

  bool empty() const { return pieces_.empty(); }
  // Whether the text means this option.
  bool names(Option option) const;
  // The text in the words of a door. A thing without a name there goes by the nearest one that it has. The
  // program shows flag and key: "--host-memory (terrace.host_memory)", and inside of parentheses
  // "(terrace.host_memory, --host-memory)".
  std::string in(Door door) const;

  friend Wording operator+(Wording before, const Wording& behind) { return before += behind; }
  // In the words of C++.
  friend bool operator==(const Wording& wording, std::string_view text) {
    return wording.in(Door::cpp) == text;
  }

 private:
  std::vector<std::variant<std::string, Option, Names>> pieces_;
};

// "raise " + Option::host_budget + ", or ..."
Wording operator+(Wording before, Option option);
Wording operator+(Option option, const Wording& behind);

}  // namespace terrace
