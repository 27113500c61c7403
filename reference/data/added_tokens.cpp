#include <algorithm>

#include <terrace/base/text/utf8.h>
#include <terrace/reference/data/internal/added_tokens.h>

namespace terrace::data {
namespace {

constexpr const char* kName = "added tokens";
// \w of the reference (Unicode Technical Standard 18, Annex C).
constexpr const char* kWordCharacter = "\\G[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";

// Where the last code point of a non-empty text begins.
size_t last_begin(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), word_(kWordCharacter, kName), space_("\\G\\p{White_Space}", kName) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) begins_[static_cast<uint8_t>(token.content.front())] = true;
}

// The longest token that `text` begins with: the range of tokens that agree with it, narrowed byte by byte.
const AddedToken* AddedTokens::longest_at(std::string_view text) const {
  auto begin = tokens_.begin();
  auto end = tokens_.end();
  const AddedToken* longest = nullptr;
  for (size_t depth = 0; depth < text.size() && begin != end; ++depth) {
    const auto byte = static_cast<uint8_t>(text[depth]);
    // In sorted order what ends before this depth comes first.
    const auto at_depth = [depth](const AddedToken& token) {
      return depth < token.content.size() ? static_cast<int>(static_cast<uint8_t>(token.content[depth])) : -1;
    };
    begin = std::partition_point(begin, end, [&](const AddedToken& token) { return at_depth(token) < byte; });
    end = std::partition_point(begin, end, [&](const AddedToken& token) { return at_depth(token) == byte; });
    if (begin != end && begin->content.size() == depth + 1) longest = &*begin;
  }
  return longest;
}

bool AddedTokens::is_single_word(std::string_view text, size_t begin, size_t end,
                                 SplitPattern::Scratch& scratch) const {
  if (begin > 0 && word_.find(text, last_begin(text.substr(0, begin)), scratch)) return false;
  return end == text.size() || !word_.find(text, end, scratch);
}

size_t AddedTokens::space_before(std::string_view text, size_t begin, size_t least,
                                 SplitPattern::Scratch& scratch) const {
  while (begin > least) {
    const size_t last = last_begin(text.substr(0, begin));
    if (!space_.find(text, last, scratch)) break;
    begin = last;
  }
  return begin;
}

size_t AddedTokens::space_after(std::string_view text, size_t end, SplitPattern::Scratch& scratch) const {
  while (end < text.size()) {
    const auto match = space_.find(text, end, scratch);
    if (!match) break;
    end = match->end;
  }
  return end;
}

void AddedTokens::split(std::string_view text, SplitPattern::Scratch& scratch,
                        FunctionRef<void(const Piece&)> piece) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    if (!begins_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const AddedToken* token = longest_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    at = end;
    if (token->single_word && !is_single_word(text, begin, end, scratch)) continue;
    if (token->lstrip) begin = space_before(text, begin, done, scratch);
    if (token->rstrip) at = end = space_after(text, end, scratch);
    if (begin > done) piece({text.substr(done, begin - done), nullptr});
    piece({text.substr(begin, end - begin), token});
    done = end;
  }
  if (done < text.size()) piece({text.substr(done), nullptr});
}

}  // namespace terrace::data
