#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <optional>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/text/utf8.h>
#include <terrace/reference/data/internal/bpe.h>
#include <terrace/reference/data/internal/byte_alphabet.h>

namespace terrace::data {
namespace {

// The cache of words holds what text is mostly made of, in a few MiB.
constexpr size_t kMostWords = 1 << 16;
constexpr size_t kLongestCachedWord = 64;

[[noreturn]] void refuse(std::string_view name, const std::string& what, const std::string& reason) {
  throw Error(ErrorKind::config, {"cannot use the tokenizer", fmt::format("{}: {}", name, what), reason,
                                  "give the tokenizer.json that belongs to the model, as it was published"});
}

std::string character_text(uint32_t byte) {
  std::string text;
  append_utf8(text, character_of_byte(static_cast<uint8_t>(byte)));
  return text;
}

// These bytes are in no text (RFC 3629).
bool occurs_in_utf8(uint32_t byte) {
  return byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
}

}  // namespace

MergeTable::MergeTable(size_t merge_count)
    : entries_(std::bit_ceil(2 * merge_count + 2)),
      shift_(64 - static_cast<uint32_t>(std::bit_width(entries_.size() - 1))) {}

// The place of the pair, or the free one where it would be.
size_t MergeTable::place_of(uint64_t pair) const {
  constexpr uint64_t kGolden = 0x9E37'79B9'7F4A'7C15;
  uint64_t mixed = (pair ^ pair >> 32) * kGolden;
  mixed ^= mixed >> 29;
  size_t place = static_cast<size_t>(mixed * kGolden >> shift_);
  while (entries_[place].pair != pair && entries_[place].pair != kNone)
    place = (place + 1) & (entries_.size() - 1);
  return place;
}

void MergeTable::add(uint32_t left, uint32_t right, uint32_t rank, uint32_t merged) {
  const uint64_t pair = uint64_t{left} << 32 | right;
  entries_[place_of(pair)] = {pair, rank, merged};
}

const MergeTable::Entry* MergeTable::find(uint32_t left, uint32_t right) const {
  const uint64_t pair = uint64_t{left} << 32 | right;
  const Entry& entry = entries_[place_of(pair)];
  return entry.pair == pair ? &entry : nullptr;
}

Bpe::Bpe(const TokenizerFile& file, std::string_view name)
    : is_byte_level_(file.is_byte_level),
      byte_fallback_(file.byte_fallback),
      fuses_unknown_(file.fuses_unknown),
      merges_(file.merges.size()),
      ignore_merges_(file.ignore_merges) {
  const Ids ids = ids_of(file, name);
  is_byte_level_ ? find_bytes(file, ids, name) : find_characters(file, ids, name);
  find_merges(file, ids, name);
}

Bpe::Ids Bpe::ids_of(const TokenizerFile& file, std::string_view name) {
  Ids ids;
  ids.reserve(file.vocabulary.size());
  for (const VocabularyEntry& entry : file.vocabulary) {
    if (!ids.emplace(entry.text, entry.id).second)
      refuse(name, "model.vocab", fmt::format("\"{}\" is in it twice", entry.text));
  }
  return ids;
}

void Bpe::find_bytes(const TokenizerFile& file, const Ids& ids, std::string_view name) {
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(character_text(byte));
    if (found != ids.end()) {
      byte_tokens_[byte] = found->second;
    } else if (occurs_in_utf8(byte)) {
      refuse(name, "model.vocab",
             fmt::format("byte {:#04x} (\"{}\") is not in it, so it is not of the byte level", byte,
                         character_text(byte)));
    }
  }
  if (!ignore_merges_) return;
  for (const VocabularyEntry& entry : file.vocabulary) {
    if (std::optional<std::string> bytes = bytes_of_characters(entry.text)) tokens_[*bytes] = entry.id;
  }
}

void Bpe::find_characters(const TokenizerFile& file, const Ids& ids, std::string_view name) {
  for (const VocabularyEntry& entry : file.vocabulary) {
    const CodePoint point = first_code_point(entry.text);
    if (point.bytes > 0 && point.bytes == entry.text.size()) character_tokens_[point.value] = entry.id;
  }
  for (uint32_t byte = 0; byte_fallback_ && byte < 256; ++byte) {
    const std::string text = fmt::format("<0x{:02X}>", byte);
    const auto found = ids.find(text);
    if (found != ids.end()) {
      byte_tokens_[byte] = found->second;
    } else if (occurs_in_utf8(byte)) {
      refuse(name, "model.vocab",
             fmt::format("\"{}\" is not in it, and byte_fallback takes all bytes", text));
    }
  }
  if (!byte_fallback_) {
    const auto found = ids.find(file.unknown);
    if (found == ids.end())
      refuse(name, "model.unk_token", fmt::format("\"{}\" is not in the vocabulary", file.unknown));
    unknown_ = found->second;
  }
  if (ignore_merges_) tokens_ = ids;
}

void Bpe::find_merges(const TokenizerFile& file, const Ids& ids, std::string_view name) {
  const auto id_of = [&](const std::string& token, size_t merge) {
    const auto found = ids.find(token);
    if (found == ids.end())
      refuse(name, fmt::format("model.merges, number {}", merge),
             fmt::format("\"{}\" is not in the vocabulary", token));
    return found->second;
  };
  for (size_t m = 0; m < file.merges.size(); ++m) {
    const auto& [left, right] = file.merges[m];
    merges_.add(id_of(left, m), id_of(right, m), static_cast<uint32_t>(m), id_of(left + right, m));
  }
}

size_t Bpe::Scratch::WordHash::operator()(std::string_view word) const {
  return XXH3_64bits(word.data(), word.size());
}

bool Bpe::Scratch::comes_later(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

void Bpe::Scratch::clear_cache() {
  words_.clear();
  word_tokens_.clear();
}

void Bpe::Scratch::add_symbol(uint32_t token) {
  const auto place = static_cast<int32_t>(symbols_.size());
  symbols_.push_back({token, place - 1, place + 1, true});
}

void Bpe::Scratch::push(const MergeTable& merges, int32_t left) {
  if (left < 0) return;
  const Symbol& symbol = symbols_[static_cast<size_t>(left)];
  if (symbol.next < 0) return;
  const uint32_t right = symbols_[static_cast<size_t>(symbol.next)].token;
  const MergeTable::Entry* entry = merges.find(symbol.token, right);
  if (entry == nullptr) return;
  heap_.push_back({entry->rank, left, symbol.token, right, entry->merged});
  std::push_heap(heap_.begin(), heap_.end(), comes_later);
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& tokens) const {
  if (word.size() > kLongestCachedWord) return merge(word, scratch, tokens);
  const auto found = scratch.words_.find(word);
  if (found != scratch.words_.end()) {
    const auto first = scratch.word_tokens_.begin() + found->second.first;
    tokens.insert(tokens.end(), first, first + found->second.count);
    return;
  }
  if (scratch.words_.size() >= kMostWords) scratch.clear_cache();
  const size_t before = tokens.size();
  merge(word, scratch, tokens);
  const auto first = static_cast<uint32_t>(scratch.word_tokens_.size());
  scratch.word_tokens_.insert(scratch.word_tokens_.end(), tokens.begin() + static_cast<ptrdiff_t>(before),
                              tokens.end());
  scratch.words_.emplace(word, Scratch::Place{first, static_cast<uint32_t>(tokens.size() - before)});
}

void Bpe::spell_bytes(std::string_view word, Scratch& scratch) const {
  for (const char byte : word) scratch.add_symbol(byte_tokens_[static_cast<uint8_t>(byte)]);
}

void Bpe::spell_characters(std::string_view word, Scratch& scratch) const {
  bool follows_unknown = false;
  while (!word.empty()) {
    const CodePoint point = first_code_point(word);
    const size_t size = std::max<size_t>(1, point.bytes);
    const auto found = character_tokens_.find(point.value);
    if (found != character_tokens_.end()) {
      scratch.add_symbol(found->second);
    } else if (byte_fallback_) {
      spell_bytes(word.substr(0, size), scratch);
    } else if (!follows_unknown || !fuses_unknown_) {
      scratch.add_symbol(*unknown_);
    }
    follows_unknown = found == character_tokens_.end();
    word.remove_prefix(size);
  }
}

void Bpe::merge(std::string_view word, Scratch& scratch, std::vector<int32_t>& tokens) const {
  TERRACE_ASSERT(word.size() < INT32_MAX, fmt::format("a word of {} bytes", word.size()));
  if (ignore_merges_) {
    const auto whole = tokens_.find(std::string(word));
    if (whole != tokens_.end()) {
      tokens.push_back(static_cast<int32_t>(whole->second));
      return;
    }
  }
  auto& symbols = scratch.symbols_;
  auto& heap = scratch.heap_;
  symbols.clear();
  heap.clear();
  is_byte_level_ ? spell_bytes(word, scratch) : spell_characters(word, scratch);
  if (symbols.empty()) return;
  symbols.back().next = -1;
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i + 1 < count; ++i) scratch.push(merges_, i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), Scratch::comes_later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<size_t>(best.left)];
    // Either side may have become part of another token since.
    if (!left.alive || left.token != best.left_token || left.next < 0) continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.token != best.right_token) continue;
    right.alive = false;
    left.token = best.merged;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.left;
    scratch.push(merges_, left.previous);
    scratch.push(merges_, best.left);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next)
    tokens.push_back(static_cast<int32_t>(symbols[static_cast<size_t>(i)].token));
}

}  // namespace terrace::data
