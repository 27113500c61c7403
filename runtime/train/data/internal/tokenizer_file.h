// What a tokenizer.json says, checked: everything in it that decides about tokens is in TokenizerFile or has
// been refused by its key. Works on bytes in memory, takes a small multiple of them, and touches no file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::data {

struct AddedToken {
  uint32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no letter touches it
  bool lstrip = false;       // with the white space in front of it
  bool rstrip = false;       // with the white space behind it
  bool normalized = false;   // looked for after normalisation
  bool special = false;
};

// What SentencePiece writes for a space (Kudo and Richardson, 2018): U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// Appends a text with kSpaceMark in the place of every space.
void append_marked(std::string& marked, std::string_view text);

// Cuts every piece of text into smaller ones.
struct SplitStep {
  // What becomes of a match. Isolated: it is a piece, and so is what lies between two.
  enum class Match : uint8_t { isolated, dropped, joins_previous, joins_next };

  bool marks_spaces = false;  // a space becomes kSpaceMark, first of all
  // Put in front of a piece that does not begin with it, before it is cut.
  std::string prefix;
  bool only_first_prefix = false;  // only in front of what the text begins with
  std::string pattern;             // as PCRE2 reads it; empty: no cut
  Match match = Match::isolated;
  bool drop_between = false;  // what does not match
};

// What becomes of a text before it is cut.
struct NormalizerRules {
  bool composes = false;         // to NFC
  bool marks_spaces = false;     // a space becomes kSpaceMark
  bool adds_mark_first = false;  // kSpaceMark goes in front
};

// How tokens become text, for those that are not of the byte level.
struct DecoderRules {
  enum class Begin : uint8_t { as_it_is, drops_one_space, drops_marks_of_first_token };

  bool is_byte_level = false;
  bool reads_marks = false;  // kSpaceMark is a space
  bool joins_bytes = false;  // "<0x0A>" is that byte
  Begin begin = Begin::as_it_is;
};

struct VocabularyEntry {
  std::string text;
  uint32_t id = 0;
};
struct Merge {
  std::string left;
  std::string right;
};

struct TokenizerFile {
  NormalizerRules normalizer;
  std::vector<SplitStep> steps;
  bool is_byte_level = false;  // words are spelt in bytes, otherwise in characters
  DecoderRules decoder;
  std::vector<AddedToken> added;
  std::vector<VocabularyEntry> vocabulary;
  std::vector<Merge> merges;   // the first goes first
  bool ignore_merges = false;  // a word that is a token is that token
  // A character that is no token: its bytes, as "<0x0A>"; else the token for what is unknown.
  bool byte_fallback = false;
  std::string unknown;
  bool fuses_unknown = false;  // several in a row are one
  // What stands in front of and behind a text.
  std::vector<uint32_t> prefix;
  std::vector<uint32_t> suffix;
};

// Throws Error(config) naming the byte or the key; `name` stands for the file.
TokenizerFile parse_tokenizer_file(std::string_view json, std::string_view name);

}  // namespace terrace::data
