// AddedTokens: the tokens that are found in a text as written, before it is cut into words, such as
// "<|endoftext|>". If several fit at one place, the longest counts.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/reference/data/internal/split_pattern.h>
#include <terrace/reference/data/internal/tokenizer_file.h>

namespace terrace::data {

class AddedTokens {
 public:
  // One token of a text, or a piece of text between two.
  struct Piece {
    std::string_view text;
    const AddedToken* token = nullptr;  // null: text
  };

  // The constructor takes the tokens to find by their own texts.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // Gives all of a well-formed text, piece by piece; texts are never empty.
  void split(std::string_view text, SplitPattern::Scratch& scratch,
             FunctionRef<void(const Piece&)> piece) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;
  bool is_single_word(std::string_view text, size_t begin, size_t end, SplitPattern::Scratch& scratch) const;
  // space_before() returns the start of the white space in front of `begin`, at least `least`; space_after()
  // the end of the white space behind `end`.
  size_t space_before(std::string_view text, size_t begin, size_t least,
                      SplitPattern::Scratch& scratch) const;
  size_t space_after(std::string_view text, size_t end, SplitPattern::Scratch& scratch) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> begins_{};  // true if a token begins with this byte
  // These match one character, only at the given offset.
  SplitPattern word_;
  SplitPattern space_;
};

}  // namespace terrace::data
