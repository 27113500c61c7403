// The export of weights to the files of Hugging Face: model.safetensors, or shards with their index, and the
// files beside them. Values arrive in runs from wherever they live; no tensor is ever whole in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/reference/model/transformer/model.h>

namespace terrace {

// A ValueSource gives every element of the wanted tensors as fp32: tensors in the flat order of FlatSpace,
// each from its first element to its last. TrainingState::export_values() and read_checkpoint_values() are
// such sources.
using ValueSink = FunctionRef<void(TensorId tensor, uint64_t first_element, std::span<const float> values)>;
using ValueSource = FunctionRef<void(FunctionRef<bool(TensorId)> wanted, ValueSink sink)>;

struct ExportOptions {
  DataType type = DataType::bf16;  // type of every tensor in the files
  uint64_t max_shard_bytes = 5'000'000'000;
  bool replace = false;               // an earlier export may be replaced
  std::filesystem::path source = {};  // a model folder whose tokenizer files are copied; may be empty
  std::string stem = "model";         // "<stem>.safetensors", "<stem>-00001-of-00002.safetensors"
  std::optional<uint64_t> step = {};  // the training step of the weights, which step_of_export() reads
  // More files of the folder, text by name: config.json.
  std::map<std::string, std::string> texts = {};
  // Changes the values of a weight in place before they are written: a run of weights[weight] from an element
  // on. May be empty.
  std::function<void(size_t weight, uint64_t first_element, std::span<float> values)> transform = {};
};

struct ExportReport {
  std::filesystem::path folder;
  uint64_t weight_count = 0;
  uint64_t file_count = 0;  // files that hold weights
  uint64_t bytes = 0;       // bytes of these files, headers included
};

// Writes `weights`, whose parts are tensors of `tensors`, as the folder `target`. Throws Error(config) when
// the folder may not be replaced, Error(capacity) when the drive is too small and Error(io) otherwise; the
// folder is then unchanged.
ExportReport export_weights(const std::filesystem::path& target, std::span<const WeightSpec> weights,
                            std::span<const TensorSpec> tensors, const ExportOptions& options,
                            ValueSource source, Log& log);

// Writes all weights of a model with its config.json. Low-rank adapters are merged into the weights that they
// stand beside. `tensors` are the model's as the source has them, which gives their values in its flat order.
ExportReport export_model(const std::filesystem::path& target, const Model& model,
                          std::span<const TensorSpec> tensors, ExportOptions options, ValueSource source,
                          Log& log);

}  // namespace terrace
