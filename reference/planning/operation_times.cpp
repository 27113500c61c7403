#include <terrace/reference/planning/operation_times.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/offload/plan/use_trace.h>

namespace terrace {
namespace {

// Multiplications and additions of one run.
constexpr double kRunOperations = 40e9;        // half a second of a slow machine
constexpr double kDeviceRunOperations = 1e13;  // a second of a device that does ten teraflop/s
constexpr uint32_t kLeastSequence = 192;
constexpr uint32_t kLeastVocabulary = 1024;

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
  uint64_t tokens() const { return uint64_t{batch} * sequence; }
};

ScratchShape choose_shape(const Model& model, uint32_t micro_batch, double most_operations) {
  const ModelConfig& config = model.config();
  const double width = config.width;
  const double table = width * config.vocabulary * (config.tied_embeddings ? 1 : 2);
  const auto all = static_cast<double>(model.parameter_count());
  const double layer = std::max(all - table, width) / config.layers;
  ScratchShape shape{micro_batch, config.context, config.vocabulary};
  const auto operations = [&](double elements) {
    return kOperationsPerElement * elements * static_cast<double>(shape.tokens());
  };
  while (shape.batch > 1 && operations(layer) > most_operations) shape.batch = (shape.batch + 1) / 2;
  while (shape.sequence > kLeastSequence && operations(layer) > most_operations)
    shape.sequence = std::max(kLeastSequence, shape.sequence / 2);
  while (shape.vocabulary > kLeastVocabulary && operations(width * shape.vocabulary) > most_operations)
    shape.vocabulary = (shape.vocabulary + 1) / 2;
  return shape;
}

// One layer, and what it is tried with.
struct Scratch {
  ScratchShape shape;
  std::unique_ptr<Model> model;
  std::vector<TensorSpec> tensors;
  std::vector<int32_t> ids;
  uint64_t work_bytes = 0;

  MicroBatch batch() const {
    const uint64_t tokens = shape.tokens();
    return {std::span(ids).first(tokens), std::span(ids).subspan(1), shape.batch, shape.sequence};
  }
};

Scratch make_scratch(const Model& model, const ScratchShape& shape, const Ops& dry_ops) {
  Scratch scratch{shape, make_scratch_model(model, shape.sequence, shape.vocabulary), {}, {}, 0};
  scratch.tensors = scratch.model->tensors();
  scratch.ids.resize(shape.tokens() + 1);
  for (uint64_t i = 0; i < scratch.ids.size(); ++i)
    scratch.ids[i] = static_cast<int32_t>(i * 2654435761u % shape.vocabulary);
  StackArena dry = StackArena::dry_run();
  UseRecorder recorder;
  scratch.model->train_micro_batch(dry_ops, recorder, dry, scratch.batch(), 1.0f, "");
  scratch.work_bytes = dry.peak_bytes();
  return scratch;
}

// Less of whatever there is most of; false where there is no less.
bool make_smaller(ScratchShape& shape) {
  if (shape.batch > 1) {
    shape.batch = (shape.batch + 1) / 2;
  } else if (shape.vocabulary > VocabularyShape::kLossColumns) {
    shape.vocabulary = (shape.vocabulary + 1) / 2;
  } else if (shape.sequence > 1) {
    shape.sequence = (shape.sequence + 1) / 2;
  } else {
    return false;
  }
  return true;
}

// As much as is to be computed and as the device has memory for.
Scratch choose_scratch(const Model& model, uint32_t micro_batch, const TrialPlace& place, Workers& workers) {
  const bool on_device = place.compute != nullptr;
  const std::unique_ptr<const Ops> dry_ops = make_dry_ops(place.compute, workers);
  ScratchShape shape = choose_shape(model, micro_batch, on_device ? kDeviceRunOperations : kRunOperations);
  for (;;) {
    Scratch scratch = make_scratch(model, shape, *dry_ops);
    const uint64_t needed = on_device ? round_up(least_trial_bytes(scratch.tensors, scratch.work_bytes),
                                                 place.compute->facts().granularity_bytes)
                                      : 0;
    if (needed <= place.device_bytes) return scratch;
    if (!make_smaller(shape))
      throw Error(ErrorKind::capacity,
                  {"cannot try the operations of", model.description(),
                   fmt::format("one layer and one token take {} of device memory, and the run has {}",
                               format_bytes(needed), format_bytes(place.device_bytes)),
                   "plan without times, or raise " + Option::device_budget});
  }
}

}  // namespace

// Takes the time of uses and of what is between them.
class OperationTimes::Timer final : public ParameterAccess {
 public:
  Timer(const std::vector<TensorSpec>& tensors, TrialMemory& memory) : tensors_(tensors), memory_(memory) {}

  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind) override {
    end_pause();
    kind_ = kind_of(operation);
    elements_ = 0;
    for (const TensorId tensor : tensors)
      elements_ += static_cast<double>(tensors_[index_of(tensor)].element_count());
    start_ns_ = clock_.now_ns();
  }
  void end_use() override {
    try {
      memory_.wait();
    } catch (...) {
      failure_ = std::current_exception();  // for the next call that may throw
    }
    end_ns_ = clock_.now_ns();
    Samples& samples = samples_[kind_];
    samples.leased.push_back(static_cast<double>(end_ns_ - start_ns_) * 1e-9);
    if (elements_ > 0) samples.per_element.push_back(samples.leased.back() / elements_);
  }
  const std::byte* parameter(TensorId tensor) const override { return memory_.parameter(tensor); }
  GradientView gradient(TensorId tensor) override { return {memory_.gradient(tensor), false}; }

  // A micro-batch is over.
  void end_pause() {
    if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
    memory_.wait();
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
  TrialMemory& memory_;
  const SteadyClock clock_;
  std::map<std::string, Samples> samples_;
  std::string kind_;
  double elements_ = 0;
  uint64_t start_ns_ = 0;
  uint64_t end_ns_ = 0;
  std::exception_ptr failure_;
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
                               const TrialPlace& place, double wanted_seconds) {
  const Scratch scratch = choose_scratch(model, micro_batch, place, workers);
  const ScratchShape& shape = scratch.shape;
  const std::unique_ptr<TrialMemory> memory =
      make_trial_memory(*scratch.model, scratch.tensors, scratch.work_bytes, place, workers);
  Timer timer(scratch.tensors, *memory);
  const SteadyClock clock;
  const auto run = [&] {
    scratch.model->train_micro_batch(memory->ops(), timer, memory->arena(), scratch.batch(), 1.0f, "");
    timer.end_pause();
  };
  run();  // pages, caches, the processor's frequency; what a library of a device chooses once
  timer.forget();
  uint32_t runs = 0;
  const uint64_t begin = clock.now_ns();
  do {
    run();
    ++runs;
  } while (static_cast<double>(clock.now_ns() - begin) * 1e-9 < wanted_seconds);

  times_ = timer.medians();
  const double more_tokens = static_cast<double>(uint64_t{micro_batch} * model.config().context) /
                             static_cast<double>(shape.tokens());
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
  description_ = fmt::format("one layer and {} of {} words, {} x {} tokens, {} times, measured now",
                             shape.vocabulary, model.config().vocabulary, shape.batch, shape.sequence, runs);
}

OperationTimes::OperationTimes(uint64_t tokens, double flops, std::string_view origin)
    : element_seconds_(2 * static_cast<double>(tokens) / flops),
      description_(fmt::format("{:g} T multiplications and additions a second, {}", flops * 1e-12, origin)) {}

void OperationTimes::slow_down(double factor) {
  for (auto& [kind, time] : times_) {
    time.leased_seconds *= factor;
    time.seconds_per_element *= factor;
    time.after_seconds *= factor;
  }
}

OperationTime OperationTimes::of(std::string_view operation, uint64_t elements) const {
  if (element_seconds_ > 0) {
    const double passes = operation.ends_with("/backward") ? 2 : 1;
    return {passes * element_seconds_ * static_cast<double>(elements), 0};
  }
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
