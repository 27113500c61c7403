#include <terrace/capi/request.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include <terrace/aio/engine.h>
#include <terrace/capi/device.h>
#include <terrace/capi/errors.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/optimizer.h>
#include <terrace/capi/store_of_ranks.h>
#include <terrace/capi/structs.h>
#include <terrace/memory/space/space_layout.h>
#include <terrace/optimizer_cpu/optimizer_table.h>
#include <terrace/runtime/config/tier_paths.h>

namespace terrace::c {
namespace {

TensorSpec tensor_of(const terrace_tensor& given, uint32_t number, const Subject& action) {
  const std::string subject = fmt::format("tensor {}", number);
  require_pointer(given.name, action, subject + ": name");
  if (given.rank == 0)
    misuse(action, given.name, "its shape has no dimension", "give a scalar the shape [1]");
  require_list(given.shape, given.rank, action, subject + ": shape");
  require_enum(given.type, kTypes, action, subject + ": type");
  if (given.type == TERRACE_WORD && given.frozen == 0)
    refuse(ErrorKind::config, action, given.name, "it is trained, and words are no numbers",
           "freeze it, or give it in a type of numbers");
  TensorSpec spec;
  spec.name = given.name;
  spec.shape.assign(given.shape, given.shape + given.rank);
  spec.type = data_type_of(given.type);
  spec.trainable = given.frozen == 0;
  spec.group = given.group;
  spec.backward_uses = given.backward_uses == 0 ? 1 : given.backward_uses;
  if (given.address != nullptr) spec.home = TensorHome::caller;
  spec.memory = static_cast<std::byte*>(given.address);
  spec.rounding_place = given.rounding_place;
  spec.by_matrix = given.by_matrix != 0;
  spec.counted_elsewhere = given.counted_elsewhere != 0;
  if (given.rounding_place % kTensorAlignment != 0)
    misuse(action, given.name, fmt::format("rounding_place is {}", given.rounding_place),
           "give a multiple of 64, or 0");
  return spec;
}

void read_tensors(const RequestArguments& arguments, Request& request, const Subject& action) {
  const auto tensors = taken_list(arguments.tensors, arguments.tensor_count, action, "tensors");
  if (tensors.empty())
    refuse(ErrorKind::config, action, "tensors", "there are none", "describe one at least");
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    request.tensors.push_back(tensor_of(tensors[t], t, action));
    request.are_words.push_back(tensors[t].type == TERRACE_WORD);
  }
}

RecordLayout layout_of(const terrace_options& given, const Subject& action) {
  require_enum(given.optimizer, kOptimizers.size(), action, Option::optimizer);
  require_enum(given.moment_type, 3, action, Option::moment_type);
  RecordLayout layout;
  require_enum(given.masters, 3, action, Option::masters);
  layout.master = static_cast<MasterForm>(given.masters);
  layout.moment_count = moment_count(optimizer_kind(given.optimizer), given.sgd_momentum != 0 ? 1 : 0);
  layout.moment_type = static_cast<MomentType>(given.moment_type);
  return layout;
}

std::vector<TierPath> paths_of(const terrace_options& given, const Subject& action) {
  require_list(given.nvme_paths, given.nvme_path_count, action, Option::nvme_path);
  std::vector<TierPath> paths;
  for (uint32_t p = 0; p < given.nvme_path_count; ++p) {
    require_pointer(given.nvme_paths[p], action, fmt::format("path {}", p));
    paths.push_back({given.nvme_paths[p]});
  }
  const bool wants_paths = given.parameters == TERRACE_NVME || given.states == TERRACE_NVME ||
                           given.saved_activations == TERRACE_NVME;
  if (wants_paths && paths.empty())
    refuse(ErrorKind::config, action, Option::nvme_path,
           "something is placed on nvme, and there are no paths", "name one existing folder at least");
  return paths;
}

void read_placement(const terrace_options& given, Request& request, const Subject& action) {
  OffloadOptions& options = request.options;
  require_enum(given.parameters, 3, action, Option::parameters);
  require_enum(given.states, 3, action, Option::states);
  require_enum(given.saved_activations, 3, action, Option::saved_activations);
  options.saved_activations = static_cast<Placement>(given.saved_activations);
  options.parameters = static_cast<Placement>(given.parameters);
  options.states = static_cast<Placement>(given.states);
  options.parameter_paths = options.state_paths = paths_of(given, action);
  if (given.tier_name != nullptr) request.tier_name = given.tier_name;
  options.tier_name = tier_name_of({options.rank, options.ranks}, request.tier_name);
  require_at_most(given.retained_commits, kMostRetainedCommits, action, Option::retained_commits);
  options.durable = given.durable != 0;
  options.retained_commits = given.retained_commits;
  options.tier_start = given.resume != 0 ? TierStart::resume : TierStart::fresh;
  options.discard_commits = given.discard_commits != 0;
  const bool on_nvme = options.parameters == Placement::nvme || options.states == Placement::nvme;
  if (given.resume != 0 && !on_nvme)
    refuse(ErrorKind::config, action, Option::resume, "nothing is placed on nvme",
           "place the state as the run did that is to go on");
}

void read_budgets(const terrace_options& given, OffloadOptions& options, const Subject& action) {
  require_bytes(given.host_bytes, action, Option::host_budget);
  require_bytes(given.work_bytes, action, Option::work_bytes);
  options.host_budget_bytes = given.host_bytes;
  options.work_bytes = given.work_bytes;
}

void read_steps(const terrace_options& given, OffloadOptions& options, const Subject& action) {
  const uint32_t steps = given.accumulation_steps == 0 ? 1 : given.accumulation_steps;
  require_at_most(uint64_t{steps} * options.ranks, kMostAccumulationSteps, action, Option::micro_batches);
  require_enum(given.gradients, 4, action, Option::gradients);
  require_enum(given.unused_gradients, 2, action, Option::unused_gradients);
  require_enum(given.accumulation_type, 3, action, Option::accumulation_type);
  options.micro_batches = steps * options.ranks;
  options.layer_major = given.layer_major != 0;
  options.gradients = static_cast<GradientOrigin>(given.gradients);
  options.unused_gradients = static_cast<UnusedGradients>(given.unused_gradients);
  options.accumulation_type = static_cast<DataType>(given.accumulation_type);
}

io::EngineKind engine_of(const terrace_options& given, const Subject& action) {
  require_enum(given.io_engine, 4, action, Option::io_engine);
  constexpr std::array kKinds = {io::EngineKind::io_uring, io::EngineKind::libaio, io::EngineKind::threads};
  if (given.io_engine == TERRACE_IO_BEST) return io::choose_engine(std::nullopt).kind;
  return io::choose_engine(kKinds[given.io_engine - 1]).kind;
}

// What is on the device where the program gives none.
const terrace_device kNoDevice;

const terrace_device& device_of(const terrace_device* given, std::span<const TensorSpec> tensors,
                                const Subject& action) {
  if (std::ranges::any_of(tensors, [](const TensorSpec& t) { return t.home == TensorHome::managed; }))
    require_pointer(given, action, "device");
  return given != nullptr ? *given : kNoDevice;
}

void require_for_device(const terrace_device& device, const OffloadOptions& options, const Subject& action) {
  if (device.is_cuda && options.states == Placement::none)
    refuse(ErrorKind::config, action, Option::states,
           "optimizer states are in a GPU's memory, and the library has no arithmetic there",
           "place them on " + Wording(TERRACE_VALUE(TERRACE_CPU, "\"cpu\"")) + " or " +
               TERRACE_VALUE(TERRACE_NVME, "\"nvme\""));
}

}  // namespace

Request read_place(const terrace_options* options, const Subject& action) {
  const terrace_options given = taken(options, action, "options");
  Request request;
  read_ranks(given, request, action);
  read_placement(given, request, action);
  return request;
}

Request read_request(const RequestArguments& arguments, const Subject& action) {
  const terrace_options given = taken(arguments.options, action, "options");
  Request request;
  read_tensors(arguments, request, action);
  const terrace_device& device = device_of(arguments.device, request.tensors, action);
  request.device = &device;
  OffloadOptions& options = request.options;
  read_ranks(given, request, action);
  read_placement(given, request, action);
  read_budgets(given, options, action);
  read_steps(given, options, action);
  options.record_layout = layout_of(given, action);
  options.device_budget_bytes = device.budget_bytes;
  options.device_granularity_bytes = device.granularity_bytes;
  options.lock_host_memory = given.no_host_lock == 0;
  options.verify_checksums = given.no_checksums == 0;
  options.io.kind = engine_of(given, action);
  choose_ways_of_ranks(device.is_cuda, request);
  require_for_device(device, options, action);
  require_enum(given.update_when, 3, action, Option::update_when);
  request.update_mode = static_cast<UpdateMode>(given.update_when);
  require_mode(request.update_mode, options);
  options.holds_gradients = given.hold_gradients != 0 || mode_holds_gradients(request.update_mode, options);
  require_at_most(given.threads, kMostThreads, action, Option::threads);
  request.threads = given.threads;
  require_at_most(given.chunk_elements, kMostChunkElements, action, Option::chunk_elements);
  if (given.chunk_elements % kTileElements != 0)
    refuse(ErrorKind::config, action, Option::chunk_elements,
           fmt::format("{} is no multiple of {}", given.chunk_elements, kTileElements),
           "set a multiple, or 0 for one that suits the budgets");
  request.chunk_elements = given.chunk_elements;
  request.log = given.log;
  request.log_context = given.log_context;
  request.trace = read_trace(arguments, request, action);
  return request;
}

}  // namespace terrace::c
