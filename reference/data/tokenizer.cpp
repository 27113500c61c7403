#include <terrace/reference/data/tokenizer.h>

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/text/utf8.h>
#include <terrace/base/units.h>
#include <terrace/reference/data/internal/added_tokens.h>
#include <terrace/reference/data/internal/bpe.h>
#include <terrace/reference/data/internal/byte_alphabet.h>
#include <terrace/reference/data/internal/nfc.h>
#include <terrace/reference/data/internal/split_pattern.h>
#include <terrace/reference/data/internal/text_segments.h>
#include <terrace/reference/data/internal/tokenizer_file.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

constexpr uint64_t kLargestFile = 256 * kMiB;
// Changes whenever this code gives a text other tokens than before.
constexpr uint64_t kRulesVersion = 1;

constexpr uint64_t kSpareIds = 65536;

// Where no tokenizer_config.json says how a text ends: the first of these that the tokenizer has.
constexpr std::string_view kEnds[] = {"<|endoftext|>", "<|end_of_text|>", "</s>",
                                      "<|eot_id|>",    "<|im_end|>",      "<eos>"};

std::string read_text(const std::filesystem::path& path, uint64_t most) {
  try {
    return io::read_whole_text(path, most);
  } catch (const Error& failure) {
    throw Error(failure.kind(), {"cannot read the tokenizer", path.string(), failure.parts().why(),
                                 "give a tokenizer.json, or a folder with one"});
  }
}

struct Step {
  std::optional<data::SplitPattern> pattern;
  data::SplitStep step;
};

// `text` in the form that it has before it is cut. `marked` and `composed` are where it goes when it is
// another one.
std::string_view normal_form(const data::NormalizerRules& rules, std::string_view text, bool continues,
                             std::string& marked, std::string& composed) {
  if (rules.composes) text = data::composed(text, composed);
  if (!rules.marks_spaces && (!rules.adds_mark_first || continues)) return text;
  marked.clear();
  if (rules.adds_mark_first && !continues) marked = data::kSpaceMark;
  if (!rules.marks_spaces) return marked.append(text);
  data::append_marked(marked, text);
  return marked;
}

bool begins_with_mark(std::string_view text) {
  return text.starts_with(data::kSpaceMark);
}

// Whether no token joins what stands on both sides of a place that `is_place` tells by its two sides.
template <typename IsPlace>
bool never_joined(const data::TokenizerFile& file, const IsPlace& is_place) {
  if (file.ignore_merges) return false;
  return std::none_of(file.merges.begin(), file.merges.end(),
                      [&](const data::Merge& merge) { return is_place(merge.left, merge.right); });
}

char32_t last_code_point(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return first_code_point(text.substr(begin)).value;
}

data::TextCuts cuts_of(const data::TokenizerFile& file) {
  data::TextCuts cuts;
  for (const data::AddedToken& token : file.added) {
    if (token.lstrip) cuts.never_before += first_code_point(token.content).value;
  }
  if (file.is_byte_level) return cuts;
  cuts.behind_newlines = never_joined(file, [](std::string_view left, std::string_view right) {
    return left.ends_with('\n') && !right.starts_with('\n');
  });
  const bool every_piece_begins =
      file.normalizer.adds_mark_first ||
      std::any_of(file.steps.begin(), file.steps.end(), [](const data::SplitStep& step) {
        return !step.prefix.empty() && !step.only_first_prefix;
      });
  if (!every_piece_begins) return cuts;
  // What follows an added token gets its mark; a segment that begins there would not know.
  for (const data::AddedToken& token : file.added) {
    if (token.rstrip) cuts.never_after += last_code_point(token.content);
    if (token.content.find('\n') != std::string::npos) cuts.behind_newlines = false;
  }
  return cuts;
}

// "<0x0A>": 10.
std::optional<char> byte_of_name(std::string_view name) {
  uint8_t byte = 0;
  if (name.size() != 6 || !name.starts_with("<0x") || name.back() != '>') return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + 3, name.data() + 5, byte, 16);
  if (error != std::errc() || end != name.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

constexpr char32_t kReplacementCharacter = 0xFFFD;

// Whether more bytes can make a code point of a text that is none yet.
bool is_beginning_of_code_point(std::string_view text) {
  // A second byte is at most 0x9F behind some first bytes and at least 0xA0 behind others.
  for (const char* following : {"\x80\x80\x80", "\xBF\xBF\xBF"}) {
    if (first_code_point(std::string(text) + following).bytes > text.size()) return true;
  }
  return false;
}

// How many bytes of a text mean the same whatever comes behind them.
size_t settled_bytes(std::string_view text) {
  constexpr size_t kMostUnsettled = 3;
  for (size_t count = 1; count <= std::min(kMostUnsettled, text.size()); ++count) {
    if (is_beginning_of_code_point(text.substr(text.size() - count))) return text.size() - count;
  }
  return text.size();
}

}  // namespace

struct Tokenizer::Rules {
  std::string name;
  // A few numbers may be nobody's, but a small file must not make a large table.
  uint64_t most_ids;
  data::Bpe bpe;
  data::NormalizerRules normalizer;
  data::DecoderRules decoder;
  bool is_byte_level;
  data::TextCuts cuts;
  std::vector<Step> steps;
  data::AddedTokens as_written;  // looked for before normalisation
  data::AddedTokens normalised;
  uint64_t fingerprint = 0;
  uint32_t vocabulary = 0;
  std::vector<std::string> names;  // by token; empty: there is none
  std::vector<std::string> bytes;
  std::vector<int32_t> prefix, suffix;
  std::optional<int32_t> end_of_text;

  Rules(const data::TokenizerFile& file, std::string_view file_name)
      : name(file_name),
        most_ids(2 * (file.vocabulary.size() + file.added.size()) + kSpareIds),
        bpe(file, file_name),
        normalizer(file.normalizer),
        decoder(file.decoder),
        is_byte_level(file.is_byte_level),
        cuts(cuts_of(file)),
        as_written(added(file, false)),
        normalised(added(file, true)) {
    for (const data::SplitStep& step : file.steps) add_step(step);
    if (!is_byte_level) add_words(file);
    for (const data::VocabularyEntry& entry : file.vocabulary) add_name(entry.id, entry.text);
    for (const data::AddedToken& token : file.added) add_name(token.id, token.content);
    // The library gives them back in their normal form.
    for (const data::AddedToken& token : added(file, true)) bytes[token.id] = bytes_of_name(token.content);
    vocabulary = static_cast<uint32_t>(names.size());
    prefix = checked(file.prefix);
    suffix = checked(file.suffix);
  }

  static std::vector<data::AddedToken> added(const data::TokenizerFile& file, bool normalized) {
    std::vector<data::AddedToken> tokens;
    std::string marked, composed;
    for (data::AddedToken token : file.added) {
      if (token.normalized != normalized) continue;
      if (normalized)
        token.content =
            std::string(normal_form(file.normalizer, std::string(token.content), false, marked, composed));
      tokens.push_back(std::move(token));
    }
    return tokens;
  }

  void add_step(const data::SplitStep& step) {
    Step& added_step = steps.emplace_back();
    added_step.step = step;
    if (!step.pattern.empty()) added_step.pattern.emplace(step.pattern, name);
  }

  // SentencePiece encodes a whole text as one word. Where no token goes on over a mark behind something else,
  // the words between have the same tokens by themselves, and they are seen again.
  void add_words(const data::TokenizerFile& file) {
    const bool can_cut = never_joined(file, [](std::string_view left, std::string_view right) {
      return !left.ends_with(data::kSpaceMark) && begins_with_mark(right);
    });
    if (!can_cut) return;
    data::SplitStep words;
    words.pattern = "(?:" + data::quoted_pattern(data::kSpaceMark) + ")+";
    words.match = data::SplitStep::Match::joins_next;
    add_step(words);
  }

  void add_name(uint32_t id, const std::string& text) {
    if (id >= most_ids) {
      throw Error(ErrorKind::config,
                  {"cannot use the tokenizer", name,
                   fmt::format("token {} has a number far beyond how many there are", id),
                   "give the tokenizer.json that belongs to the model, as it was published"});
    }
    if (id >= names.size()) names.resize(id + 1);
    if (names[id] == text) return;
    if (!names[id].empty()) {
      throw Error(ErrorKind::config,
                  {"cannot use the tokenizer", name,
                   fmt::format("token {} is both \"{}\" and \"{}\"", id, names[id], text),
                   "give the tokenizer.json that belongs to the model, as it was published"});
    }
    names[id] = text;
    bytes.resize(names.size());
    bytes[id] = bytes_of_name(text);
  }

  std::string bytes_of_name(const std::string& text) const {
    // What is not written in the alphabet of bytes stands for itself.
    if (is_byte_level) return data::bytes_of_characters(text).value_or(text);
    if (const auto byte = byte_of_name(text); byte && decoder.joins_bytes) return std::string(1, *byte);
    if (!decoder.reads_marks) return text;
    std::string spaced;
    for (size_t at = 0; at < text.size();) {
      const bool is_mark = begins_with_mark(std::string_view(text).substr(at));
      spaced += is_mark ? ' ' : text[at];
      at += is_mark ? data::kSpaceMark.size() : 1;
    }
    return spaced;
  }

  std::vector<int32_t> checked(const std::vector<uint32_t>& ids) const {
    std::vector<int32_t> tokens;
    for (const uint32_t id : ids) {
      if (id >= vocabulary || names[id].empty()) {
        throw Error(ErrorKind::config, {"cannot use the tokenizer", name + ": post_processor",
                                        fmt::format("there is no token {}", id),
                                        "give the tokenizer.json that belongs to the model"});
      }
      tokens.push_back(static_cast<int32_t>(id));
    }
    return tokens;
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Rules> rules) : rules_(std::move(rules)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::parse(std::string_view json, std::string_view name) {
  if (json.size() > kLargestFile) {
    throw Error(ErrorKind::config,
                {"cannot read the tokenizer", std::string(name),
                 fmt::format("it has {}, more than any tokenizer", format_bytes(json.size())),
                 "give a tokenizer.json"});
  }
  Tokenizer tokenizer(std::make_unique<Rules>(data::parse_tokenizer_file(json, name), name));
  tokenizer.rules_->fingerprint = XXH3_64bits_withSeed(json.data(), json.size(), kRulesVersion);
  for (const std::string_view end : kEnds) {
    tokenizer.set_end_of_text(std::string(end));
    if (tokenizer.end_of_text()) break;
  }
  return tokenizer;
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const std::filesystem::path file = io::is_folder(path) ? path / "tokenizer.json" : path;
  Tokenizer tokenizer = parse(read_text(file, kLargestFile), file.string());
  const std::filesystem::path config = file.parent_path() / "tokenizer_config.json";
  if (!io::is_there(config)) return tokenizer;
  const JsonNode json = parse_json(read_text(config, kMiB * 16), config.string());
  const JsonNode* end = json.find("eos_token");  // a text, or an object with it
  if (end == nullptr) return tokenizer;
  const JsonNode* content = end->find("content");
  tokenizer.set_end_of_text(content != nullptr ? content->text : end->text);
  return tokenizer;
}

void Tokenizer::set_end_of_text(const std::string& name) {
  rules_->end_of_text.reset();
  if (name.empty()) return;
  const auto found = std::find(rules_->names.begin(), rules_->names.end(), name);
  if (found != rules_->names.end()) rules_->end_of_text = static_cast<int32_t>(found - rules_->names.begin());
}

uint32_t Tokenizer::vocabulary() const {
  return rules_->vocabulary;
}
uint64_t Tokenizer::fingerprint() const {
  const int64_t end = rules_->end_of_text ? *rules_->end_of_text : -1;
  return XXH3_64bits_withSeed(&end, sizeof(end), rules_->fingerprint);
}
std::optional<int32_t> Tokenizer::end_of_text() const {
  return rules_->end_of_text;
}
const std::vector<int32_t>& Tokenizer::prefix() const {
  return rules_->prefix;
}
const std::vector<int32_t>& Tokenizer::suffix() const {
  return rules_->suffix;
}

std::string Tokenizer::description() const {
  return fmt::format("{} BPE, {} tokens{}", rules_->is_byte_level ? "byte-level" : "SentencePiece",
                     rules_->vocabulary, rules_->normalizer.composes ? ", NFC" : "");
}

const std::string& Tokenizer::name_of(int32_t token) const {
  TERRACE_ASSERT(token >= 0 && token < static_cast<int32_t>(rules_->vocabulary), fmt::format("{}", token));
  return rules_->names[static_cast<size_t>(token)];
}

std::string_view Tokenizer::bytes_of(int32_t token, bool begins_text) const {
  using Begin = data::DecoderRules::Begin;
  if (token < 0 || token >= static_cast<int32_t>(rules_->vocabulary)) return {};
  std::string_view bytes = rules_->bytes[static_cast<size_t>(token)];
  if (!begins_text || rules_->decoder.begin == Begin::as_it_is) return bytes;
  // A mark is a space in `bytes`; a token has no other.
  const bool drops_all = rules_->decoder.begin == Begin::drops_marks_of_first_token;
  while (bytes.starts_with(' ')) {
    bytes.remove_prefix(1);
    if (!drops_all) break;
  }
  return bytes;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  Decoder decoder(*this);
  std::string text;
  for (const int32_t token : tokens) text += decoder.add(token);
  return text + decoder.finish();
}

Tokenizer::Decoder::Decoder(const Tokenizer& tokenizer, bool begins_text)
    : tokenizer_(tokenizer), begins_text_(begins_text) {}

std::string Tokenizer::Decoder::add(int32_t token) {
  const std::string_view bytes = tokenizer_.bytes_of(token, begins_text_);
  begins_text_ = false;
  if (bytes.empty()) return {};
  if (tokenizer_.rules_->decoder.joins_bytes && byte_of_name(tokenizer_.name_of(token))) {
    run_ += bytes;
    return {};
  }
  end_run();
  pending_ += bytes;
  return take(settled_bytes(pending_));
}

std::string Tokenizer::Decoder::finish() {
  end_run();
  return take(pending_.size());
}

void Tokenizer::Decoder::end_run() {
  if (well_formed_bytes(run_) == run_.size()) {
    pending_ += run_;
  } else {
    for (size_t i = 0; i < run_.size(); ++i) append_utf8(pending_, kReplacementCharacter);
  }
  run_.clear();
}

std::string Tokenizer::Decoder::take(size_t bytes) {
  std::string text;
  size_t first_broken = 0;
  replace_broken(std::string_view(pending_).substr(0, bytes), text, first_broken);
  pending_.erase(0, bytes);
  return text;
}

data::TextCuts Tokenizer::cuts() const {
  return rules_->cuts;
}

struct Tokenizer::Encoder::Scratch {
  data::SplitPattern::Scratch match;
  data::Bpe::Scratch bpe;
  std::string repaired;
  std::string marked, composed;
  // Of the steps, one by one; a step never recurses into itself.
  std::vector<std::string> prefixed;
  // Of what comes next: it goes on with what stood in front of the text, or begins the text.
  bool is_continuation = false;
  bool begins_text = false;
};

Tokenizer::Encoder::Encoder(const Tokenizer& tokenizer)
    : rules_(*tokenizer.rules_), scratch_(std::make_unique<Scratch>()) {
  scratch_->prefixed.resize(rules_.steps.size());
}
Tokenizer::Encoder::Encoder(Encoder&&) noexcept = default;
Tokenizer::Encoder::~Encoder() = default;

void Tokenizer::Encoder::encode(std::string_view text, std::vector<int32_t>& tokens, bool is_continuation) {
  using Piece = data::AddedTokens::Piece;
  scratch_->is_continuation = is_continuation;
  scratch_->begins_text = !is_continuation;
  const auto take = [&](const data::AddedToken& token) {
    tokens.push_back(static_cast<int32_t>(token.id));
    scratch_->is_continuation = scratch_->begins_text = false;
  };
  if (well_formed_bytes(text) != text.size()) {
    size_t first = 0;
    replace_broken(text, scratch_->repaired, first);
    text = scratch_->repaired;
  }
  rules_.as_written.split(text, scratch_->match, [&](const Piece& written) {
    if (written.token != nullptr) {
      take(*written.token);
      return;
    }
    const std::string_view normal = normal_form(rules_.normalizer, written.text, scratch_->is_continuation,
                                                scratch_->marked, scratch_->composed);
    rules_.normalised.split(normal, scratch_->match, [&](const Piece& piece) {
      if (piece.token != nullptr) {
        take(*piece.token);
      } else {
        cut(piece.text, 0, tokens);
      }
    });
  });
}

// The piece with what a step puts in front of it, before it cuts.
std::string_view Tokenizer::Encoder::prefixed(std::string_view text, size_t step) {
  const data::SplitStep& rule = rules_.steps[step].step;
  const bool continues = std::exchange(scratch_->is_continuation, false);
  if (rule.prefix.empty() && !rule.marks_spaces) return text;
  const bool begins = std::exchange(scratch_->begins_text, false);
  const bool has_prefix = text.starts_with(rule.prefix) || (rule.marks_spaces && text.front() == ' ');
  const bool wants_prefix = !rule.prefix.empty() && !continues && (begins || !rule.only_first_prefix);
  if (!rule.marks_spaces && (has_prefix || !wants_prefix)) return text;
  std::string& other = scratch_->prefixed[step];
  other.clear();
  if (wants_prefix && !has_prefix) other = rule.prefix;
  if (!rule.marks_spaces) return other.append(text);
  data::append_marked(other, text);
  return other;
}

// What the steps from `step` on make of a piece.
void Tokenizer::Encoder::cut(std::string_view text, size_t step, std::vector<int32_t>& tokens) {
  using Match = data::SplitStep::Match;
  if (text.empty()) return;
  if (step == rules_.steps.size()) return rules_.bpe.encode(text, scratch_->bpe, tokens);
  const auto& [pattern, rule] = rules_.steps[step];
  text = prefixed(text, step);
  if (!pattern) return cut(text, step + 1, tokens);
  size_t done = 0;
  for (size_t from = 0; from <= text.size();) {
    const auto match = pattern->find(text, from, scratch_->match);
    if (!match) break;
    const size_t middle = rule.match == Match::joins_previous ? match->end : match->begin;
    if (!rule.drop_between) cut(text.substr(done, middle - done), step + 1, tokens);
    done = rule.match == Match::joins_next ? match->begin : match->end;
    if (rule.match == Match::isolated) cut(text.substr(middle, done - middle), step + 1, tokens);
    if (done > 0) scratch_->begins_text = false;
    from = match->end;
    // An empty match is a cut; the next one is looked for behind the next character.
    if (match->begin == match->end) from += std::max<size_t>(1, first_code_point(text.substr(from)).bytes);
  }
  if (!rule.drop_between) cut(text.substr(done), step + 1, tokens);
}

}  // namespace terrace
