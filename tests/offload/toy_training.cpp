#include "offload/toy_training.h"

#include <algorithm>

#include <terrace/optimizer_cpu/moment_codes.h>

#include "support/array_update.h"
#include "support/offloaders.h"

namespace terrace::toy {
namespace {

// What an operation contributes to a gradient: depends on the parameter, so that a wrong parameter shows at
// once.
float contribution(float parameter, uint64_t element, uint32_t micro_batch, uint32_t use) {
  return parameter * 0.5f +
         static_cast<float>(static_cast<int>((element * 7 + micro_batch * 3 + use) % 13) - 6) / 64.0f;
}

std::vector<TensorId> ids_of(const Use& use) {
  std::vector<TensorId> list;
  for (const uint32_t t : use.tensors) list.push_back(TensorId{t});
  return list;
}

}  // namespace

std::vector<TensorSpec> tensors(DataType type, bool with_frozen, uint32_t shared_uses) {
  std::vector<TensorSpec> list;
  auto add = [&](std::string name, std::vector<uint64_t> shape, uint32_t group, uint32_t uses,
                 bool trainable = true) {
    list.push_back({std::move(name), std::move(shape), type, trainable, group, uses});
  };
  add("shared", {61, 130}, 0, shared_uses);
  add("bias0", {70}, 1, 1);
  add("weight0", {100, 301}, 0, 1);
  add("bias1", {1}, 1, 1);
  add("weight1", {9000}, 0, 1);
  if (with_frozen) add("frozen", {77, 77}, 0, 1, false);
  add("weight2", {3, 4096}, 0, 1);
  add("norm", {515}, 1, 1);
  return list;
}

std::vector<Use> forward_uses(bool with_frozen) {
  const uint32_t shift = with_frozen ? 1 : 0;
  std::vector<Use> uses = {{"embed", {0}},
                           {"block0", {1, 2}},
                           {"block1", {3, 4}},
                           {"block2", {5 + shift, 6 + shift}},
                           {"head", {0}}};
  if (with_frozen) uses[3].tensors.push_back(5);
  return uses;
}

float initial_value(uint32_t tensor, uint64_t element) {
  const auto hash = static_cast<uint32_t>((tensor + 1) * 2654435761u + element * 40503u);
  return static_cast<float>(static_cast<int32_t>(hash % 2001) - 1000) / 4096.0f;
}

void initialise(Offloader& offloader) {
  offloader.state().initialise([](TensorId tensor, uint64_t first, std::span<float> values) {
    for (uint64_t e = 0; e < values.size(); ++e) values[e] = initial_value(index_of(tensor), first + e);
  });
}

float load(const std::byte* data, uint64_t element, DataType type) {
  if (type == DataType::fp32) return reinterpret_cast<const float*>(data)[element];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(data)[element];
  return type == DataType::bf16 ? to_float(Bf16{bits}) : to_float(Fp16{bits});
}

void store(std::byte* data, uint64_t element, DataType type, float value) {
  if (type == DataType::fp32) {
    reinterpret_cast<float*>(data)[element] = value;
  } else {
    reinterpret_cast<uint16_t*>(data)[element] =
        type == DataType::bf16 ? to_bf16(value).bits : to_fp16(value).bits;
  }
}

std::vector<OptimizerSettings> groups(OptimizerKind kind) {
  OptimizerSettings decayed;
  decayed.kind = kind;
  decayed.lr = 0.01;
  decayed.weight_decay = 0.1;
  OptimizerSettings plain = decayed;
  plain.weight_decay = 0;
  plain.lr = 0.02;
  return {decayed, plain};
}

std::vector<Use> uses_of(const std::vector<TensorSpec>& specs) {
  bool with_frozen = false;
  for (const TensorSpec& spec : specs) with_frozen |= !spec.trainable;
  std::vector<Use> uses = forward_uses(with_frozen);
  if (specs[0].backward_uses == 1) uses.pop_back();
  return uses;
}

void use_forward(ParameterAccess& access, const Use& use, MicroBatch micro_batch) {
  const std::vector<TensorId> list = ids_of(use);
  const Lease lease(access, "mb" + std::to_string(micro_batch.round) + "/" + use.name + "/forward", list,
                    UseKind::forward);
}

void use_backward(ParameterAccess& access, const std::vector<TensorSpec>& specs, const Use& use,
                  uint32_t number, MicroBatch micro_batch, float loss_scale) {
  const std::vector<TensorId> list = ids_of(use);
  const Lease lease(access, "mb" + std::to_string(micro_batch.round) + "/" + use.name + "/backward", list,
                    UseKind::backward);
  if (!micro_batch.has_data) return;
  for (const TensorId id : list) {
    const TensorSpec& spec = specs[index_of(id)];
    const std::byte* parameter = lease.parameter<std::byte>(id);
    if (!spec.trainable || parameter == nullptr) continue;
    const GradientView gradient = lease.gradient(id);
    const uint64_t count = spec.element_count();
    for (uint64_t e = 0; e < count; ++e) {
      const float mine =
          loss_scale * contribution(load(parameter, e, spec.type), e, micro_batch.number, number);
      store(gradient.data, e, spec.type,
            gradient.accumulate ? load(gradient.data, e, spec.type) + mine : mine);
    }
  }
}

void run_micro_batch(ParameterAccess& access, const std::vector<TensorSpec>& specs, MicroBatch micro_batch,
                     const std::string& skip, float loss_scale) {
  const std::vector<Use> uses = uses_of(specs);
  for (const Use& use : uses) {
    if (use.name != skip) use_forward(access, use, micro_batch);
  }
  for (uint32_t u = static_cast<uint32_t>(uses.size()); u-- > 0;) {
    if (uses[u].name != skip) use_backward(access, specs, uses[u], u, micro_batch, loss_scale);
  }
}

void run_layer_major(ParameterAccess& access, const std::vector<TensorSpec>& specs,
                     const std::vector<std::string>& skips, float loss_scale, StepRounds rounds,
                     uint32_t rank) {
  const std::vector<Use> uses = uses_of(specs);
  const std::vector<std::vector<uint32_t>> layers = {{0}, {1, 2}, {3}};
  const auto for_each_micro_batch = [&](auto body) {
    for (uint32_t m = 0; m < skips.size(); ++m) {
      access.select_micro_batch(m);
      body(m);
    }
  };
  for (const std::vector<uint32_t>& layer : layers) {
    for_each_micro_batch([&](uint32_t m) {
      for (const uint32_t u : layer) {
        if (uses[u].name != skips[m]) use_forward(access, uses[u], m);
      }
    });
  }
  for (size_t l = layers.size(); l-- > 0;) {
    for_each_micro_batch([&](uint32_t m) {
      for (size_t i = layers[l].size(); i-- > 0;) {
        const uint32_t u = layers[l][i];
        const MicroBatch micro_batch = rounds.ranks > 1 ? MicroBatch(rounds, m, rank) : MicroBatch(m);
        if (uses[u].name != skips[m]) use_backward(access, specs, uses[u], u, micro_batch, loss_scale);
      }
    });
  }
}

void lease_micro_batch(ParameterAccess& access, const std::vector<TensorSpec>& specs, uint32_t micro_batch) {
  UseRecorder recorder;
  run_micro_batch(recorder, specs, micro_batch);
  for (const TensorUse& use : recorder.trace())
    const Lease lease(access, use.operation, use.tensors, use.kind);
}

UpdateResult train_step(Offloader& offloader, const std::vector<TensorSpec>& specs, uint32_t accumulation,
                        const UpdateSettings& settings) {
  offloader.begin_step();
  offloader.announce_update(settings);
  for (uint32_t m = 0; m < accumulation; ++m) {
    run_micro_batch(offloader, specs, m);
    offloader.end_micro_batch();
  }
  return offloader.update(settings);
}

static float rounded(float value, DataType type) {
  alignas(float) std::byte bytes[sizeof(float)];
  store(bytes, 0, type, value);
  return load(bytes, 0, type);
}

Reference::Reference(std::vector<TensorSpec> specs, uint32_t accumulation, DataType accumulation_type)
    : specs_(std::move(specs)), accumulation_(accumulation), accumulation_type_(accumulation_type) {
  for (uint32_t t = 0; t < specs_.size(); ++t) {
    const uint64_t count = specs_[t].element_count();
    const uint64_t moments = round_up(count, kMomentBlock);  // room for whole blocks of codes
    Tensor tensor{std::vector<float>(count),
                  std::vector<float>(moments),
                  std::vector<float>(moments),
                  std::vector<float>(count),
                  std::vector<std::byte>(count * bytes_of(specs_[t].type)),
                  std::vector<std::byte>(count * bytes_of(specs_[t].type)),
                  0,
                  false,
                  0};
    for (uint64_t e = 0; e < count; ++e) {
      tensor.master[e] = initial_value(t, e);
      store(tensor.parameter.data(), e, specs_[t].type, tensor.master[e]);
    }
    tensors_.push_back(std::move(tensor));
  }
}

void Reference::begin_use(std::string_view, std::span<const TensorId> ids, UseKind kind) {
  leased_.assign(ids.begin(), ids.end());
  kind_ = kind;
}

void Reference::end_use() {
  if (kind_ != UseKind::backward) return;
  for (const TensorId id : leased_) {
    ++tensors_[index_of(id)].uses;
    tensors_[index_of(id)].has_gradient = true;
  }
}

GradientView Reference::gradient(TensorId id) {
  Tensor& tensor = tensors_[index_of(id)];
  return {tensor.gradient.data(), tensor.uses > 0};
}

void Reference::step(uint64_t step, const std::string& skip, float loss_scale) {
  step_skipping(step, std::vector<std::string>(accumulation_, skip), loss_scale);
}

void Reference::step_skipping(uint64_t step, const std::vector<std::string>& skips, float loss_scale) {
  for (Tensor& tensor : tensors_) tensor.has_gradient = false;
  for (uint32_t micro_batch = 0; micro_batch < accumulation_; ++micro_batch) {
    for (Tensor& tensor : tensors_) {
      std::fill(tensor.gradient.begin(), tensor.gradient.end(), std::byte{0});
      tensor.uses = 0;
    }
    run_micro_batch(*this, specs_, micro_batch, skips[micro_batch], loss_scale);
    for (uint32_t t = 0; t < specs_.size(); ++t) {
      for (uint64_t e = 0; e < tensors_[t].sum.size(); ++e) {
        const float g = load(tensors_[t].gradient.data(), e, specs_[t].type);
        tensors_[t].sum[e] = micro_batch == 0 ? g : rounded(tensors_[t].sum[e] + g, accumulation_type_);
      }
    }
  }
  const std::vector<OptimizerSettings> settings = groups();
  for (uint32_t t = 0; t < specs_.size(); ++t) {
    Tensor& tensor = tensors_[t];
    if (!specs_[t].trainable || (skips_unused_ && !tensor.has_gradient)) continue;
    ++tensor.steps;
    testing::ArrayRun arrays;
    const auto bytes = [](std::vector<float>& part) { return reinterpret_cast<std::byte*>(part.data()); };
    arrays.master = bytes(tensor.master);
    arrays.layout.moment_type = has_codes_ ? MomentType::int8 : MomentType::fp32;
    arrays.moments = {bytes(tensor.exp_avg), bytes(tensor.exp_avg_sq)};
    arrays.rounding_place = kernels::rounding_place_of(t, 0);
    arrays.gradients = reinterpret_cast<const std::byte*>(tensor.sum.data());
    arrays.gradient_type = DataType::fp32;
    arrays.parameters = tensor.parameter.data();
    arrays.parameter_type = specs_[t].type;
    arrays.element_count = tensor.master.size();
    testing::update_arrays(
        InstructionSet::scalar,
        make_optimizer_step(settings[specs_[t].group], skips_unused_ ? tensor.steps : step, 1 / loss_scale),
        arrays);
  }
}

std::vector<TensorUse> trace(const std::vector<TensorSpec>& specs, uint32_t accumulation, bool layer_major) {
  UseRecorder recorder;
  if (layer_major) {
    run_layer_major(recorder, specs, std::vector<std::string>(accumulation));
    return recorder.take_trace();
  }
  for (uint32_t m = 0; m < accumulation; ++m) run_micro_batch(recorder, specs, m);
  return recorder.take_trace();
}

OffloadOptions least_nvme_options(const FlatSpace& space, const std::vector<TensorUse>& uses,
                                  const std::filesystem::path& folder) {
  OffloadOptions options;
  options.parameters = options.states = Placement::nvme;
  options.parameter_paths = options.state_paths = {{folder}};
  options.io.kind = io::EngineKind::threads;
  testing::take_least_budgets(options, space, uses);
  return options;
}

}  // namespace terrace::toy
