// The other half of compare.py: trains the model of a Hugging Face folder in fp32 on given tokens with the
// least device memory that the plan allows, and says what came out.
//
//   train_folder FOLDER TOKENS OUT [PART_ELEMENTS]
//
// TOKENS holds 32-bit numbers: steps, batch, sequence, then batch x (sequence + 1) token ids for each step.
// OUT receives, as fp32: the loss and the gradient norm of each step, the gradients of the first step weight
// by weight in the order printed to stdout, and the logits of what follows the last step's first sample.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <terrace/memory/device/simulated_device.h>
#include <terrace/offload/offloader.h>
#include <terrace/offload/plan/use_trace.h>
#include <terrace/reference/model/compute/host_ops.h>
#include <terrace/reference/model/transformer/model.h>
#include <terrace/reference/model/weights/load_weights.h>

namespace terrace {
namespace {

// Hands everything on, and keeps what each gradient is at the end of its last use.
class GradientWitness final : public ParameterAccess {
 public:
  GradientWitness(Offloader& offloader, std::vector<TensorSpec> tensors)
      : offloader_(offloader), tensors_(std::move(tensors)) {}

  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    offloader_.begin_use(operation, tensors, kind);
    in_use_.assign(tensors.begin(), tensors.end());
    if (kind != UseKind::backward) in_use_.clear();
  }
  void end_use() override {
    for (const TensorId tensor : in_use_) {
      const auto* values = reinterpret_cast<const float*>(offloader_.gradient(tensor).data);
      gradients_[index_of(tensor)].assign(values, values + tensors_[index_of(tensor)].element_count());
    }
    offloader_.end_use();
  }
  const std::byte* parameter(TensorId tensor) const override { return offloader_.parameter(tensor); }
  GradientView gradient(TensorId tensor) override { return offloader_.gradient(tensor); }

  const std::vector<float>& of(TensorId tensor) { return gradients_[index_of(tensor)]; }

 private:
  Offloader& offloader_;
  std::vector<TensorSpec> tensors_;
  std::vector<TensorId> in_use_;
  std::map<uint32_t, std::vector<float>> gradients_;
};

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

struct Samples {
  uint32_t steps, batch, sequence;
  std::vector<int32_t> ids;
  std::vector<int32_t> tokens, targets;

  explicit Samples(const std::string& path) {
    const std::string bytes = text_of(path);
    std::vector<int32_t> all(bytes.size() / 4);
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(all.data()));
    steps = static_cast<uint32_t>(all.at(0)), batch = static_cast<uint32_t>(all.at(1));
    sequence = static_cast<uint32_t>(all.at(2));
    ids.assign(all.begin() + 3, all.end());
  }
  MicroBatch step(uint32_t index) {
    tokens.clear(), targets.clear();
    for (uint32_t sample = 0; sample < batch; ++sample) {
      const auto row = ids.begin() + static_cast<long>((index * batch + sample) * (sequence + 1));
      tokens.insert(tokens.end(), row, row + sequence);
      targets.insert(targets.end(), row + 1, row + sequence + 1);
    }
    return {tokens, targets, batch, sequence};
  }
};

std::vector<OptimizerSettings> groups() {
  OptimizerSettings decayed;
  decayed.lr = 1e-3, decayed.weight_decay = 0.1;
  OptimizerSettings plain = decayed;
  plain.weight_decay = 0;
  return {decayed, plain};
}

void run(const std::string& folder, const std::string& token_path, const std::string& out_path,
         uint64_t part_elements) {
  Samples samples(token_path);
  ModelConfig config = parse_model_config(text_of(folder + "/config.json"), folder + "/config.json");
  config.context = samples.sequence;
  ModelOptions how;
  how.type = DataType::fp32;
  how.late_head_gradient = part_elements != 0;
  if (part_elements != 0) how.table_part_elements = part_elements;
  const std::unique_ptr<Model> model = make_model(config, how);

  Workers workers(2);
  StackArena dry_arena = StackArena::dry_run();
  UseRecorder recorder;
  const MicroBatch shape = samples.step(0);
  model->train_micro_batch(HostOps(workers, best_instruction_set(), ProductType::fp32, true), recorder,
                           dry_arena, shape, 1.0f, "");
  OffloadOptions options;
  options.parameters = options.states = Placement::cpu;
  options.work_bytes = round_up(dry_arena.peak_bytes(), 4096);
  options.lock_host_memory = false;
  options.device_budget_bytes = options.host_budget_bytes = 4 * kGiB;
  const FlatSpace space(model->tensors(), 8 * kTileElements);
  options.device_budget_bytes = plan_memory(space, recorder.trace(), options).device_minimum_bytes;
  MemoryLog log;
  SimulatedDevice device({options.device_budget_bytes, false, 0, 0});
  Offloader offloader(space, options, recorder.trace(), device, workers, log);
  load_weights(WeightFolder(folder), *model, offloader, log);

  const HostOps ops(workers, best_instruction_set());
  StackArena arena(offloader.work_memory());
  GradientWitness witness(offloader, model->tensors());
  std::ofstream out(out_path, std::ios::binary);
  const auto write = [&](std::span<const float> values) {
    out.write(reinterpret_cast<const char*>(values.data()), static_cast<long>(values.size_bytes()));
  };
  std::vector<float> first_gradients;
  for (uint32_t step = 0; step < samples.steps; ++step) {
    offloader.begin_step();
    ParameterAccess& access = step == 0 ? static_cast<ParameterAccess&>(witness) : offloader;
    const float loss = model->train_micro_batch(ops, access, arena, samples.step(step), 1.0f, "");
    offloader.end_micro_batch();
    const std::vector<OptimizerSettings> settings = groups();
    const UpdateResult update = offloader.update({settings, step + 1, 1.0});
    write(std::vector<float>{loss, static_cast<float>(update.gradient_norm)});
  }
  for (const WeightSpec& weight : model->weights()) {
    std::printf("%s\n", weight.name.c_str());
    for (const TensorId part : weight.parts) write(witness.of(part));
  }
  samples.step(samples.steps - 1);
  std::vector<float> logits(model->config().vocabulary);
  offloader.begin_evaluation();
  const std::span<const int32_t> sample(samples.tokens.data(), samples.sequence);
  model->next_token_logits(ops, offloader, arena, {sample, {}, 1, samples.sequence}, logits, "next/");
  offloader.end_evaluation();
  write(logits);
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "train_folder FOLDER TOKENS OUT [PART_ELEMENTS]\n");
    return 2;
  }
  try {
    terrace::run(argv[1], argv[2], argv[3], argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
