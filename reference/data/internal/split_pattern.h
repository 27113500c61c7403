// SplitPattern: the regular expressions by which tokenizers cut text into words, through PCRE2. They are
// written for another engine (Oniguruma). An expression that both engines read alike is used as it is, one
// that both can express is translated, and any other is refused by name. A pattern never matches in another
// way than it was meant.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::data {

// Returns the pattern as PCRE2 reads it. Throws Error(config) naming the part that has no translation; `name`
// is the place of the pattern in messages.
std::string pcre2_pattern(std::string_view pattern, std::string_view name);
// Returns a pattern that matches exactly this text.
std::string quoted_pattern(std::string_view text);

class SplitPattern {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };
  // The memory in which one thread matches.
  class Scratch;

  // `pattern` is one of pcre2_pattern().
  SplitPattern(const std::string& pattern, std::string_view name);
  SplitPattern(SplitPattern&&) noexcept;
  ~SplitPattern();

  // Returns the first match at or after `offset` of well-formed UTF-8. Throws Error(config) when the pattern
  // takes unreasonably long.
  std::optional<Match> find(std::string_view text, size_t offset, Scratch& scratch) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

class SplitPattern::Scratch {
 public:
  Scratch();
  Scratch(Scratch&&) noexcept;
  ~Scratch();

 private:
  friend class SplitPattern;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace::data
