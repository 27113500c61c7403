// The stores of an Offloader on nvme: made, or opened as the last commit left them.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>
#include <terrace/offload/dry/dry_engine.h>
#include <terrace/offload/offloader_parts.h>
#include <terrace/offload/watch/traced_engine.h>

namespace terrace {
namespace {

constexpr const char* kRecords = "records";
constexpr const char* kParameters = "params";
constexpr const char* kFrozen = "frozen";
constexpr const char* kGradients = "grads";
constexpr const char* kActivations = "acts";

[[noreturn]] void cannot_resume(const std::string& folder, std::string reason, std::string advice) {
  throw Error(ErrorKind::config,
              {"cannot resume from the nvme tier in", folder, std::move(reason), std::move(advice)});
}

const StoreLayout* find_layout(const TierManifest& manifest, std::string_view name) {
  const auto found = std::ranges::find(manifest.stores, name, &StoreLayout::name);
  return found != manifest.stores.end() ? &*found : nullptr;
}

// Opened as the last of `epochs` has it, or made anew where there are none.
std::unique_ptr<BlockStore> make_store(TierSpace& tier, BlockStoreOptions options,
                                       std::span<const TierManifest> epochs, io::Engine& engine, Log& log) {
  if (epochs.empty()) return std::make_unique<BlockStore>(tier, std::move(options), engine, log);
  std::vector<StoreLayout> layouts;
  for (const TierManifest& epoch : epochs) {
    const StoreLayout* layout = find_layout(epoch, options.name);
    if (layout == nullptr) {
      cannot_resume(tier.folder(0).path(),
                    fmt::format("its commit {} has no \"{}\"", epoch.epoch, options.name),
                    "what is trained and what is frozen is that of the run which is to go on");
    }
    layouts.push_back(*layout);
  }
  const StoreLayout last = std::move(layouts.back());
  layouts.pop_back();
  return std::make_unique<BlockStore>(tier, std::move(options), last, layouts, log);
}

std::vector<uint64_t> of_every_chunk(const FlatSpace& space, FunctionRef<uint64_t(ChunkId)> bytes) {
  std::vector<uint64_t> all(space.chunk_count());
  for (uint32_t c = 0; c < space.chunk_count(); ++c) all[c] = bytes(ChunkId{c});
  return all;
}

}  // namespace

std::unique_ptr<io::Engine> Offloader::Parts::make_engine(std::string_view purpose) {
  std::unique_ptr<io::Engine> made =
      options.dry ? std::make_unique<DryEngine>(options.io) : io::make_engine(options.io, log);
  if (options.decorate_engine) made = options.decorate_engine(std::move(made));
  if (options.step_events != nullptr)
    made = std::make_unique<TracedEngine>(std::move(made), *options.step_events, purpose);
  register_files(*made);
  return made;
}

// Of the stores that are there already. They are not unregistered one by one: no engine starts anything once
// a store goes, and what an engine still holds goes with the engine. Engines that register nothing at all
// have said so of the buffers.
void Offloader::Parts::register_files(io::Engine& with) {
  for (const auto* store :
       {&param_store, &frozen_store, &record_store, &copied_store, &gradient_store, &activation_store}) {
    if (*store == nullptr) continue;
    for (const int fd : (*store)->descriptors()) {
      if (with.register_file(fd) || with.kind() != io::EngineKind::io_uring) continue;
      log.warning_once(
          fmt::format("tier files are not registered ({}): transfers cost a little more processor time",
                      with.registration_refusal()));
    }
  }
}

void Offloader::Parts::make_stores() {
  if (options.parameters != Placement::nvme && options.states != Placement::nvme) return;
  engine = make_engine("step");
  if (!engine->register_buffer(arena.memory())) {
    log.warning_once(
        fmt::format("I/O buffers are not registered ({}): transfers cost a little more processor time",
                    engine->registration_refusal()));
  }
  try {
    open_tier();
    if (options.parameters == Placement::nvme) make_param_stores();
    if (options.states == Placement::nvme) make_record_store();
    if (has_parameters_in_epochs(plan) && param_store == nullptr) make_copied_store();
    if (plan.spilled_chunks > 0) make_gradient_store();
    if (plan.nvme_activation_entries > 0) make_activation_store();
    if (param_store != nullptr) make_reader();
    if (param_store != nullptr && options.reads_past_host) make_file_reader();
    register_files(*engine);
  } catch (const Error& error) {
    // What a resumed run must keep cannot be halved.
    if (error.kind() != ErrorKind::capacity || !plan.keeps_epochs || options.tier_start == TierStart::resume)
      throw;
    ErrorParts parts = error.parts();
    parts.advice += fmt::format(
        "{}set terrace.durable to false, which halves that and gives up resuming "
        "after a crash",
        parts.advice.empty() ? "" : ", or ");
    throw Error(error.kind(), std::move(parts));
  }
}

// One space for both: the paths of the states first, so that what names commits lies with them.
void Offloader::Parts::open_tier() {
  TierSpaceOptions tier_options;
  const auto add_paths = [&](const std::vector<TierPath>& wanted) {
    TERRACE_ASSERT(!wanted.empty(), "what is on nvme has at least one path");
    for (const TierPath& path : wanted) {
      if (std::ranges::find(tier_options.paths, path.path, &TierPath::path) == tier_options.paths.end())
        tier_options.paths.push_back(path);
    }
  };
  if (options.states == Placement::nvme) add_paths(options.state_paths);
  if (options.parameters == Placement::nvme) add_paths(options.parameter_paths);
  const bool resumes = options.tier_start == TierStart::resume;
  if (resumes && !plan.keeps_epochs) {
    cannot_resume(tier_options.paths.front().path.string(), plan.why_no_epochs,
                  "place the state as the run did that is to go on, or go on from a checkpoint");
  }
  const bool writes_beside = can_write_beside_epoch(tier_options.paths);
  tier_options.start = writes_beside ? TierStart::resume : options.tier_start;
  tier_options.discard_epochs = options.discard_epochs;
  tier_options.dry = options.dry;
  tier_options.events = options.file_events;
  tier_options.clock = options.clock;
  tier = std::make_unique<TierSpace>(std::move(tier_options), log);
  for (const EpochFile& file : tier->epochs()) found_epochs.push_back(tier->read_epoch(file.epoch));
  if (resumes) require_found_layout();
  if (writes_beside) {
    log.info(fmt::format("commit {} stays in {} until this run has made its first one",
                         found_epochs.back().epoch, tier->folder(0).path()));
  }
}

// A step writes its records beside those of the last commit. So a new state can be written beside a commit
// that is to be discarded, if it has the same blocks in the same folders. Frozen parameters have no second
// place, and a retained commit would stay for ever.
bool Offloader::Parts::can_write_beside_epoch(std::span<const TierPath> paths) const {
  const bool may_be = options.tier_start == TierStart::fresh && options.discard_epochs && !options.dry;
  if (!may_be || !plan.keeps_epochs || plan.frozen_spare_slots > 0) return false;
  std::vector<std::filesystem::path> folders;
  for (const TierPath& path : paths) folders.push_back(path.path);
  const FoundTier found = look_at_tier(folders);
  if (!found.whole || found.epochs.size() != 1 || found.epochs.front().retained) return false;
  const auto fits = [&](const char* name, uint64_t block_bytes, const std::vector<uint64_t>& chunk_bytes) {
    const StoreLayout* const layout = find_layout(found.newest, name);
    return layout != nullptr && layout->block_bytes == block_bytes && layout->chunk_bytes == chunk_bytes;
  };
  const bool has_parameters = has_parameters_in_epochs(plan);
  return found.newest.layout == plan.record_layout &&
         found.newest.stores.size() == (has_parameters ? 2 : 1) &&
         fits(kRecords, plan.ring_slot_bytes, record_bytes()) &&
         (!has_parameters || fits(kParameters, plan.param_block_bytes(), trained_param_bytes()));
}

// By chunk.
std::vector<uint64_t> Offloader::Parts::record_bytes() const {
  return of_every_chunk(space, [&](ChunkId c) {
    return space.section_of(c).trainable ? space.chunk(c).tile_count() * plan.record_layout.tile_bytes() : 0;
  });
}

std::vector<uint64_t> Offloader::Parts::trained_param_bytes() const {
  return of_every_chunk(space,
                        [&](ChunkId c) { return space.section_of(c).trainable ? space.param_bytes(c) : 0; });
}

void Offloader::Parts::require_found_layout() const {
  const RecordLayout& found = found_epochs.back().layout;
  if (found == plan.record_layout) return;
  cannot_resume(tier->folder(0).path(),
                fmt::format("its optimizer states are {}, and those of this run are {}", text_of(found),
                            text_of(plan.record_layout)),
                "resume with the optimizer and the terrace.compact_state of the run that made it; where only "
                "the form of the masters differs, a checkpoint that such a run saves leads on to this one");
}

// In the order of the space, which is that of the run that made it.
std::vector<uint32_t> Offloader::Parts::numbers_of(const std::vector<TierPath>& paths) const {
  std::vector<uint32_t> numbers;
  for (uint32_t p = 0; p < tier->path_count(); ++p) {
    if (std::ranges::find(paths, tier->paths()[p].path, &TierPath::path) != paths.end()) numbers.push_back(p);
  }
  return numbers;
}

// With what their blocks leave over at the end of each path.
uint64_t Offloader::Parts::bytes_of_later_stores(std::string_view store) const {
  const auto with_ends = [this](uint64_t bytes, uint64_t block_bytes) {
    return bytes == 0 ? 0 : bytes + tier->path_count() * (block_bytes + TierFolder::kMarkBytes);
  };
  uint64_t bytes = with_ends(plan.activation_file_bytes, plan.activation_block_bytes());
  if (store != kGradients) bytes += with_ends(plan.gradient_file_bytes, plan.spill_block_bytes());
  if (store == kParameters) bytes += with_ends(plan.record_file_bytes, plan.ring_slot_bytes);
  if (store == kRecords && options.parameters != Placement::nvme)
    bytes += with_ends(plan.parameter_file_bytes, plan.param_block_bytes());
  return bytes;
}

void Offloader::Parts::make_param_stores() {
  BlockStoreOptions params;
  params.name = kParameters;
  params.block_bytes = plan.param_block_bytes();
  params.verify = options.verify_checksums;
  params.paths = numbers_of(options.parameter_paths);
  params.leave_bytes = bytes_of_later_stores(kParameters);
  const bool are_in_epochs = has_parameters_in_epochs(plan);
  params.in_place = !are_in_epochs;
  params.spare_slots = plan.parameter_spare_slots;
  BlockStoreOptions frozen = params;
  frozen.name = kFrozen;
  frozen.in_place = false;
  frozen.spare_slots = plan.frozen_spare_slots;
  const bool apart = plan.frozen_spare_slots > 0;
  params.chunk_bytes = of_every_chunk(
      space, [&](ChunkId c) { return space.section_of(c).trainable || !apart ? space.param_bytes(c) : 0; });
  frozen.chunk_bytes = of_every_chunk(
      space, [&](ChunkId c) { return space.section_of(c).trainable ? 0 : space.param_bytes(c); });
  const std::span<const TierManifest> found = found_epochs;
  param_store =
      make_store(*tier, std::move(params), found.first(are_in_epochs ? found.size() : 0), *engine, log);
  if (apart) frozen_store = make_store(*tier, std::move(frozen), found_epochs, *engine, log);
}

void Offloader::Parts::make_gradient_store() {
  const std::vector<bool> spills = spilled_gradients(space, plan);
  const uint64_t element_bytes = plan.spill_slot_bytes / space.chunk_elements();
  BlockStoreOptions store;
  store.name = kGradients;
  store.block_bytes = plan.spill_block_bytes();
  store.verify = options.verify_checksums;
  store.paths = numbers_of(passing_paths(options));
  store.leave_bytes = bytes_of_later_stores(kGradients);
  store.chunk_bytes = of_every_chunk(
      space, [&](ChunkId c) { return spills[index_of(c)] ? space.chunk(c).elements * element_bytes : 0; });
  gradient_store = make_store(*tier, std::move(store), {}, *engine, log);
}

void Offloader::Parts::make_activation_store() {
  BlockStoreOptions store;
  store.name = kActivations;
  store.block_bytes = plan.activation_block_bytes();
  store.verify = options.verify_checksums;
  store.paths = numbers_of(passing_paths(options));
  store.chunk_bytes.assign(plan.nvme_activation_entries, plan.activation_entry_bytes);
  activation_store = make_store(*tier, std::move(store), {}, *engine, log);
}

// For what goes on while the step thread computes: parameters on their way in, gradients on their way out.
void Offloader::Parts::make_reader() {
  std::unique_ptr<io::Engine> reading = make_engine("parameters and gradients");
  reading->register_buffer(arena.memory());
  reader = std::make_unique<io::IoThread>(std::move(reading));
}

// Not decorated: what is read is in no memory that a decorator may touch.
void Offloader::Parts::make_file_reader() {
  std::unique_ptr<io::Engine> reading =
      options.dry ? std::make_unique<DryEngine>(options.io) : device.make_file_reader(options.io);
  if (options.step_events != nullptr)
    reading = std::make_unique<TracedEngine>(std::move(reading), *options.step_events, "device");
  for (const auto* store : {&param_store, &frozen_store}) {
    if (*store == nullptr) continue;
    for (const int fd : (*store)->descriptors()) {
      if (reading->register_file(fd)) continue;
      throw Error(
          ErrorKind::device,
          {fmt::format("the device cannot read by itself the tier file of {} in", (*store)->name()),
           tier->folder((*store)->path_index_of(fd)).path(), std::string(reading->registration_refusal()),
           "set aio.use_gds to false, or to auto, which goes through host memory instead"});
    }
  }
  file_reader = std::make_unique<io::IoThread>(std::move(reading));
}

// Of parameters that live elsewhere, for commits.
void Offloader::Parts::make_copied_store() {
  BlockStoreOptions params;
  params.name = kParameters;
  params.block_bytes = plan.param_block_bytes();
  params.verify = options.verify_checksums;
  params.paths = numbers_of(options.state_paths);
  params.in_place = false;
  params.spare_slots = plan.parameter_spare_slots;
  params.chunk_bytes = trained_param_bytes();
  copied_store = make_store(*tier, std::move(params), found_epochs, *engine, log);
}

void Offloader::Parts::make_record_store() {
  BlockStoreOptions store;
  store.name = kRecords;
  store.block_bytes = plan.ring_slot_bytes;
  store.verify = options.verify_checksums;
  store.paths = numbers_of(options.state_paths);
  store.leave_bytes = bytes_of_later_stores(kRecords);
  store.in_place = !plan.keeps_epochs;
  store.spare_slots = plan.record_spare_slots;
  store.chunk_bytes = record_bytes();
  record_store = make_store(*tier, std::move(store), found_epochs, *engine, log);
}

void Offloader::Parts::take_turns() {
  if (!options.drive_turns || options.dry || records->streamed_bytes() == 0) return;
  std::vector<std::filesystem::path> folders;
  for (const TierPath& path : options.state_paths) folders.push_back(path.path);
  const Clock& turn_clock = options.clock != nullptr ? *options.clock : clock;
  turns = std::make_unique<DriveTurns>(folders, *options.drive_turns, turn_clock, watch, log);
  records->take_turns(turns.get());
}

}  // namespace terrace
