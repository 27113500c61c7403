// SplitPattern: the regular expressions by which tokenizers cut text into words, through PCRE2. They are
// written for another engine (Oniguruma): what the two read alike is used as it is, what can be said in both
// is translated, anything else is refused by name. A pattern is never matched in a way it was not meant.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::data {

// The pattern as PCRE2 reads it. Throws Error(config) naming the part that has no translation; `name` stands
// for where the pattern is written.
std::string pcre2_pattern(std::string_view pattern, std::string_view name);
// A text as a pattern that matches exactly that.
std::string quoted_pattern(std::string_view text);

class SplitPattern {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };
  // What one thread needs to match.
  class Scratch;

  // `pattern` as PCRE2 reads it.
  SplitPattern(const std::string& pattern, std::string_view name);
  SplitPattern(SplitPattern&&) noexcept;
  ~SplitPattern();

  // The first match at or after `offset` of well-formed UTF-8. Throws Error(config) when the pattern takes
  // unreasonably long.
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
