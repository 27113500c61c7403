// ModelFlags: the trained model that `terrace eval` and `terrace generate` use, and its memory budgets.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/reference/inference.h>

#include "command.h"
#include "flags/compute_choice.h"

namespace terrace {

struct ModelFlags {
  std::string checkpoint;
  std::string model;
  std::string type;
  std::string device;
  std::string gpu_products;
  std::string compute;
  std::string device_memory;
  std::string host_memory;
  std::string parameters;
  std::vector<std::string> nvme_paths;
  std::string threads;
  bool strict = false;

  // This object must stay where it is.
  void add_to(Command& app);
};

// What is asked of a model: InferenceOptions without what ModelFlags say.
struct InferenceNeeds {
  uint32_t batch = 1;
  uint32_t sequence = 0;
  bool evaluates = true;
  bool caches = false;
  std::string lowered = {};  // the flags with which the model needs less device memory, in words
};

// TrainedModel: a model that was found but not loaded: its configuration is read, its weights are not.
class TrainedModel {
 public:
  // Throws Error(config) unless exactly one of --checkpoint and --model is given and the model is known, and
  // as check_nvme_folders() does.
  explicit TrainedModel(const ModelFlags& flags);

  const Model& model() const { return *model_; }
  // Returns the Hugging Face folder; empty for a checkpoint.
  const std::filesystem::path& folder() const { return folder_; }
  // Plans, allocates and reads the weights, and reports to `log`. Call it once.
  std::unique_ptr<Inference> load(const InferenceNeeds& needs, Log& log);
  // Returns the type in which matrices are multiplied: "bf16". Call it after load().
  std::string_view products() const;

 private:
  DataType find_model(const ModelFlags& flags);

  TrainConfig config_;
  std::unique_ptr<ComputeChoice> compute_;
  std::filesystem::path folder_;
  std::filesystem::path checkpoint_;
  std::unique_ptr<Model> model_;
};

}  // namespace terrace
