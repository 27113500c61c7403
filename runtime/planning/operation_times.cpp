#include <terrace/runtime/planning/operation_times.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/memory/pages.h>
#include <terrace/offload/use_trace.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/runtime/compute/host_ops.h>

namespace terrace {
namespace {

constexpr double kRunOperations = 40e9;  // of one run: half a second of a slow machine
constexpr uint32_t kLeastSequence = 192;
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kFillElements = 65536;

// One layer's and one vocabulary row's multiplications and additions, forward, again and backward.
constexpr double kOperationsPerElement = 8;

std::unique_ptr<Model> make_scratch_model(const Model& model, uint32_t sequence, uint32_t vocabulary) {
  ModelConfig config = model.config();
  config.layers = 1;
  config.context = sequence;
  config.vocabulary = vocabulary;
  ModelOptions options = model.options();
  try {
    return make_model(config, options);
  } catch (const Error&) {
    options.frozen.clear();  // a pattern may name layers that are not there
    return make_model(config, options);
  }
}

// What can be computed in one run.
struct ScratchShape {
  uint32_t batch = 1;
  uint32_t sequence = 1;
  uint32_t vocabulary = 1;
};

ScratchShape choose_shape(const Model& model, uint32_t micro_batch) {
  const ModelConfig& config = model.config();
  const double width = config.width;
  const double table = width * config.vocabulary * (config.tied_embeddings ? 1 : 2);
  const auto all = static_cast<double>(model.parameter_count());
  const double layer = std::max(all - table, width) / config.layers;
  ScratchShape shape{micro_batch, config.context, config.vocabulary};
  const auto operations = [&](double elements) {
    return kOperationsPerElement * elements * shape.batch * shape.sequence;
  };
  while (shape.batch > 1 && operations(layer) > kRunOperations) shape.batch = (shape.batch + 1) / 2;
  while (shape.sequence > kLeastSequence && operations(layer) > kRunOperations)
    shape.sequence = std::max(kLeastSequence, shape.sequence / 2);
  while (shape.vocabulary > 1024 && operations(width * shape.vocabulary) > kRunOperations)
    shape.vocabulary = (shape.vocabulary + 1) / 2;
  return shape;
}

// Parameters and gradients of every tensor, in memory that nobody else has.
class ScratchParameters {
 public:
  explicit ScratchParameters(const std::vector<TensorSpec>& tensors) {
    uint64_t bytes = 0;
    for (const TensorSpec& tensor : tensors) {
      offsets_.push_back(bytes);
      bytes += round_up(tensor.element_count() * bytes_of(tensor.type), kAlignment);
    }
    memory_ = PageMapping::populated(round_up(2 * bytes, page_bytes()), true, "measuring operations");
    gradients_ = bytes;
  }
  // Small numbers: what is not normal takes a processor longer.
  void fill(const std::vector<TensorSpec>& tensors, const Model& model) {
    std::vector<float> values(kFillElements);
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      const DataType type = tensors[t].type;
      const uint64_t elements = tensors[t].element_count();
      for (uint64_t first = 0; first < elements; first += kFillElements) {
        const std::span<float> run = std::span(values).first(std::min(kFillElements, elements - first));
        model.initial_values(TensorId{t}, first, run);
        convert_from_float(best_instruction_set(), run.data(),
                           parameter(TensorId{t}) + first * bytes_of(type), type, run.size());
      }
    }
  }
  std::byte* parameter(TensorId tensor) const { return memory_.memory().data() + offsets_[index_of(tensor)]; }
  std::byte* gradient(TensorId tensor) const { return parameter(tensor) + gradients_; }

 private:
  PageMapping memory_;
  std::vector<uint64_t> offsets_;
  uint64_t gradients_ = 0;
};

}  // namespace

// Takes the time of uses and of what is between them.
class OperationTimes::Timer final : public ParameterAccess {
 public:
  Timer(const std::vector<TensorSpec>& tensors, const ScratchParameters& parameters)
      : tensors_(tensors), parameters_(parameters) {}

  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind) override {
    end_pause();
    kind_ = kind_of(operation);
    elements_ = 0;
    for (const TensorId tensor : tensors)
      elements_ += static_cast<double>(tensors_[index_of(tensor)].element_count());
    start_ns_ = clock_.now_ns();
  }
  void end_use() override {
    end_ns_ = clock_.now_ns();
    Samples& samples = samples_[kind_];
    samples.leased.push_back(static_cast<double>(end_ns_ - start_ns_) * 1e-9);
    if (elements_ > 0) samples.per_element.push_back(samples.leased.back() / elements_);
  }
  const std::byte* parameter(TensorId tensor) const override { return parameters_.parameter(tensor); }
  GradientView gradient(TensorId tensor) override { return {parameters_.gradient(tensor), false}; }

  // A micro-batch is over.
  void end_pause() {
    if (end_ns_ != 0) samples_[kind_].after.push_back(static_cast<double>(clock_.now_ns() - end_ns_) * 1e-9);
    end_ns_ = 0;
  }
  void forget() { samples_.clear(); }

  std::map<std::string, Measured> medians() const {
    std::map<std::string, Measured> times;
    for (const auto& [kind, samples] : samples_)
      times[kind] = {median(samples.leased), median(samples.per_element), median(samples.after)};
    return times;
  }

 private:
  struct Samples {
    std::vector<double> leased;
    std::vector<double> per_element;
    std::vector<double> after;
  };
  static double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::ranges::sort(values);
    return values[values.size() / 2];
  }

  const std::vector<TensorSpec>& tensors_;
  const ScratchParameters& parameters_;
  const SteadyClock clock_;
  std::map<std::string, Samples> samples_;
  std::string kind_;
  double elements_ = 0;
  uint64_t start_ns_ = 0;
  uint64_t end_ns_ = 0;
};

std::string OperationTimes::kind_of(std::string_view operation) {
  if (operation.starts_with("mb")) operation.remove_prefix(operation.find('/') + 1);
  std::string kind;
  for (const char c : operation) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!is_digit) kind += c;
    // The number of a layer or part, behind its point.
    if (is_digit && !kind.empty() && kind.back() != '.' && kind.back() != '#') kind += c;
    if (is_digit && !kind.empty() && kind.back() == '.') kind += '#';
  }
  return kind;
}

OperationTimes::OperationTimes(const Model& model, uint32_t micro_batch, Workers& workers,
                               double wanted_seconds) {
  const ScratchShape shape = choose_shape(model, micro_batch);
  const std::unique_ptr<Model> scratch = make_scratch_model(model, shape.sequence, shape.vocabulary);
  const std::vector<TensorSpec> tensors = scratch->tensors();
  const uint64_t tokens = uint64_t{shape.batch} * shape.sequence;
  std::vector<int32_t> ids(tokens + 1);
  for (uint64_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 2654435761u % shape.vocabulary);
  const MicroBatch batch{std::span(ids).first(tokens), std::span(ids).subspan(1), shape.batch,
                         shape.sequence};

  StackArena dry = StackArena::dry_run();
  UseRecorder recorder;
  scratch->train_micro_batch(HostOps(workers, best_instruction_set(), true), recorder, dry, batch, 1.0f, "");
  const PageMapping work =
      PageMapping::populated(round_up(dry.peak_bytes(), page_bytes()), true, "measuring operations");
  StackArena arena(work.memory());
  ScratchParameters parameters(tensors);
  parameters.fill(tensors, *scratch);
  Timer timer(tensors, parameters);
  const HostOps ops(workers, best_instruction_set());
  const SteadyClock clock;
  const auto run = [&] {
    scratch->train_micro_batch(ops, timer, arena, batch, 1.0f, "");
    timer.end_pause();
  };
  run();  // pages, caches, the processor's frequency
  timer.forget();
  uint32_t runs = 0;
  const uint64_t begin = clock.now_ns();
  do {
    run();
    ++runs;
  } while (static_cast<double>(clock.now_ns() - begin) * 1e-9 < wanted_seconds);

  times_ = timer.medians();
  const double more_tokens =
      static_cast<double>(uint64_t{micro_batch} * model.config().context) / static_cast<double>(tokens);
  const double longer = static_cast<double>(model.config().context) / shape.sequence;
  for (auto& [kind, time] : times_) {
    // Attention, which every token has with all before it, is what comes between these.
    const bool attends = kind.find("attn.qkv/forward") != std::string::npos ||
                         kind.find("attn.qkv/recompute") != std::string::npos ||
                         kind.find("attn.proj/backward") != std::string::npos;
    time.leased_seconds *= more_tokens;
    time.seconds_per_element *= more_tokens;
    time.after_seconds *= more_tokens * (attends ? longer : 1);
  }
  vocabulary_part_ = static_cast<double>(shape.vocabulary) / model.config().vocabulary;
  description_ = fmt::format("one layer and {} of {} words, {} x {} tokens, {} times", shape.vocabulary,
                             model.config().vocabulary, shape.batch, shape.sequence, runs);
}

OperationTime OperationTimes::of(std::string_view operation, uint64_t elements) const {
  const std::string kind = kind_of(operation);
  auto found = times_.find(kind);
  // A layer that is computed again and is not the last of its segment goes on as in the forward pass.
  if (found == times_.end()) {
    std::string forward = kind;
    if (const size_t phase = forward.rfind('/'); phase != std::string::npos)
      forward.replace(phase, std::string::npos, "/forward");
    found = times_.find(forward);
  }
  if (found == times_.end()) return {};
  const Measured& measured = found->second;
  const double by_element = measured.seconds_per_element * static_cast<double>(elements);
  if (kind.starts_with("head.#")) return {by_element, measured.after_seconds};
  // All tokens look into the parts of a table together, whatever its size.
  if (kind.starts_with("embedding.#")) return {by_element * vocabulary_part_, measured.after_seconds};
  return {measured.leased_seconds, measured.after_seconds};
}

}  // namespace terrace
