#include <terrace/runtime/data/tokenizer.h>

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include <terrace/aio/file.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/base/utf8.h>
#include <terrace/runtime/config/json_document.h>
#include <terrace/runtime/data/internal/added_tokens.h>
#include <terrace/runtime/data/internal/bpe.h>
#include <terrace/runtime/data/internal/byte_alphabet.h>
#include <terrace/runtime/data/internal/nfc.h>
#include <terrace/runtime/data/internal/split_pattern.h>
#include <terrace/runtime/data/internal/tokenizer_file.h>

namespace terrace {
namespace {

constexpr uint64_t kLargestFile = 256 * kMiB;
// Changes whenever this code gives a text other tokens than before.
constexpr uint64_t kRulesVersion = 1;

constexpr uint64_t kSpareIds = 65536;

// Where no tokenizer_config.json says how a text ends: the first of these that the tokenizer has.
constexpr std::string_view kEnds[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|eot_id|>", "<|im_end|>"};

std::string read_text(const std::filesystem::path& path, uint64_t most) {
  try {
    const std::vector<std::byte> bytes = io::read_whole_file(path, most);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  } catch (const Error& failure) {
    throw Error(failure.kind(), {"cannot read the tokenizer", path.string(), failure.parts().reason,
                                 "give a tokenizer.json, or a folder with one"});
  }
}

struct Step {
  std::optional<data::SplitPattern> pattern;
  data::SplitStep step;
};

}  // namespace

struct Tokenizer::Parts {
  std::string name;
  // A few numbers may be nobody's, but a small file must not make a large table.
  uint64_t most_ids;
  data::Bpe bpe;
  bool normalises;
  std::vector<Step> steps;
  data::AddedTokens as_written;  // looked for before normalisation
  data::AddedTokens normalised;
  uint64_t fingerprint = 0;
  uint32_t vocabulary = 0;
  std::vector<std::string> names;  // by token; empty: there is none
  std::vector<std::string> bytes;
  std::vector<int32_t> prefix, suffix;
  std::optional<int32_t> end_of_text;

  Parts(const data::TokenizerFile& file, std::string_view file_name)
      : name(file_name),
        most_ids(2 * (file.vocabulary.size() + file.added.size()) + kSpareIds),
        bpe(file, file_name),
        normalises(file.normalises),
        as_written(added(file, false)),
        normalised(added(file, true)) {
    for (const data::SplitStep& step : file.steps) {
      Step& added_step = steps.emplace_back();
      added_step.step = step;
      if (!step.pattern.empty()) added_step.pattern.emplace(step.pattern, name);
    }
    for (const data::VocabularyEntry& entry : file.vocabulary) add_name(entry.id, entry.text);
    for (const data::AddedToken& token : file.added) add_name(token.id, token.content);
    vocabulary = static_cast<uint32_t>(names.size());
    prefix = checked(file.prefix);
    suffix = checked(file.suffix);
  }

  static std::vector<data::AddedToken> added(const data::TokenizerFile& file, bool normalized) {
    std::vector<data::AddedToken> tokens;
    std::string other;
    for (data::AddedToken token : file.added) {
      if (token.normalized != normalized) continue;
      if (normalized && file.normalises) token.content = data::composed(std::string(token.content), other);
      tokens.push_back(std::move(token));
    }
    return tokens;
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
    // What is not written in the alphabet of bytes stands for itself.
    bytes[id] = data::bytes_of_characters(text).value_or(text);
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

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
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
  Tokenizer tokenizer(std::make_unique<Parts>(data::parse_tokenizer_file(json, name), name));
  tokenizer.parts_->fingerprint = XXH3_64bits_withSeed(json.data(), json.size(), kRulesVersion);
  for (const std::string_view end : kEnds) {
    tokenizer.set_end_of_text(std::string(end));
    if (tokenizer.end_of_text()) break;
  }
  return tokenizer;
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path file =
      std::filesystem::is_directory(path, error) ? path / "tokenizer.json" : path;
  Tokenizer tokenizer = parse(read_text(file, kLargestFile), file.string());
  const std::filesystem::path config = file.parent_path() / "tokenizer_config.json";
  if (!std::filesystem::exists(config, error)) return tokenizer;
  const JsonNode json = parse_json(read_text(config, kMiB * 16), config.string());
  for (const JsonMember& member : json.members) {
    if (member.key != "eos_token") continue;
    std::string name = member.value.text;  // a text, or an object with it
    for (const JsonMember& inner : member.value.members) {
      if (inner.key == "content") name = inner.value.text;
    }
    tokenizer.set_end_of_text(name);
  }
  return tokenizer;
}

void Tokenizer::set_end_of_text(const std::string& name) {
  parts_->end_of_text.reset();
  if (name.empty()) return;
  const auto found = std::find(parts_->names.begin(), parts_->names.end(), name);
  if (found != parts_->names.end()) parts_->end_of_text = static_cast<int32_t>(found - parts_->names.begin());
}

uint32_t Tokenizer::vocabulary() const {
  return parts_->vocabulary;
}
uint64_t Tokenizer::fingerprint() const {
  const int64_t end = parts_->end_of_text ? *parts_->end_of_text : -1;
  return XXH3_64bits_withSeed(&end, sizeof(end), parts_->fingerprint);
}
std::optional<int32_t> Tokenizer::end_of_text() const {
  return parts_->end_of_text;
}
const std::vector<int32_t>& Tokenizer::prefix() const {
  return parts_->prefix;
}
const std::vector<int32_t>& Tokenizer::suffix() const {
  return parts_->suffix;
}

std::string Tokenizer::description() const {
  return fmt::format("byte-level BPE, {} tokens{}", parts_->vocabulary, parts_->normalises ? ", NFC" : "");
}

const std::string& Tokenizer::name_of(int32_t token) const {
  TERRACE_ASSERT(token >= 0 && token < static_cast<int32_t>(parts_->vocabulary), fmt::format("{}", token));
  return parts_->names[static_cast<size_t>(token)];
}

std::string_view Tokenizer::bytes_of(int32_t token) const {
  if (token < 0 || token >= static_cast<int32_t>(parts_->vocabulary)) return {};
  return parts_->bytes[static_cast<size_t>(token)];
}

struct Tokenizer::Encoder::Scratch {
  data::SplitPattern::Scratch match;
  data::Bpe::Scratch bpe;
  std::string repaired;
  std::string composed;
  // Of the steps, one by one; a step never recurses into itself.
  std::vector<std::string> with_space;
  bool is_continuation = false;  // of what comes next
};

Tokenizer::Encoder::Encoder(const Tokenizer& tokenizer)
    : parts_(*tokenizer.parts_), scratch_(std::make_unique<Scratch>()) {
  scratch_->with_space.resize(parts_.steps.size());
}
Tokenizer::Encoder::Encoder(Encoder&&) noexcept = default;
Tokenizer::Encoder::~Encoder() = default;

void Tokenizer::Encoder::encode(std::string_view text, std::vector<int32_t>& tokens, bool is_continuation) {
  using Piece = data::AddedTokens::Piece;
  scratch_->is_continuation = is_continuation;
  const auto take = [&](const data::AddedToken& token) {
    tokens.push_back(static_cast<int32_t>(token.id));
    scratch_->is_continuation = false;
  };
  if (well_formed_bytes(text) != text.size()) {
    size_t first = 0;
    replace_broken(text, scratch_->repaired, first);
    text = scratch_->repaired;
  }
  parts_.as_written.split(text, scratch_->match, [&](const Piece& written) {
    if (written.token != nullptr) {
      take(*written.token);
      return;
    }
    const std::string_view normal =
        parts_.normalises ? data::composed(written.text, scratch_->composed) : written.text;
    parts_.normalised.split(normal, scratch_->match, [&](const Piece& piece) {
      if (piece.token != nullptr) {
        take(*piece.token);
      } else {
        cut(piece.text, 0, tokens);
      }
    });
  });
}

// What the steps from `step` on make of a piece.
void Tokenizer::Encoder::cut(std::string_view text, size_t step, std::vector<int32_t>& tokens) {
  if (text.empty()) return;
  if (step == parts_.steps.size()) return parts_.bpe.encode(text, scratch_->bpe, tokens);
  const auto& [pattern, rule] = parts_.steps[step];
  const bool begins = !std::exchange(scratch_->is_continuation, false);
  if (rule.add_prefix_space && begins && text.front() != ' ') {
    std::string& spaced = scratch_->with_space[step];
    spaced.assign(1, ' ').append(text);
    text = spaced;
  }
  if (!pattern) return cut(text, step + 1, tokens);
  size_t done = 0;
  for (size_t from = 0; from <= text.size();) {
    const auto match = pattern->find(text, from, scratch_->match);
    if (!match) break;
    if (!rule.drop_between) cut(text.substr(done, match->begin - done), step + 1, tokens);
    if (!rule.drop_matches) cut(text.substr(match->begin, match->end - match->begin), step + 1, tokens);
    done = from = match->end;
    // An empty match is a cut; the next one is looked for behind the next character.
    if (match->begin == match->end) from += std::max<size_t>(1, first_code_point(text.substr(from)).bytes);
  }
  if (!rule.drop_between) cut(text.substr(done), step + 1, tokens);
}

}  // namespace terrace
