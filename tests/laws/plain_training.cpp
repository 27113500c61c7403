#include "laws/plain_training.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include <terrace/memory/space/flat_space.h>
#include <terrace/optimizer_cpu/masters.h>
#include <terrace/optimizer_cpu/moment_codes.h>
#include <terrace/reference/model/compute/host_ops.h>

#include "support/array_update.h"
#include "support/bit_sum.h"
#include "support/in_memory_parameters.h"
#include "support/plain_newton_schulz.h"

namespace terrace::laws {

OptimizerSettings law_optimizer(std::string_view name) {
  OptimizerSettings settings;
  settings.lr = 0.004;
  settings.beta2 = 0.95;
  settings.weight_decay = 0.1;
  settings.adamw_mode = name == "adamw";
  if (name == "adagrad") {
    settings.kind = OptimizerKind::adagrad;
    settings.lr = 0.02;
  } else if (name == "lion") {
    settings.kind = OptimizerKind::lion;
    settings.lr = 0.001;
  } else if (name == "sgd" || name == "plain sgd") {
    settings.kind = OptimizerKind::sgd;
    settings.lr = 0.05;
    settings.momentum = name == "sgd" ? 0.9 : 0;
    settings.dampening = name == "sgd" ? 0.25 : 0;
  } else if (name == "muon") {
    settings.kind = OptimizerKind::muon;
    settings.lr = 0.01;
    settings.eps = 1e-7;
    settings.momentum = 0.9;
    settings.nesterov = true;
  } else if (name != "adamw" && name != "adam") {
    throw std::invalid_argument(std::string(name));
  }
  return settings;
}

RecordLayout Training::layout() const {
  RecordLayout layout;
  const bool has_adam = optimizer.kind == OptimizerKind::muon;  // for the rest
  layout.moment_count = has_adam ? 2 : moment_count(optimizer.kind, optimizer.momentum);
  if (layout.moment_count > 0) layout.moment_type = moment_type;
  return layout;
}

void Training::declare_matrices(std::vector<TensorSpec>& tensors) const {
  if (optimizer.kind != OptimizerKind::muon) return;
  for (TensorSpec& tensor : tensors) {
    const bool is_table = tensor.name.find("wte") != std::string::npos ||
                          tensor.name.find("wpe") != std::string::npos ||
                          tensor.name.find("embed") != std::string::npos;
    tensor.by_matrix = tensor.trainable && tensor.shape.size() == 2 && !is_table;
    if (tensor.by_matrix) tensor.group = 2;
  }
}

bool Training::has_gradient(uint64_t step, TensorId tensor) const {
  if (gradients == GradientOrigin::leases) return true;
  return !(step == 1 && index_of(tensor) % 5 == 2) && !(step == 3 && index_of(tensor) % 3 == 1);
}

std::vector<OptimizerSettings> settings(uint64_t step, const OptimizerSettings& optimizer) {
  OptimizerSettings own = optimizer;
  own.lr = optimizer.lr / static_cast<double>(step);
  if (own.kind == OptimizerKind::muon) {
    std::vector<OptimizerSettings> groups = settings(step, law_optimizer("adamw"));
    groups.push_back(own);
    return groups;
  }
  OptimizerSettings plain = own;
  plain.weight_decay = 0;
  return {own, plain};
}

float loss_scale_of(DataType type, uint64_t step) {
  if (type != DataType::fp16) return 1;
  return step == 2 ? 0x1p25f : 1024;
}

TokenBatch::TokenBatch(const ModelConfig& config, uint64_t seed) : sequence_(config.context) {
  std::vector<int32_t> stream;
  for (uint64_t i = 0; i <= sequence_; ++i) {
    stream.push_back(static_cast<int32_t>((seed * 31 + i * i * 7 + i * seed) % config.vocabulary));
  }
  tokens_.assign(stream.begin(), stream.end() - 1);
  targets_.assign(stream.begin() + 1, stream.end());
}

MicroBatch TokenBatch::view() const {
  return {tokens_, targets_, 1, sequence_};
}

LayerMajorBatch::LayerMajorBatch(const ModelConfig& config, uint64_t step, const StepRounds& rounds,
                                 uint32_t rank) {
  for (uint32_t m = 0; m < rounds.count(); ++m) {
    tokens.emplace_back(config, step * 10 + rounds.number(m, rank));
    prefixes.push_back(micro_batch_prefix(m));
  }
  for (uint32_t m = 0; m < rounds.count(); ++m) runs.push_back({tokens[m].view(), prefixes[m]});
}

DryRun run_dry(const Model& model, uint32_t accumulation, Workers& workers, ActivationOffload activations,
               bool layer_major) {
  TrainConfig config;
  config.batch = {.micro_batches = accumulation, .layer_major = layer_major};
  config.activations.offload = activations;
  return run_dry(model, config, workers);
}

namespace {

// Everything of the trainable sections laid end to end, as the flat space does it, in fp32.
struct FlatState {
  FlatState(const FlatSpace& space, const RecordLayout& shape) : layout(shape) {
    uint64_t elements = 0;
    for (const Section& section : space.sections()) {
      first_of_section.push_back(elements);
      if (section.trainable) elements += section.elements;
    }
    master.resize(elements), gradient.resize(elements);
    for (uint32_t m = 0; m < layout.moment_count; ++m)
      moments[m].resize(elements * bytes_of(layout.moment_type));
  }
  uint64_t first_of(const TensorPlace& place) const {
    return first_of_section[place.section] + place.first_element;
  }
  std::vector<uint64_t> first_of_section;
  RecordLayout layout;
  std::vector<float> master, gradient;
  std::array<std::vector<std::byte>, 2> moments;
};

float rounded(float value, DataType type) {
  if (type == DataType::fp32) return value;
  return type == DataType::bf16 ? to_float(to_bf16(value)) : to_float(to_fp16(value));
}

// Every 64 numbers become integers with one scale (optimizer_cpu/quantization.h), written out here.
void round_plainly(std::span<float> values, DataType type, uint32_t bits) {
  const float levels = bits == 8 ? 127.0f : 7.0f;
  for (size_t first = 0; first < values.size(); first += 64) {
    const std::span<float> block = values.subspan(first, std::min<size_t>(64, values.size() - first));
    float largest = 0;
    for (const float value : block) {
      if (!std::isfinite(value)) largest = std::numeric_limits<float>::quiet_NaN();
      if (!std::isnan(largest)) largest = std::max(largest, std::abs(value));
    }
    const bool is_tiny = largest < 0x1p-100f;
    if (!std::isnan(largest))
      largest = std::min(to_float(to_bf16(largest)), type == DataType::fp16 ? 65280.0f : 0x1.fep127f);
    for (float& value : block) {
      const float code =
          std::clamp(std::nearbyint(value * (levels / largest)), -levels, levels) + 0.0f;  // no -0
      value = std::isnan(largest) ? largest : is_tiny ? 0.0f : rounded(code * (largest / levels), type);
    }
  }
}

double norm_of(const std::vector<float>& gradient, double squares_elsewhere) {
  testing::BitSum sum;
  sum.add(squares_elsewhere);
  for (size_t block = 0; block < gradient.size(); block += 4096) {
    std::array<double, 16> lanes{};
    for (size_t i = 0; i < 4096; ++i) {
      const double g = gradient[block + i];
      lanes[i % 16] += g * g;
    }
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    if (!std::isfinite(lanes[0])) return lanes[0];
    sum.add(lanes[0]);
  }
  return std::sqrt(sum.value());
}

void round_parameters(testing::InMemoryParameters& parameters, TensorId tensor, uint32_t bits) {
  const DataType type = parameters.spec(tensor).type;
  if (bits == 0 || type == DataType::fp32 || !parameters.spec(tensor).trainable) return;
  std::vector<float> values = parameters.parameter_values(tensor);
  round_plainly(values, type, bits);
  std::ranges::copy(testing::bytes_from(values, type), parameters.parameter_bytes(tensor).begin());
}

// The momentum makes u, out of which o is made, by which the masters change.
void update_matrix(const TensorSpec& tensor, const OptimizerSettings& settings, ProductType products,
                   uint64_t step, float scale, const testing::ArrayRun& arrays) {
  const uint64_t rows = tensor.shape[0], columns = tensor.shape[1];
  const MuonSteps steps = make_muon_steps(settings, step, scale, rows, columns);
  testing::Values made(arrays.element_count);
  testing::ArrayRun momentum = arrays;
  momentum.layout.master = MasterForm::parameter;
  momentum.parameters = reinterpret_cast<std::byte*>(made.data());
  momentum.old_parameters = momentum.parameters;
  momentum.parameter_type = DataType::fp32;
  testing::update_arrays(InstructionSet::scalar, steps.momentum, momentum);
  for (float& value : made) value = testing::rounded_to_bf16(value);
  Workers one(1);
  made = products == ProductType::fp32
             ? testing::orthogonalised_plainly(made, {rows, columns}, settings)
             : testing::orthogonalised(made, {rows, columns}, settings,
                                       NewtonSchulz(one, InstructionSet::scalar, products));
  testing::ArrayRun weights = arrays;
  weights.layout.moment_count = 0;
  weights.gradients = reinterpret_cast<const std::byte*>(made.data());
  testing::update_arrays(InstructionSet::scalar, steps.weights, weights);
}

// `steps` has the step of every tensor, or 0 where it is left out.
void update(const FlatSpace& space, FlatState& state, testing::InMemoryParameters& parameters,
            const std::vector<OptimizerSettings>& groups, const std::vector<uint64_t>& steps, float scale,
            const Training& training) {
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    if (!space.tensor(TensorId{t}).trainable || steps[t] == 0) continue;
    const uint64_t first = state.first_of(space.place(TensorId{t}));
    testing::ArrayRun arrays;
    arrays.layout = state.layout;
    arrays.master = reinterpret_cast<std::byte*>(state.master.data() + first);
    for (uint32_t m = 0; m < state.layout.moment_count; ++m)
      arrays.moments[m] = state.moments[m].data() + first * bytes_of(state.layout.moment_type);
    arrays.gradients = reinterpret_cast<const std::byte*>(state.gradient.data() + first);
    arrays.gradient_type = DataType::fp32;
    arrays.parameters = parameters.parameter_bytes(TensorId{t}).data();
    arrays.parameter_type = space.tensor(TensorId{t}).type;
    arrays.element_count = space.place(TensorId{t}).elements;
    arrays.rounding_place = kernels::rounding_place_of(t, 0);
    const OptimizerSettings& settings = groups[space.tensor(TensorId{t}).group];
    if (settings.kind == OptimizerKind::muon) {
      update_matrix(space.tensor(TensorId{t}), settings, training.products, steps[t], scale, arrays);
    } else {
      testing::update_arrays(InstructionSet::scalar, make_optimizer_step(settings, steps[t], scale), arrays);
    }
    round_parameters(parameters, TensorId{t}, training.parameter_bits);
  }
}

// Canonical ones.
std::vector<std::byte> tiles_of(const FlatState& state) {
  std::vector<std::byte> tiles;
  for (size_t first = 0; first < state.master.size(); first += kTileElements) {
    const auto* master = reinterpret_cast<const std::byte*>(state.master.data() + first);
    tiles.insert(tiles.end(), master, master + state.layout.master_bytes());
    for (uint32_t m = 0; m < state.layout.moment_count; ++m) {
      const std::byte* moment = state.moments[m].data() + first * bytes_of(state.layout.moment_type);
      tiles.insert(tiles.end(), moment, moment + state.layout.moment_bytes());
    }
  }
  if (state.layout.is_canonical()) return tiles;
  const size_t count = tiles.size() / state.layout.tile_bytes();
  std::vector<std::byte> canonical(count * state.layout.canonical().tile_bytes());
  join_tiles(InstructionSet::scalar, state.layout, tiles.data(), nullptr, canonical.data(), count);
  return canonical;
}

}  // namespace

Outcome train_plainly(const Model& model, const Training& training) {
  std::vector<TensorSpec> tensors = model.tensors();
  std::vector<std::vector<std::byte>> memory;  // never used
  testing::give_to_caller(tensors, training.callers, memory);
  training.declare_matrices(tensors);
  const FlatSpace space(tensors, kTileElements);
  Workers workers(1);
  const HostOps ops(workers, best_instruction_set(), training.products);
  const DryRun dry = run_dry(model, training.accumulation, workers);
  std::vector<std::byte> work(dry.work_bytes + 64);
  void* begin = work.data();
  size_t room = work.size();
  std::align(64, dry.work_bytes, begin, room);
  StackArena arena({static_cast<std::byte*>(begin), dry.work_bytes});
  testing::InMemoryParameters parameters(model.tensors(),
                                         [&](TensorId tensor, uint64_t first, std::span<float> out) {
                                           model.initial_values(tensor, first, out);
                                         });
  FlatState state(space, training.layout());
  std::vector<float> group(state.gradient.size());  // the sum of the open one
  const auto add = [&](float& sum, float part, bool is_first) {
    sum = is_first ? part : rounded(sum + part, training.accumulation_type);
  };
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    if (!space.tensor(TensorId{t}).trainable) continue;
    const TensorPlace& place = space.place(TensorId{t});
    model.initial_values(TensorId{t}, 0, {state.master.data() + state.first_of(place), place.elements});
    round_parameters(parameters, TensorId{t}, training.parameter_bits);
  }
  Outcome outcome;
  uint64_t updates = 0;
  std::vector<uint64_t> own_steps(space.tensor_count());
  for (uint64_t step = 1; step <= kSteps; ++step) {
    const float loss_scale = loss_scale_of(training.type, step);
    for (uint32_t m = 0; m < training.accumulation; ++m) {
      parameters.begin_micro_batch();
      const TokenBatch tokens(model.config(), step * 10 + m);
      outcome.losses.push_back(std::bit_cast<uint32_t>(model.train_micro_batch(
          ops, parameters, arena, tokens.view(), loss_scale / static_cast<float>(training.accumulation),
          micro_batch_prefix(m))));
      for (uint32_t t = 0; t < space.tensor_count(); ++t) {
        if (!space.tensor(TensorId{t}).trainable) continue;
        std::vector<float> gradient = parameters.gradient_values(TensorId{t});
        if (!training.has_gradient(step, TensorId{t})) std::ranges::fill(gradient, 0.0f);
        const uint64_t first = state.first_of(space.place(TensorId{t}));
        const bool ends_group = (m + 1) % training.group == 0 || m + 1 == training.accumulation;
        for (size_t e = 0; e < gradient.size(); ++e)
          add(group[first + e], gradient[e], m % training.group == 0);
        if (!ends_group) continue;
        std::vector<float> joining(group.begin() + static_cast<ptrdiff_t>(first),
                                   group.begin() + static_cast<ptrdiff_t>(first + gradient.size()));
        if (training.gradient_bits > 0)
          round_plainly(joining, training.accumulation_type, training.gradient_bits);
        for (size_t e = 0; e < gradient.size(); ++e)
          add(state.gradient[first + e], joining[e], m < training.group);
      }
    }
    const double norm = norm_of(state.gradient, training.squares_elsewhere) / loss_scale;
    outcome.gradient_norms.push_back(std::isfinite(norm) ? std::bit_cast<uint64_t>(norm) : 0);
    if (!std::isfinite(norm)) continue;
    const double clip = training.clip_norm > 0 ? std::min(1.0, training.clip_norm / (norm + 1e-6)) : 1.0;
    ++updates;
    std::vector<uint64_t> steps(space.tensor_count(), updates);
    if (training.unused == UnusedGradients::skip) {
      for (uint32_t t = 0; t < space.tensor_count(); ++t)
        steps[t] = training.has_gradient(step, TensorId{t}) ? ++own_steps[t] : 0;
    }
    update(space, state, parameters, settings(updates, training.optimizer), steps,
           static_cast<float>(clip / loss_scale), training);
  }
  const TokenBatch held_out(model.config(), 999);
  outcome.losses.push_back(
      std::bit_cast<uint32_t>(model.evaluate(ops, parameters, arena, held_out.view(), "eval/")));
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    const std::span<const std::byte> bytes = parameters.parameter_bytes(TensorId{t});
    outcome.parameters.insert(outcome.parameters.end(), bytes.begin(), bytes.end());
  }
  outcome.records = tiles_of(state);
  return outcome;
}

}  // namespace terrace::laws
