// AddedTokens: the tokens that are looked for in a text as they are written, before it is cut into words:
// "<|endoftext|>" and their like. Of several at one place the longest counts.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/runtime/train/data/internal/split_pattern.h>
#include <terrace/runtime/train/data/internal/tokenizer_file.h>

namespace terrace::data {

class AddedTokens {
 public:
  // One token of a text, or a piece of text between two.
  struct Piece {
    std::string_view text;
    const AddedToken* token = nullptr;  // null: text
  };

  // The tokens' own texts are what is looked for.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // All of a well-formed text, piece by piece; texts are never empty.
  void split(std::string_view text, SplitPattern::Scratch& scratch,
             FunctionRef<void(const Piece&)> piece) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;
  bool is_single_word(std::string_view text, size_t begin, size_t end, SplitPattern::Scratch& scratch) const;
  // Where the white space in front of `begin` begins, not before `least`; and where that behind `end` ends.
  size_t space_before(std::string_view text, size_t begin, size_t least,
                      SplitPattern::Scratch& scratch) const;
  size_t space_after(std::string_view text, size_t end, SplitPattern::Scratch& scratch) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> begins_{};  // whether a token begins with this byte
  // Match one character, at the offset they are asked about only.
  SplitPattern word_;
  SplitPattern space_;
};

}  // namespace terrace::data
