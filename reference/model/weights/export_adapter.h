// The export of low-rank adapters: merged into the weights beside which they stand, or alone, in the files of
// PEFT.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include <terrace/reference/model/transformer/adapter.h>
#include <terrace/reference/model/weights/export_weights.h>

namespace terrace {

// The matrices of adapters, read whole: they are small. Applying them is thread-safe.
class AdapterMerge {
 public:
  // `adapters` outlives the merge.
  AdapterMerge(std::span<const AdapterSpec> adapters, std::span<const TensorSpec> tensors,
               ValueSource source);
  // Adds the adapter of a weight to a run of it; an ExportOptions::transform.
  void apply(size_t weight, uint64_t first_element, std::span<float> values) const;

 private:
  std::span<const AdapterSpec> adapters_;
  std::vector<std::vector<float>> values_;  // by TensorId; empty for tensors of no adapter
  std::vector<std::vector<size_t>> of_weight_;
};

// The values of adapter_config.json that the adapters themselves do not hold.
struct AdapterConfig {
  double alpha = 16;
  std::string base_model;  // a name or path from which PEFT loads the model; may be empty
};

// Exports the adapters of a model alone. Throws Error(config) when it has none.
ExportReport export_model_adapter(const std::filesystem::path& target, const Model& model,
                                  const std::string& base_model, const ExportOptions& options,
                                  ValueSource source, Log& log);

// Writes adapter_model.safetensors and adapter_config.json. Throws as export_weights() does.
ExportReport export_adapter(const std::filesystem::path& target, std::span<const AdapterSpec> adapters,
                            std::span<const TensorSpec> tensors, const AdapterConfig& config,
                            ExportOptions options, ValueSource source, Log& log);

}  // namespace terrace
