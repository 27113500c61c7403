// SegmentEncoder: the tokens of a segment of text files, with the tokens that surround every text. Without a
// tokenizer a token is a byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/reference/data/internal/text_segments.h>
#include <terrace/reference/data/tokenizer.h>

namespace terrace::data {

class SegmentEncoder {
 public:
  // The tokenizer outlives this; null: a token is a byte.
  explicit SegmentEncoder(const Tokenizer* tokenizer);

  struct Result {
    std::vector<int32_t> tokens;
    size_t broken_count = 0;  // pieces that are no UTF-8
    size_t first_broken = 0;  // byte in the segment
  };
  // Throws Error(config) for lines that are no JSON with a text.
  void encode(const TextSegment& segment, Result& result);

 private:
  void begin_text(std::vector<int32_t>& tokens) const;
  void end_text(std::vector<int32_t>& tokens) const;

  const Tokenizer* tokenizer_;
  std::optional<Tokenizer::Encoder> encoder_;
  std::string repaired_;
};

}  // namespace terrace::data
