// A model as a folder; declared in export_weights.h and export_adapter.h.
#include <algorithm>
#include <optional>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/reference/model/weights/export_adapter.h>
#include <terrace/reference/model/weights/export_weights.h>

namespace terrace {
namespace {

// Gives the numbers of coded weights, in the type in which they were computed with, for the words that a
// source has. It holds a few blocks.
class DecodedSource {
 public:
  DecodedSource(std::span<const WeightSpec> weights, std::span<const TensorSpec> tensors, ValueSource words)
      : tensors_(tensors.begin(), tensors.end()), coded_(tensors.size()), words_(words) {
    for (const WeightSpec& weight : weights) {
      if (!weight.coded.is_coded()) continue;
      coded_[index_of(weight.parts.front())] = weight.coded;
      tensors_[index_of(weight.parts.front())].shape = weight.shape;
    }
  }

  // The tensors with the shapes of what is given.
  std::span<const TensorSpec> tensors() const { return tensors_; }

  void give(FunctionRef<bool(TensorId)> wanted, ValueSink sink) {
    words_(wanted, [&](TensorId tensor, uint64_t first, std::span<const float> values) {
      const CodedWeight& coded = coded_[index_of(tensor)];
      if (!coded.is_coded()) return sink(tensor, first, values);
      held_.insert(held_.end(), values.begin(), values.end());
      give_blocks(tensor, coded, first + values.size() - held_.size(), sink);
    });
  }

 private:
  // `first` is the first of the held words.
  void give_blocks(TensorId tensor, const CodedWeight& coded, uint64_t first, ValueSink sink) {
    const uint64_t of_block = words_of_block(coded.code), blocks = held_.size() / of_block;
    const uint64_t first_element = first / of_block * kCodedBlock;
    const uint64_t count = std::min(blocks * kCodedBlock, coded.elements - first_element);
    std::vector<std::byte> numbers(count * bytes_of(coded.type));
    std::vector<float> values(count);
    decode_weights(best_instruction_set(), coded.code, std::as_bytes(std::span(held_)).data(), numbers.data(),
                   coded.type, count);
    convert_to_float(best_instruction_set(), numbers.data(), coded.type, values.data(), count);
    held_.erase(held_.begin(), held_.begin() + static_cast<ptrdiff_t>(blocks * of_block));
    if (count > 0) sink(tensor, first_element, values);
  }

  std::vector<TensorSpec> tensors_;
  std::vector<CodedWeight> coded_;  // by TensorId
  ValueSource words_;
  std::vector<float> held_;  // words of a block that is not whole yet
};

}  // namespace

ExportReport export_model(const std::filesystem::path& target, const Model& model,
                          std::span<const TensorSpec> tensors, ExportOptions options, ValueSource source,
                          Log& log) {
  const std::vector<AdapterSpec> adapters = model.adapters();
  std::optional<AdapterMerge> merge;
  if (!adapters.empty()) {
    merge.emplace(adapters, tensors, source);
    options.transform = [&](size_t weight, uint64_t first, std::span<float> values) {
      merge->apply(weight, first, values);
    };
  }
  options.texts["config.json"] = model_config_json(model.config(), options.type);
  const std::vector<WeightSpec> weights = model.weights();
  DecodedSource numbers(weights, tensors, source);
  return export_weights(
      target, weights, numbers.tensors(), options,
      [&](FunctionRef<bool(TensorId)> wanted, ValueSink sink) { numbers.give(wanted, sink); }, log);
}

ExportReport export_model_adapter(const std::filesystem::path& target, const Model& model,
                                  const std::string& base_model, const ExportOptions& options,
                                  ValueSource source, Log& log) {
  const std::vector<AdapterSpec> adapters = model.adapters();
  if (adapters.empty()) {
    throw Error(ErrorKind::config,
                {"cannot export adapters to", target.string(), "the model was trained without them",
                 "export the whole model, or train with terrace.lora in the configuration"});
  }
  return export_adapter(target, adapters, model.tensors(), {model.options().lora->alpha, base_model}, options,
                        source, log);
}

}  // namespace terrace
