// TextSegments: text files in pieces of about a MiB that may be tokenized separately. It knows where text may
// be cut, not its tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include <terrace/reference/data/text_files.h>

namespace terrace::data {

// The places at which text may be cut: behind a newline that stands between a letter, digit, mark of
// punctuation or symbol and a letter or digit. The patterns of GPT-2, Llama 3, Qwen 2 and their like cut
// there too, without looking at the text behind it.
struct TextCuts {
  bool behind_newlines = true;
  // A newline behind a character of never_after, or in front of one of never_before, is no such place.
  std::u32string never_after;
  std::u32string never_before;
};

struct TextSegment {
  std::string text;
  uint64_t first_byte = 0;  // place of the text in all files
  bool begins_file = false;
  bool ends_file = false;
  bool is_json_lines = false;
  uint64_t first_in_file = 0;  // place of the text's first byte in its file
  uint64_t first_line = 1;     // JSON lines only: the number of the first line, from 1 on
  std::filesystem::path path;
  bool is_forced = false;  // cut at a place where the tokens may differ from those of the whole text
};

class TextSegments {
 public:
  static constexpr uint64_t kBytes = uint64_t{1} << 20;
  static constexpr uint64_t kMostBytes = uint64_t{16} << 20;
  // JSON lines are cut only between lines.
  static constexpr uint64_t kLongestLine = uint64_t{256} << 20;

  // Tests use smaller sizes. `files` outlives this.
  TextSegments(const TextFiles& files, TextCuts cuts, uint64_t wanted_bytes = kBytes,
               uint64_t most_bytes = kMostBytes)
      : files_(files), cuts_(std::move(cuts)), wanted_bytes_(wanted_bytes), most_bytes_(most_bytes) {}

  // Returns false after the last segment. Throws Error(io), and Error(config) for a line of JSON that is too
  // long.
  bool next(TextSegment& segment);

 private:
  uint64_t size_of_next(const TextFiles::File& file, TextSegment& segment) const;

  const TextFiles& files_;
  TextCuts cuts_;
  uint64_t wanted_bytes_;
  uint64_t most_bytes_;
  size_t file_ = 0;
  uint64_t inside_ = 0;  // place in that file
  uint64_t line_ = 1;    // line of that file, if it has JSON lines
};

// Returns the last place at which `text` may be cut; 0 if there is none.
size_t last_cut(std::string_view text, const TextCuts& cuts);

}  // namespace terrace::data
