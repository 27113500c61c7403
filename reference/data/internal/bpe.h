// Byte-pair encoding (Sennrich et al., 2016) of one word. Its bytes or characters are joined pair by pair:
// always the pair whose merge was learnt first, and the leftmost of these. It knows words and numbers,
// nothing of text.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <terrace/reference/data/internal/tokenizer_file.h>

namespace terrace::data {

// The merge of each pair: an open hash table that is written once.
class MergeTable {
 public:
  struct Entry {
    uint64_t pair = kNone;
    uint32_t rank = 0;
    uint32_t merged = 0;
  };
  explicit MergeTable(size_t merge_count);
  // The last of two merges of one pair counts.
  void add(uint32_t left, uint32_t right, uint32_t rank, uint32_t merged);
  const Entry* find(uint32_t left, uint32_t right) const;

 private:
  static constexpr uint64_t kNone = UINT64_MAX;
  size_t place_of(uint64_t pair) const;

  std::vector<Entry> entries_;  // a power of two, at most half of it used
  uint32_t shift_;
};

class Bpe {
 public:
  // The memory in which one thread encodes.
  class Scratch;

  // Throws Error(config) when the vocabulary lacks a byte that a word may have, or the result of a merge.
  Bpe(const TokenizerFile& file, std::string_view name);

  // Appends the tokens of a word of at most 2^31 bytes.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& tokens) const;

 private:
  using Ids = std::unordered_map<std::string, uint32_t>;

  static Ids ids_of(const TokenizerFile& file, std::string_view name);
  void find_bytes(const TokenizerFile& file, const Ids& ids, std::string_view name);
  void find_characters(const TokenizerFile& file, const Ids& ids, std::string_view name);
  void find_merges(const TokenizerFile& file, const Ids& ids, std::string_view name);
  // These write a word as single tokens, before any are joined.
  void spell_bytes(std::string_view word, Scratch& scratch) const;
  void spell_characters(std::string_view word, Scratch& scratch) const;
  void merge(std::string_view word, Scratch& scratch, std::vector<int32_t>& tokens) const;

  bool is_byte_level_;
  std::array<uint32_t, 256> byte_tokens_{};  // of the byte level, or for the bytes of characters
  std::unordered_map<char32_t, uint32_t> character_tokens_;
  bool byte_fallback_;
  std::optional<uint32_t> unknown_;
  bool fuses_unknown_;
  MergeTable merges_;
  // A word that is a token is that token, without merges.
  bool ignore_merges_;
  Ids tokens_;
};

class Bpe::Scratch {
 public:
  Scratch() = default;

 private:
  friend class Bpe;
  struct Symbol {
    uint32_t token = 0;
    int32_t previous = -1;
    int32_t next = -1;
    bool alive = true;
  };
  struct Candidate {
    uint32_t rank = 0;
    int32_t left = 0;
    uint32_t left_token = 0;
    uint32_t right_token = 0;
    uint32_t merged = 0;
  };
  struct WordHash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const;
  };
  struct Place {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  static bool comes_later(const Candidate& a, const Candidate& b);
  void clear_cache();
  void add_symbol(uint32_t token);
  void push(const MergeTable& merges, int32_t left);

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  // The words already encoded, and their tokens end to end.
  std::unordered_map<std::string, Place, WordHash, std::equal_to<>> words_;
  std::vector<int32_t> word_tokens_;
};

}  // namespace terrace::data
