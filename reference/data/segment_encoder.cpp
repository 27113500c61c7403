#include <terrace/base/text/utf8.h>
#include <terrace/reference/data/internal/json_lines.h>
#include <terrace/reference/data/internal/segment_encoder.h>

namespace terrace::data {
namespace {

void append_bytes(std::string_view text, std::vector<int32_t>& tokens) {
  for (const char byte : text) tokens.push_back(static_cast<uint8_t>(byte));
}

}  // namespace

SegmentEncoder::SegmentEncoder(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {
  if (tokenizer != nullptr) encoder_.emplace(*tokenizer);
}

void SegmentEncoder::begin_text(std::vector<int32_t>& tokens) const {
  if (tokenizer_ == nullptr) return;
  tokens.insert(tokens.end(), tokenizer_->prefix().begin(), tokenizer_->prefix().end());
}

void SegmentEncoder::end_text(std::vector<int32_t>& tokens) const {
  if (tokenizer_ == nullptr) return;
  tokens.insert(tokens.end(), tokenizer_->suffix().begin(), tokenizer_->suffix().end());
  if (const auto end = tokenizer_->end_of_text(); end && (tokens.empty() || tokens.back() != *end))
    tokens.push_back(*end);
}

void SegmentEncoder::encode(const TextSegment& segment, Result& result) {
  result.tokens.clear();
  result.broken_count = 0;
  std::string_view text = segment.text;
  const bool needs_utf8 = encoder_ || segment.is_json_lines;
  if (needs_utf8 && well_formed_bytes(text) != text.size()) {
    result.broken_count = replace_broken(text, repaired_, result.first_broken);
    text = repaired_;
  }
  if (segment.is_json_lines) {
    for_each_text(segment.path, text, {segment.first_line, segment.first_in_file}, [&](std::string_view one) {
      begin_text(result.tokens);
      if (encoder_) {
        encoder_->encode(one, result.tokens);
      } else {
        append_bytes(one, result.tokens);
        if (!one.ends_with('\n')) result.tokens.push_back('\n');  // what else could stand between two
      }
      end_text(result.tokens);
    });
    return;
  }
  if (!encoder_) return append_bytes(text, result.tokens);
  if (segment.begins_file) begin_text(result.tokens);
  encoder_->encode(text, result.tokens, !segment.begins_file);
  if (segment.ends_file) end_text(result.tokens);
}

}  // namespace terrace::data
