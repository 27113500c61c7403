#include "flags/model_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/reference/model/weights/architecture.h>
#include <terrace/runtime/checkpoint/checkpoint.h>
#include <terrace/runtime/checkpoint/inventory.h>

#include "command_line.h"
#include "flags/model_file.h"
#include "flags/model_path.h"
#include "train/train_header.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

TrainConfig config_of(const ModelFlags& flags, DataType type) {
  std::vector<ConfigOverride> overrides;
  if (type != DataType::fp32)
    overrides.push_back({fmt::format("{}.enabled", name_of(type)), "true", "the parameters' type"});
  const auto add = [&](const char* key, const std::string& value, const char* flag) {
    if (!value.empty()) overrides.push_back({key, value, flag});
  };
  add("terrace.device", flags.device, "--device");
  add("terrace.gpu_products", flags.gpu_products, "--gpu-products");
  add("terrace.compute", flags.compute, "--compute");
  add("terrace.device_memory", flags.device_memory, "--device-memory");
  add("terrace.host_memory", flags.host_memory, "--host-memory");
  add("zero_optimization.offload_param.device", flags.parameters.empty() ? "cpu" : flags.parameters,
      "--offload-param");
  add("zero_optimization.offload_param.nvme_path", folder_list(flags.nvme_paths), "--nvme-path");
  add("terrace.threads", flags.threads, "--threads");
  if (flags.strict) overrides.push_back({"terrace.strict", "true", "--strict"});
  return default_train_config(overrides);
}

// The advice of an error of the library, which is that of a training run where it is about budgets and
// states. `lowered`: the flags that lower what the device works in.
Wording advice_without_training(const Error& error, Placement parameters, const std::string& lowered) {
  const Wording& advice = error.parts().advice;
  if (advice.names(Option::discard_commits))
    return "name another folder with --nvme-path: only training goes on from this state";
  const auto* const shortage = dynamic_cast<const ShortageError*>(&error);
  if (shortage == nullptr) return advice;
  const auto is_short = [&](std::string_view name) {
    return std::ranges::any_of(shortage->tiers(),
                               [&](const TierShortage& tier) { return tier.tier == name; });
  };
  const bool device = is_short("device"), host = is_short("host");
  if (!device && !host) return advice;
  std::string text = fmt::format("raise {}", !host     ? "--device-memory"
                                             : !device ? "--host-memory"
                                                       : "--device-memory and --host-memory");
  if (device) text += fmt::format(", or lower {}", lowered);
  if (device && parameters == Placement::none)
    text += ", or place parameters on cpu or nvme (--offload-param)";
  if (host && parameters == Placement::cpu) text += ", or place parameters on nvme (--offload-param)";
  return text;
}

}  // namespace

void ModelFlags::add_to(Command& app) {
  const FlagGroup model_group(app, "Model");
  model_group.text(
      "--checkpoint", "DIR", checkpoint,
      "A folder that `terrace train --save` or engine.save_checkpoint wrote, or one state in it");
  model_group.text(
      "--model", "DIR|OWNER/NAME", model,
      "A Hugging Face folder: config.json and safetensors; or OWNER/NAME, from the cache of Hugging Face");
  model_group.text(
      "--dtype", "fp32|bf16|fp16", type,
      "With --model: fp32, bf16 (default) or fp16; a checkpoint is computed in its own type alone");
  const FlagGroup group(app, "Memory and placement");
  group.text("--device", "simulated|cuda|auto", device,
             "Where operations compute (default simulated); of GPUs, an H200 has been tried");
  group.text("--gpu-products", "auto|cublaslt|own", gpu_products,
             "On a GPU: the library of matrix products (default auto)");
  group.text("--compute", "auto|parameter_type|fp32|bf16|bf16_amx", compute,
             "The type of matrix products (default auto: fp32, on a GPU that of the parameters)");
  group.text("--device-memory", "SIZE", device_memory, "Hard budget of device memory");
  group.text("--host-memory", "SIZE", host_memory, "Hard budget of host memory");
  group.text("--offload-param", "none|cpu|nvme", parameters,
             "Where parameters live between uses (default cpu)");
  group.texts("--nvme-path", "DIR", nvme_paths,
              "The folder for parameters on nvme; given several times, folders on different drives");
  group.text("--threads", "N", threads, "Compute threads; 0 is one per available core");
  group.yes("--strict", strict, "Turn any use of memory outside its lease into an error; slow");
}

TrainedModel::TrainedModel(const ModelFlags& flags)
    : folder_(flags.model.empty() ? fs::path() : model_path(flags.model)), checkpoint_(flags.checkpoint) {
  const DataType type = find_model(flags);
  config_ = config_of(flags, type);
  check_nvme_folders(config_.placement);
}

DataType TrainedModel::find_model(const ModelFlags& flags) {
  if (flags.checkpoint.empty() == flags.model.empty()) {
    refuse("--checkpoint and --model", flags.model.empty() ? "neither is given" : "both are given",
           "give --checkpoint DIR that `terrace train` saved, or --model DIR of Hugging Face");
  }
  if (!checkpoint_.empty()) {
    require_exists("--checkpoint", checkpoint_);
    const CheckpointInfo info = read_checkpoint_info(checkpoint_);
    model_ = make_model_of(info.architecture, info.type, checkpoint_.string());
    if (!flags.type.empty() && type_of_flag("--dtype", flags.type) != info.type)
      refuse(fmt::format("--dtype {}", flags.type),
             fmt::format("the checkpoint's parameters are {}", name_of(info.type)), "leave it out");
    return info.type;
  }
  if (folder_.empty()) {
    refuse(fmt::format("--model {}", flags.model),
           "there is no such folder, and a released model has no weights here",
           "give the folder of a model with its weights, or OWNER/NAME as Hugging Face has it");
  }
  const fs::path json = config_in_folder(folder_, flags.model);
  std::vector<std::string> ignored;
  ModelOptions options;
  options.type = flags.type.empty() ? DataType::bf16 : type_of_flag("--dtype", flags.type);
  model_ = make_model(read_model_config(json, folder_, ModelUse::infer, "", ignored), options);
  return options.type;
}

std::string_view TrainedModel::products() const {
  return products_of(config_, compute_->device());
}

std::unique_ptr<Inference> TrainedModel::load(const InferenceNeeds& needs, Log& log) {
  for (const std::string& warning : config_.warnings) log.warning(warning);
  compute_ = std::make_unique<ComputeChoice>(config_, log);
  config_ = compute_->settle(config_, log);
  std::unique_ptr<Inference> inference;
  try {
    inference =
        std::make_unique<Inference>(std::move(model_),
                                    InferenceOptions{config_, needs.batch, needs.sequence, needs.evaluates,
                                                     compute_->device(), needs.caches},
                                    log);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    parts.advice = advice_without_training(error, config_.placement.parameters, needs.lowered);
    throw Error(error.kind(), parts);
  }
  const TrainerPlan& plan = inference->plan();
  log.info(fmt::format("{}: {} of parameters, {}; device {} ({}), host {} ({})",
                       inference->model().description(), format_bytes(plan.param_bytes),
                       products_text(config_, compute_->device()), format_bytes(plan.device.bytes),
                       plan.device.origin, format_bytes(plan.host.bytes), plan.host.origin));
  if (checkpoint_.empty()) {
    inference->load_folder(folder_);
  } else {
    inference->load_checkpoint(checkpoint_);
  }
  return inference;
}

}  // namespace terrace
