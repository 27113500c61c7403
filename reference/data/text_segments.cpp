#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include <terrace/base/text/utf8.h>
#include <terrace/base/units.h>
#include <terrace/reference/data/internal/data_errors.h>
#include <terrace/reference/data/internal/json_lines.h>
#include <terrace/reference/data/internal/text_segments.h>

namespace terrace::data {
namespace {

bool is_letter_or_digit(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
      return true;
    default:
      return false;
  }
}

bool is_punctuation_or_symbol(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_SO;
}

size_t begin_of_code_point(std::string_view text, size_t at) {
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool has(const std::u32string& characters, char32_t c) {
  return characters.find(c) != std::u32string::npos;
}

bool may_cut_behind_newline(std::string_view text, size_t newline, const TextCuts& cuts) {
  if (newline == 0 || newline + 1 == text.size()) return false;
  const CodePoint after = first_code_point(text.substr(newline + 1));
  if (after.bytes == 0 || !is_letter_or_digit(after.value) || has(cuts.never_before, after.value))
    return false;
  const CodePoint before = first_code_point(text.substr(begin_of_code_point(text, newline - 1)));
  if (before.bytes == 0 || has(cuts.never_after, before.value)) return false;
  return is_letter_or_digit(before.value) || is_punctuation_or_symbol(before.value);
}

}  // namespace

size_t last_cut(std::string_view text, const TextCuts& cuts) {
  if (!cuts.behind_newlines) return 0;
  for (size_t at = text.rfind('\n'); at != std::string_view::npos && at > 0; at = text.rfind('\n', at - 1)) {
    if (may_cut_behind_newline(text, at, cuts)) return at + 1;
  }
  return 0;
}

// Reads what may belong to the segment and returns how much does.
uint64_t TextSegments::size_of_next(const TextFiles::File& file, TextSegment& segment) const {
  const uint64_t left = file.byte_count - inside_;
  const uint64_t most = file.is_json_lines ? kLongestLine : most_bytes_;
  for (uint64_t wanted = wanted_bytes_;; wanted = std::min(2 * wanted, most)) {
    segment.text.resize(static_cast<size_t>(std::min(wanted, left)));
    files_.read(segment.first_byte, {reinterpret_cast<uint8_t*>(segment.text.data()), segment.text.size()});
    if (segment.text.size() == left) return left;
    const size_t cut = file.is_json_lines ? segment.text.rfind('\n') + 1 : last_cut(segment.text, cuts_);
    if (cut > 0) return cut;
    if (wanted < most) continue;
    if (file.is_json_lines) {
      cannot_use(file.path,
                 fmt::format("line {} (byte {}) is longer than {}", line_, inside_, format_bytes(most)),
                 "cut it into several texts");
    }
    segment.is_forced = true;
    const size_t begin = begin_of_code_point(segment.text, segment.text.size() - 1);
    return begin > 0 ? begin : segment.text.size();
  }
}

bool TextSegments::next(TextSegment& segment) {
  if (file_ == files_.files().size()) return false;
  const TextFiles::File& file = files_.files()[file_];
  segment.first_byte = file.first_byte + inside_;
  segment.first_in_file = inside_;
  segment.first_line = line_;
  segment.begins_file = inside_ == 0;
  segment.is_json_lines = file.is_json_lines;
  segment.path = file.path;
  segment.is_forced = false;
  segment.text.resize(static_cast<size_t>(size_of_next(file, segment)));
  inside_ += segment.text.size();
  if (segment.is_json_lines) line_ += newline_count(segment.text);
  segment.ends_file = inside_ == file.byte_count;
  if (segment.ends_file) {
    ++file_;
    inside_ = 0;
    line_ = 1;
  }
  return true;
}

}  // namespace terrace::data
