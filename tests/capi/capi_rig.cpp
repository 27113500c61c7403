#include "capi/capi_rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <utility>

#include <terrace/base/log.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/offloader.h>

#include "capi/played_gpu.h"

namespace terrace::capi {

const std::vector<TensorSpec>& specs() {
  static const std::vector<TensorSpec> all = {
      {"a", {64, 100}, DataType::fp32, true, 0},
      {"b", {10000}, DataType::bf16, true, 1},
      {"c", {50, 100}, DataType::fp32, false, 0},
      {"d", {3, 1000}, DataType::fp32, true, 1},
  };
  return all;
}

float initial_value(uint32_t tensor, uint64_t element) {
  return 0.25f * static_cast<float>(tensor + 1) - 0.01f * static_cast<float>((element * 7 + tensor) % 61);
}

namespace {

constexpr uint64_t kHostBytes = 16 << 20;
constexpr double kClip = 5;
// The operations of a micro-batch, by their tensors.
const std::vector<std::vector<uint32_t>> kOperations = {{0, 1}, {2, 3}};

uint64_t device_bytes(const Case& c) {
  return c.parameters == TERRACE_DEVICE || c.states == TERRACE_DEVICE ? 4 << 20 : 512 << 10;
}

float load(const std::byte* data, uint64_t element, DataType type) {
  if (type == DataType::fp32) {
    float value;
    std::memcpy(&value, data + 4 * element, 4);
    return value;
  }
  Bf16 value;
  std::memcpy(&value, data + 2 * element, 2);
  return to_float(value);
}

void store(std::byte* data, uint64_t element, DataType type, float value) {
  if (type == DataType::fp32) {
    std::memcpy(data + 4 * element, &value, 4);
    return;
  }
  const Bf16 rounded = to_bf16(value);
  std::memcpy(data + 2 * element, &rounded, 2);
}

// The gradient of a tensor in a micro-batch, from its parameters.
void make_gradient(uint32_t tensor, uint64_t step, uint32_t micro_batch, const void* parameters, void* to) {
  const TensorSpec& spec = specs()[tensor];
  for (uint64_t e = 0; e < spec.element_count(); ++e) {
    const float weight = load(static_cast<const std::byte*>(parameters), e, spec.type);
    const auto wave = static_cast<float>((e * 5 + step * 3 + micro_batch * 2 + tensor) % 11) - 5;
    store(static_cast<std::byte*>(to), e, spec.type, 0.3f * weight + 0.02f * wave);
  }
}

uint64_t bytes_of_tensor(uint32_t tensor) {
  return specs()[tensor].element_count() * bytes_of(specs()[tensor].type);
}

int fill_value(void*, uint32_t tensor, uint64_t first, uint64_t count, float* values) {
  for (uint64_t i = 0; i < count; ++i) values[i] = initial_value(tensor, first + i);
  return 0;
}

std::vector<terrace_optimizer> c_groups() {
  std::vector<terrace_optimizer> groups(2, TERRACE_INIT(terrace_optimizer));
  groups[0].lr = 0.01;
  groups[0].weight_decay = 0.1;
  groups[1].lr = 0.02;
  return groups;
}

void append(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

bool is_well(terrace_error* error) {
  if (error == nullptr) return true;
  ADD_FAILURE() << terrace_error_text(error);
  terrace_error_free(error);
  return false;
}

uint32_t kind_of(terrace_error* error) {
  const uint32_t kind = terrace_error_kind_of(error);
  terrace_error_free(error);
  return kind;
}

void expect_kind(uint32_t kind, terrace_error* error) {
  ASSERT_NE(error, nullptr) << "an error of kind " << kind << " was expected";
  const std::string text = terrace_error_text(error);
  EXPECT_EQ(terrace_error_kind_of(error), kind) << text;
  terrace_error_parts parts = TERRACE_INIT(terrace_error_parts);
  terrace_error_get(error, &parts);
  EXPECT_EQ(parts.kind, terrace_error_kind_of(error));
  for (const char* part : {parts.what_failed, parts.subject, parts.reason}) EXPECT_STRNE(part, "") << text;
  EXPECT_STRNE(parts.advice, "") << text;
  EXPECT_EQ(text.find("OffloadOptions"), std::string::npos) << text;
  terrace_error_free(error);
}

void expect_harmless(terrace_error* error, const std::string& what) {
  if (error == nullptr) return;
  const uint32_t kind = terrace_error_kind_of(error);
  EXPECT_TRUE(kind == TERRACE_MISUSE || kind == TERRACE_CONFIG)
      << what << ", kind " << kind << ": " << terrace_error_text(error);
  terrace_error_free(error);
}

void damage_files(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.file_size() < 4096) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const std::vector<char> garbage(entry.file_size(), 'x');
    file.write(garbage.data(), static_cast<std::streamsize>(garbage.size()));
  }
}

// --- Arguments ---

Arguments::Arguments(const Case& c, const std::filesystem::path& folder)
    : folder_(folder), path_(folder_.c_str()) {
  if (c.gpu >= 0) {
    terrace_cuda_options cuda = TERRACE_INIT(terrace_cuda_options);
    cuda.ordinal = static_cast<uint32_t>(c.gpu);
    cuda.budget_bytes = device_bytes(c);
    cuda.strict = c.strict ? 1 : 0;
    is_well(terrace_device_cuda(&cuda, &device));
  } else {
    terrace_simulated_options simulated = TERRACE_INIT(terrace_simulated_options);
    simulated.budget_bytes = device_bytes(c);
    simulated.strict = c.strict ? 1 : 0;
    is_well(terrace_device_simulated(&simulated, &device));
  }
  memory.resize(specs().size());
  for (const TensorSpec& spec : specs()) {
    terrace_tensor tensor = TERRACE_INIT(terrace_tensor);
    tensor.name = spec.name.c_str();
    tensor.shape = spec.shape.data();
    tensor.rank = static_cast<uint32_t>(spec.shape.size());
    tensor.type = static_cast<uint32_t>(spec.type);
    tensor.frozen = spec.trainable ? 0 : 1;
    tensor.group = spec.group;
    if (c.callers && spec.trainable) {
      memory[tensors.size()].resize(spec.element_count() * bytes_of(spec.type));
      tensor.address = memory[tensors.size()].data();
    }
    tensors.push_back(tensor);
  }
  options.parameters = c.parameters;
  options.states = c.states;
  options.nvme_paths = &path_;
  options.nvme_path_count = 1;
  options.host_bytes = kHostBytes;
  options.chunk_elements = c.chunk_elements;
  options.accumulation_steps = c.accumulation;
  options.layer_major = c.layer_major ? 1 : 0;
  options.gradients = c.gradients;
  if (c.gradients == TERRACE_HANDED_OVER_ON_DEVICE) options.work_bytes = 32 << 10;  // for any of them
  options.unused_gradients = c.unused;
  options.update_when = c.update_when;
  options.threads = 2;
  options.durable = c.durable;
  options.resume = c.resume;
  options.retained_commits = c.retained;
  options.no_host_lock = 1;
  options.ranks = c.ranks;
  options.rank_exchange = c.rank_exchange;
  options.saved_activations = c.saved;
  options.divide_parameters = c.divided ? 1 : 0;
  if (c.least_host) {
    terrace_plan_result least = TERRACE_INIT(terrace_plan_result);
    is_well(plan(&least));
    options.host_bytes = least.host_least_bytes;
  }
  if (!c.announced) return;
  used_ = kOperations;
  for (size_t o = 0; o < used_.size(); ++o) keys_.push_back("op" + std::to_string(o));
  for (size_t o = 0; o < used_.size(); ++o) {
    terrace_use unit = TERRACE_INIT(terrace_use);
    unit.kind = TERRACE_UNIT;
    unit.key = keys_[o].c_str();
    unit.tensors = used_[o].data();
    unit.tensor_count = static_cast<uint32_t>(used_[o].size());
    uses.push_back(unit);
  }
}

Arguments::~Arguments() {
  terrace_device_free(device);
}

terrace_error* Arguments::plan(terrace_plan_result* result) const {
  return terrace_plan(device, tensors.data(), static_cast<uint32_t>(tensors.size()), &options, uses.data(),
                      static_cast<uint32_t>(uses.size()), result);
}

terrace_error* Arguments::create(terrace_store** created) const {
  return terrace_create(device, tensors.data(), static_cast<uint32_t>(tensors.size()), &options, uses.data(),
                        static_cast<uint32_t>(uses.size()), created);
}

// --- Training ---

Training::Training(const Case& c, const std::filesystem::path& folder, bool filled)
    : case_(c), groups_(c_groups()) {
  Arguments arguments(c, folder);
  is_well(arguments.create(&store_));
  memory_ = std::move(arguments.memory);
  if (filled && c.resume == 0) fill();
}

Training::~Training() {
  end();
}

void Training::end() {
  terrace_destroy(store_);
  store_ = nullptr;
}

void Training::move_tensors() {
  for (uint32_t t = 0; t < memory_.size(); ++t) {
    if (memory_[t].empty()) continue;
    std::vector<std::byte> moved = memory_[t];
    is_well(terrace_move_tensor(store_, t, moved.data()));
    std::ranges::fill(memory_[t], std::byte{0xff});
    memory_[t] = std::move(moved);
  }
}

const void* Training::parameters(uint32_t tensor) {
  if (!memory_[tensor].empty()) return memory_[tensor].data();
  const void* leased = nullptr;
  is_well(terrace_parameter(store_, tensor, &leased));
  return leased;
}

void* Training::compute_stream() {
  void* stream = nullptr;
  is_well(terrace_compute_stream(store_, &stream));
  return stream;
}

// Memory of the played driver is this machine's, and what it was asked for goes on beside this thread.
void Training::wait_for_gpu() {
  if (case_.gpu < 0) return;
  ASSERT_EQ(driver_call<int(void*)>("cuStreamSynchronize")(compute_stream()), 0);
  on_their_way_.clear();
}

// On the GPU nothing waits: a gradient comes to its memory behind what is under way there, and is gone from
// there behind the call.
void Training::hand_over(uint32_t tensor, std::vector<std::byte> gradient) {
  const auto type = static_cast<uint32_t>(specs()[tensor].type);
  if (case_.gradients != TERRACE_HANDED_OVER_ON_DEVICE) {
    is_well(terrace_hand_over(store_, tensor, gradient.data(), type, 0));
    return;
  }
  void* place = nullptr;
  uint64_t bytes = 0;
  is_well(terrace_work_memory(store_, &place, &bytes));
  ASSERT_GE(bytes, gradient.size());
  const auto address = reinterpret_cast<uint64_t>(place);
  const CurrentGpu current(case_.gpu);
  const std::vector<std::byte>& source = on_their_way_.emplace_back(std::move(gradient));
  const auto copy = driver_call<int(uint64_t, const void*, size_t, void*)>("cuMemcpyHtoDAsync_v2");
  ASSERT_EQ(copy(address, source.data(), source.size(), compute_stream()), 0);
  is_well(terrace_hand_over(store_, tensor, place, type, 0));
  const auto fill = driver_call<int(uint64_t, unsigned char, size_t, void*)>("cuMemsetD8Async");
  ASSERT_EQ(fill(address, 0x7f, source.size(), compute_stream()), 0);
}

void Training::fill() {
  is_well(terrace_fill_with(store_, fill_value, nullptr));
}

terrace_update_settings Training::settings(uint64_t number) {
  terrace_update_settings settings = TERRACE_INIT(terrace_update_settings);
  settings.groups = groups_.data();
  settings.group_count = 2;
  settings.step = number;
  settings.clip_norm = kClip;
  return settings;
}

void Training::use(uint64_t number, uint32_t micro_batch, uint32_t kind, const std::vector<uint32_t>& tensors,
                   const std::string& key, const Between& between) {
  const bool hands_over = case_.gradients != TERRACE_LEASED;
  const bool backward = kind == TERRACE_BACKWARD;
  std::vector<uint32_t> leased;
  std::ranges::copy_if(tensors, std::back_inserter(leased), [&](uint32_t t) { return memory_[t].empty(); });
  uint64_t lease = 0;
  if (!is_well(terrace_lease(store_, key.c_str(), backward && hands_over ? uint32_t{TERRACE_FORWARD} : kind,
                             leased.data(), static_cast<uint32_t>(leased.size()), &lease)))
    return;
  wait_for_gpu();
  if (between) between("in a lease");
  for (const uint32_t tensor : tensors) {
    const void* const values = parameters(tensor);
    if (!backward || tensor == kFrozen) continue;
    std::vector<std::byte> gradient(bytes_of_tensor(tensor));
    make_gradient(tensor, number, micro_batch * case_.rank_count + case_.rank, values, gradient.data());
    if (hands_over) {
      hand_over(tensor, std::move(gradient));
      continue;
    }
    terrace_gradient_view view = TERRACE_INIT(terrace_gradient_view);
    is_well(terrace_gradient(store_, tensor, &view));
    EXPECT_EQ(view.accumulate, 0u);
    std::memcpy(view.data, gradient.data(), gradient.size());
  }
  is_well(terrace_release(store_, lease));
  if (between) between("in a step");
}

void Training::micro_batch(uint64_t number, uint32_t micro_batch, const Between& between) {
  const uint64_t of_all = number * 5 + micro_batch * case_.rank_count + case_.rank;
  const auto is_used = [&](size_t operation) { return !case_.leaves_out || (of_all + operation) % 3 != 0; };
  for (size_t o = 0; o < kOperations.size(); ++o) {
    if (is_used(o))
      use(number, micro_batch, TERRACE_FORWARD, kOperations[o], "op" + std::to_string(o) + "/forward",
          between);
  }
  for (size_t o = kOperations.size(); o-- > 0;) {
    if (is_used(o))
      use(number, micro_batch, TERRACE_BACKWARD, kOperations[o], "op" + std::to_string(o) + "/backward",
          between);
  }
  is_well(terrace_end_micro_batch(store_));
}

void Training::micro_batches_together(uint64_t number, const Between& between) {
  const auto in_all = [&](size_t operation, uint32_t kind, const char* pass) {
    for (uint32_t m = 0; m < case_.accumulation; ++m) {
      is_well(terrace_select_micro_batch(store_, m));
      use(number, m, kind, kOperations[operation], "op" + std::to_string(operation) + pass, between);
    }
  };
  for (size_t o = 0; o < kOperations.size(); ++o) in_all(o, TERRACE_FORWARD, "/forward");
  for (size_t o = kOperations.size(); o-- > 0;) in_all(o, TERRACE_BACKWARD, "/backward");
  is_well(terrace_end_micro_batch(store_));
}

void Training::end_step(uint64_t number) {
  const terrace_update_settings given = settings(number);
  terrace_update_result result = TERRACE_INIT(terrace_update_result);
  is_well(terrace_update(store_, &given, &result));
  EXPECT_EQ(result.applied, 1u);
  norms_.push_back(static_cast<float>(result.gradient_norm));
}

void Training::step(uint64_t number, const Between& between) {
  is_well(terrace_begin_step(store_));
  if (between) between("in a step");
  for (uint32_t m = 0; m < case_.accumulation && !case_.layer_major; ++m) {
    if (case_.update_when == TERRACE_DURING_BACKWARD && m + 1 == case_.accumulation) {
      const terrace_update_settings given = settings(number);
      is_well(terrace_announce_update(store_, &given));
    }
    micro_batch(number, m, between);
  }
  if (case_.layer_major) micro_batches_together(number, between);
  if (between) between("after all micro-batches");
  end_step(number);
}

std::vector<float> Training::state() {
  std::vector<float> all;
  for (uint32_t t = 0; t < specs().size(); ++t) {
    std::vector<float> values(specs()[t].element_count());
    for (const uint32_t what :
         {TERRACE_PARAMETER, TERRACE_MASTER, TERRACE_FIRST_MOMENT, TERRACE_SECOND_MOMENT}) {
      if (t == kFrozen && what != TERRACE_PARAMETER) continue;
      is_well(terrace_read_values(store_, t, what, 0, values.size(), values.data()));
      append(all, values);
    }
  }
  append(all, norms_);
  return all;
}

// --- The same through the Offloader ---

namespace {

OffloadOptions offload_options(const Case& c, const std::filesystem::path& folder) {
  OffloadOptions options;
  options.parameters = static_cast<Placement>(c.parameters);
  options.states = static_cast<Placement>(c.states);
  options.parameter_paths = options.state_paths = {{folder}};
  options.device_budget_bytes = device_bytes(c);
  options.host_budget_bytes = kHostBytes;
  options.micro_batches = c.accumulation;
  options.gradients = static_cast<GradientOrigin>(c.gradients);
  options.lock_host_memory = false;
  options.io.kind = io::EngineKind::threads;
  return options;
}

void use(Offloader& offloader, const Case& c, uint64_t step, uint32_t micro_batch, UseKind kind,
         size_t number) {
  const std::vector<uint32_t>& tensors = kOperations[number];
  std::vector<TensorId> ids;
  for (const uint32_t tensor : tensors) ids.push_back(TensorId{tensor});
  const bool hands_over = c.gradients == TERRACE_HANDED_OVER;
  const bool backward = kind == UseKind::backward;
  const Lease lease(offloader, "op" + std::to_string(number) + (backward ? "/backward" : "/forward"), ids,
                    backward && hands_over ? UseKind::forward : kind);
  for (const uint32_t tensor : tensors) {
    if (!backward || tensor == kFrozen) continue;
    std::vector<std::byte> gradient(bytes_of_tensor(tensor));
    make_gradient(tensor, step, micro_batch, lease.parameter<std::byte>(TensorId{tensor}), gradient.data());
    if (hands_over) {
      offloader.hand_over_gradient(TensorId{tensor}, gradient);
    } else {
      std::memcpy(lease.gradient(TensorId{tensor}).data, gradient.data(), gradient.size());
    }
  }
}

float step_of(Offloader& offloader, const Case& c, uint64_t step) {
  const std::vector<OptimizerSettings> groups = {{.lr = 0.01, .weight_decay = 0.1}, {.lr = 0.02}};
  offloader.begin_step();
  for (uint32_t m = 0; m < c.accumulation; ++m) {
    for (size_t o = 0; o < kOperations.size(); ++o) use(offloader, c, step, m, UseKind::forward, o);
    for (size_t o = kOperations.size(); o-- > 0;) use(offloader, c, step, m, UseKind::backward, o);
    offloader.end_micro_batch();
  }
  return static_cast<float>(offloader.update({groups, step, kClip}).gradient_norm);
}

}  // namespace

std::vector<float> train_through_offloader(const Case& c, const std::filesystem::path& folder,
                                           uint64_t steps) {
  const FlatSpace space(specs(), c.chunk_elements);
  MemoryLog log;
  Workers workers(2);
  SimulatedDevice device({device_bytes(c)});
  Offloader offloader(space, offload_options(c, folder), {}, device, workers, log);
  offloader.state().initialise([](TensorId tensor, uint64_t first, std::span<float> values) {
    fill_value(nullptr, index_of(tensor), first, values.size(), values.data());
  });
  std::vector<float> norms, all;
  for (uint64_t step = 1; step <= steps; ++step) norms.push_back(step_of(offloader, c, step));
  for (uint32_t t = 0; t < specs().size(); ++t) {
    std::vector<float> values(specs()[t].element_count());
    for (const ValueKind what :
         {ValueKind::parameter, ValueKind::master, ValueKind::first_moment, ValueKind::second_moment}) {
      if (t == kFrozen && what != ValueKind::parameter) continue;
      offloader.state().read_values(TensorId{t}, what, 0, values);
      append(all, values);
    }
  }
  append(all, norms);
  return all;
}

}  // namespace terrace::capi
