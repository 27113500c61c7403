// `terrace eval`: computes the loss of a trained model over data. It trains nothing and writes only the cache
// of tokenized text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include <terrace/base/clock.h>
#include <terrace/base/progress.h>
#include <terrace/base/text/json_writer.h>

#include "command_line.h"
#include "console.h"
#include "flags/data_flags.h"
#include "flags/model_flags.h"
#include "text_table.h"

namespace terrace {
namespace {

// A model that is made for longer sequences reads no longer ones unless --context asks for them.
constexpr uint32_t kLongestByDefault = 2048;

constexpr const char* kEvalExamples =
    "Loss is the mean over all tokens but the first of every sequence's context, in nats. Bits per byte can\n"
    "be compared between tokenizers.\n\n"
    "Examples:\n"
    "  terrace eval --checkpoint checkpoints --data held-out.txt\n"
    "  terrace eval --model models/Llama-3.2-1B --data articles/ --context 1024 --device-memory 1GiB "
    "--json\n";

struct Sums {
  double nats = 0;
  uint64_t tokens = 0;
  std::optional<uint64_t> bytes;  // bytes of the text that the tokens stand for; nothing if not known
};

class Eval final : public Subcommand {
 public:
  explicit Eval(Command& app) : Subcommand(app, "eval", "Compute the loss of a trained model over data") {
    model_.add_to(command_);
    const FlagGroup group(command_, "Data");
    data_.add_to(group);
    group.count("--context", 1, context_,
                "Tokens of a sequence (default: the model's context, at most 2048)");
    group.count("--batch", 1, batch_, "Sequences computed at a time (default 4)");
    group.count("--samples", 1, samples_, "Only this many sequences, spread evenly over the data");
    FlagGroup(command_).yes("--json", json_, "Print the result as JSON");
    command_.footer(kEvalExamples);
  }

  int run() override;

 private:
  Sums evaluate(const TokenSource& tokens, const Tokenizer* tokenizer, Inference& inference);
  void evaluate_batch(const TokenSource& tokens, std::span<const uint64_t> begins, uint32_t length,
                      const Tokenizer* tokenizer, Inference& inference, Sums& sums);
  void print(const Sums& sums, const std::string& model, std::string_view products, double seconds) const;

  ModelFlags model_;
  DataFlags data_;
  uint32_t context_ = 0;
  uint32_t batch_ = 4;
  std::optional<uint64_t> samples_;
  bool json_ = false;
  Console console_;
};

int Eval::run() {
  const SteadyClock clock;
  TrainedModel model(model_);
  const ModelConfig config = model.model().config();
  const DataChoice data(data_, model.folder());
  const OpenTokens open = data.open(config.vocabulary, console_);
  const TokenSource& tokens = open.validation ? *open.validation : *open.train;
  if (context_ == 0) context_ = std::min(config.context, kLongestByDefault);
  if (context_ > config.context || tokens.token_count() < 2) {
    throw Error(ErrorKind::config,
                {"cannot evaluate", tokens.path().string(),
                 tokens.token_count() < 2
                     ? "there are fewer than two tokens"
                     : fmt::format("--context is {}, and the model's is {}{}", context_, config.context,
                                   config.context == config.sliding_window ? " (its sliding_window)" : ""),
                 tokens.token_count() < 2 ? "give more data" : "give a shorter --context, or none"});
  }
  console_.info(fmt::format("data: {}", tokens.description()));
  const std::unique_ptr<Inference> inference = model.load(
      {.batch = batch_, .sequence = context_, .lowered = "--batch, --context or --threads"}, console_);
  const std::string description = inference->model().description();
  const uint64_t begin = clock.now_ns();
  const Sums sums = evaluate(tokens, data.tokenizer(), *inference);
  if (!std::isfinite(sums.nats)) {
    console_.warning(
        "the loss is not finite: the model diverged in training, or its type is too narrow for it");
    return kFailed;
  }
  print(sums, description, model.products(), static_cast<double>(clock.now_ns() - begin) * 1e-9);
  return kDone;
}

// Sequences are computed side by side. A shorter last one is a batch of its own.
Sums Eval::evaluate(const TokenSource& tokens, const Tokenizer* tokenizer, Inference& inference) {
  Sums sums;
  if (tokenizer != nullptr || tokens.tokens_are_bytes()) sums.bytes = 0;
  const uint64_t whole = (tokens.token_count() - 1) / context_;
  const uint64_t rest = (tokens.token_count() - 1) % context_;
  const uint64_t count = std::min(samples_.value_or(whole), whole);
  ProgressReport progress(console_, "evaluating", count, "sequences");
  std::vector<uint64_t> begins;
  for (uint64_t sample = 0; sample < count; ++sample) {
    __extension__ using Wide = unsigned __int128;
    begins.push_back(static_cast<uint64_t>(Wide{sample} * whole / count) * context_);
    if (begins.size() < batch_ && sample + 1 < count) continue;
    evaluate_batch(tokens, begins, context_, tokenizer, inference, sums);
    progress.add(begins.size());
    begins.clear();
  }
  if (rest > 0 && count == whole) {
    begins.assign(1, whole * context_);
    evaluate_batch(tokens, begins, static_cast<uint32_t>(rest), tokenizer, inference, sums);
  }
  return sums;
}

void Eval::evaluate_batch(const TokenSource& tokens, std::span<const uint64_t> begins, uint32_t length,
                          const Tokenizer* tokenizer, Inference& inference, Sums& sums) {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
  std::vector<int32_t> window(length + size_t{1});
  for (const uint64_t begin : begins) {
    tokens.read(begin, window);
    inputs.insert(inputs.end(), window.begin(), window.end() - 1);
    targets.insert(targets.end(), window.begin() + 1, window.end());
  }
  const float loss = inference.evaluate({inputs, targets, static_cast<uint32_t>(begins.size()), length});
  sums.nats += static_cast<double>(loss) * static_cast<double>(targets.size());
  sums.tokens += targets.size();
  if (!sums.bytes) return;
  for (const int32_t token : targets) {
    // The token between two texts is part of neither.
    const bool is_text = tokenizer == nullptr || token != tokenizer->end_of_text();
    if (is_text) *sums.bytes += tokenizer == nullptr ? 1 : tokenizer->bytes_of(token).size();
  }
}

void Eval::print(const Sums& sums, const std::string& model, std::string_view products,
                 double seconds) const {
  const double loss = sums.nats / static_cast<double>(sums.tokens);
  std::optional<double> bits;
  if (sums.bytes && *sums.bytes > 0) bits = sums.nats / std::log(2.0) / static_cast<double>(*sums.bytes);
  if (json_) {
    JsonWriter json;
    json.begin_object().members({{"model", model}, {"products", products}});
    json.members({{"tokens", sums.tokens}, {"bytes", sums.bytes}});
    json.members({{"loss", loss}, {"perplexity", std::exp(loss)}, {"bits_per_byte", bits}});
    print_result(json.member("seconds", seconds).end().take() + "\n");
    return;
  }
  std::string text = fmt::format("loss {:.4f} nats per token, perplexity {:.4g}", loss, std::exp(loss));
  if (bits) text += fmt::format(", {:.4f} bits per byte", *bits);
  print_result(fmt::format("{}\n{} tokens in {}\n", text, grouped(sums.tokens), seconds_text(seconds)));
}

}  // namespace

std::unique_ptr<Subcommand> add_eval(Command& app) {
  return std::make_unique<Eval>(app);
}

}  // namespace terrace
