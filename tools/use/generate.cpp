// `terrace generate`: continues a text with a trained model, token by token on stdout. Where the device
// budget has room for the keys and values of all tokens, a token is one row through the model; else it is
// computed from the whole sequence again. The text is the same.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include <terrace/aio/folder.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/text/shown_text.h>
#include <terrace/base/units.h>
#include <terrace/reference/data/byte_tokens.h>
#include <terrace/reference/data/tokenizer.h>
#include <terrace/reference/model/compute/counter_random.h>
#include <terrace/reference/model/transformer/sampling.h>

#include "command_line.h"
#include "console.h"
#include "flags/model_flags.h"
#include "flags/model_path.h"
#include "text_table.h"

namespace terrace {
namespace {

// This number separates the random numbers of generation from others with the same seed.
constexpr uint64_t kGenerationStream = 0x6765'6e65'7261'7465;  // "generate"

constexpr const char* kGenerateExamples =
    "The keys and values of all tokens are kept in device memory, so that a token is one row through the "
    "model. Where the budget does not hold them, and for a text longer than the model's context, the whole "
    "sequence is computed again for every token.\n\n"
    "Examples:\n"
    "  terrace generate --checkpoint checkpoints --prompt \"Permission is hereby granted\" --max-new-tokens "
    "100\n"
    "  terrace generate --model models/Qwen2.5-0.5B --prompt \"The sea\" --temperature 0.7 --top-p 0.9 "
    "--device-memory 512MiB\n";

// Vocabulary: converts between text and tokens, by a tokenizer or as bytes.
class Vocabulary {
 public:
  Vocabulary(const std::string& flag, const std::filesystem::path& folder, uint32_t model_vocabulary) {
    if (!flag.empty()) {
      tokenizer_.emplace(Tokenizer::load(tokenizer_path(flag)));
    } else if (!folder.empty() && io::is_there(folder / "tokenizer.json")) {
      tokenizer_.emplace(Tokenizer::load(folder));
    } else if (model_vocabulary != ByteTokens::kVocabulary) {
      refuse_missing("--tokenizer", "give the tokenizer.json that the model was trained with",
                     fmt::format("the model has {} tokens, so it is not a model of bytes", model_vocabulary));
    }
    if (tokenizer_ && tokenizer_->vocabulary() > model_vocabulary) {
      refuse(
          "--tokenizer",
          fmt::format("it has {} tokens, and the model has {}", tokenizer_->vocabulary(), model_vocabulary),
          "give the tokenizer.json that the model was trained with");
    }
  }

  std::vector<int32_t> tokens_of(const std::string& prompt) const {
    std::vector<int32_t> tokens;
    if (tokenizer_) {
      tokens = tokenizer_->prefix();
      Tokenizer::Encoder(*tokenizer_).encode(prompt, tokens);
      // A text begins where another one ended, so the end token comes first.
      if (tokens.empty() && end()) tokens.push_back(*end());
    } else {
      for (const char byte : prompt) tokens.push_back(static_cast<uint8_t>(byte));
    }
    if (tokens.empty()) refuse_missing("--prompt", "give a text to go on with: --prompt TEXT, or on stdin");
    return tokens;
  }
  std::optional<int32_t> end() const { return tokenizer_ ? tokenizer_->end_of_text() : std::nullopt; }
  const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }

 private:
  std::optional<Tokenizer> tokenizer_;
};

// Returns the text on stdin. The newline at its end is the shell's, and no part of a prompt.
std::string piped_prompt(Log& log) {
  constexpr size_t kMostBytes = 16 * kMiB;
  constexpr int kSilenceMs = 2000;
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (poll(&input, 1, kSilenceMs) == 0)
    log.info("waiting for the text to go on with on stdin; --prompt TEXT gives it");
  std::string text;
  std::array<char, 1 << 16> part;
  while (true) {
    const ssize_t size = read(STDIN_FILENO, part.data(), part.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno != EBADF)
      refuse("--prompt", "stdin: " + system_reason(errno), "give --prompt TEXT");
    if (size <= 0) break;
    text.append(part.data(), static_cast<size_t>(size));
    if (text.size() > kMostBytes)
      refuse("--prompt", fmt::format("stdin has more than {}", format_bytes(kMostBytes)),
             "give a shorter text");
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// How tokens were computed, for the last line.
std::string way_of(const CacheOutcome& cache) {
  if (!cache.is_used) return "each from the whole sequence again";
  return fmt::format("with {} of keys and values kept", format_bytes(cache.bytes));
}

// What the model has made of the prompt. A text that is written as it comes is not kept.
struct Continuation {
  std::string text;  // with --json
  uint64_t token_count = 0;
  bool is_ended = false;  // by the model; else by --max-new-tokens
};

class Generate final : public Subcommand {
 public:
  explicit Generate(Command& app) : Subcommand(app, "generate", "Let a trained model go on with a text") {
    model_.add_to(command_);
    const FlagGroup group(command_, "Text");
    group.text("--prompt", "TEXT", prompt_, "The text to go on with; without it, what is piped to stdin");
    group.text("--tokenizer", "FILE", tokenizer_, "A tokenizer.json; not needed for models of bytes");
    group.count("--max-new-tokens", 1, max_new_tokens_,
                "Stop after this many (default 64), or where the model ends the text");
    group.number("--temperature", 0, 100, sampling_.temperature,
                 "0: always the most likely token (default 1)");
    group.count("--top-k", 0, sampling_.top_k, "Choose among the N most likely tokens only; 0: all");
    group.number("--top-p", 0, 1, sampling_.top_p,
                 "Choose among the most likely that sum up to this (default 1)");
    group.count("--seed", 0, seed_, "Seed of the choices (default 42)");
    group.yes("--no-cache", no_cache_, "Keep no keys and values: the same text, slower, in less memory");
    FlagGroup(command_).yes("--json", json_, "Print the text and what it took as JSON, when it is whole");
    command_.footer(kGenerateExamples);
  }

  int run() override;

 private:
  void report_missing_cache(const CacheOutcome& cache);
  Continuation go_on(Inference& inference, const Vocabulary& vocabulary, std::vector<int32_t> tokens,
                     uint32_t longest);
  void report(const Continuation& made, const CacheOutcome& cache, double seconds);

  ModelFlags model_;
  std::string prompt_;
  std::string tokenizer_;
  uint64_t max_new_tokens_ = 64;
  SamplingOptions sampling_;
  uint64_t seed_ = 42;
  bool no_cache_ = false;
  bool json_ = false;
  Console console_;
};

int Generate::run() {
  if (prompt_.empty() && isatty(STDIN_FILENO) != 1) prompt_ = piped_prompt(console_);
  TrainedModel model(model_);
  const ModelConfig config = model.model().config();
  const Vocabulary vocabulary(tokenizer_, model.folder(), config.vocabulary);
  const std::vector<int32_t> tokens = vocabulary.tokens_of(prompt_);
  // No token follows the last one. A count that is longer than the context could wrap around.
  const uint64_t seen = tokens.size() + std::min<uint64_t>(max_new_tokens_ - 1, config.context);
  const auto longest = static_cast<uint32_t>(std::min<uint64_t>(seen, config.context));
  const std::unique_ptr<Inference> inference =
      model.load({.sequence = longest,
                  .evaluates = false,
                  .caches = !no_cache_,
                  .lowered = "--max-new-tokens, the length of the prompt or --threads"},
                 console_);
  report_missing_cache(inference->cache());
  if (seen > config.context) {
    console_.info(fmt::format("a longer text than the model's context: the last {} tokens count", longest));
  }
  const SteadyClock clock;
  const uint64_t begin = clock.now_ns();
  const Continuation made = go_on(*inference, vocabulary, tokens, longest);
  report(made, inference->cache(), static_cast<double>(clock.now_ns() - begin) * 1e-9);
  return kDone;
}

void Generate::report(const Continuation& made, const CacheOutcome& cache, double seconds) {
  const double rate = static_cast<double>(made.token_count) / seconds;
  console_.info(fmt::format("{} tokens in {}, {:.1f} tokens/s, {}", made.token_count, seconds_text(seconds),
                            rate, way_of(cache)));
  if (!json_) return;
  JsonWriter json;
  json.begin_object().members({{"prompt", prompt_}, {"text", made.text}, {"tokens", made.token_count}});
  json.members({{"ended", made.is_ended}, {"seconds", seconds}, {"tokens_per_second", rate}});
  print_as_it_is(shown_lines(json.end().take() + "\n"));
}

void Generate::report_missing_cache(const CacheOutcome& cache) {
  if (cache.is_used || cache.bytes == 0) return;
  const std::string advice =
      cache.device_needed_bytes == 0
          ? "a lower --max-new-tokens or a shorter prompt takes less"
          : fmt::format("--device-memory {} holds them beside what the device holds now",
                        cache.device_needed_bytes);
  console_.info(fmt::format(
      "the budgets have no room for the {} of keys and values of all tokens, so that each token is computed "
      "from the whole sequence again; {}",
      format_bytes(cache.bytes), advice));
}

Continuation Generate::go_on(Inference& inference, const Vocabulary& vocabulary, std::vector<int32_t> tokens,
                             uint32_t longest) {
  const uint32_t vocabulary_size = inference.model().config().vocabulary;
  std::vector<float> logits(vocabulary_size);
  Continuation made;
  const auto write = [&](const std::string& text) {
    if (json_) {
      made.text += text;
    } else {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
  };
  std::optional<Tokenizer::Decoder> decoder;  // nothing: a token is a byte
  if (vocabulary.tokenizer() != nullptr) decoder.emplace(*vocabulary.tokenizer(), prompt_.empty());
  if (!json_) write(prompt_);
  while (made.token_count < max_new_tokens_) {
    const auto length = static_cast<uint32_t>(std::min<size_t>(tokens.size(), longest));
    const std::span<const int32_t> seen = std::span<const int32_t>(tokens).last(length);
    inference.next_token_logits({seen, seen, 1, length}, logits);
    const int32_t next = sample_token(
        logits, sampling_, static_cast<double>(uniform({seed_, kGenerationStream}, made.token_count)));
    ++made.token_count;
    made.is_ended = next == vocabulary.end();
    if (made.is_ended) break;
    write(decoder ? decoder->add(next) : std::string(1, static_cast<char>(next)));
    tokens.push_back(next);
  }
  if (decoder) write(decoder->finish());
  if (!json_) write("\n");
  return made;
}

}  // namespace

std::unique_ptr<Subcommand> add_generate(Command& app) {
  return std::make_unique<Generate>(app);
}

}  // namespace terrace
