#include <terrace/offload/tiers/tier_stores.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/option.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/memory/tier/tier_folder.h>
#include <terrace/offload/dry/dry_engine.h>
#include <terrace/offload/tiers/common_tier.h>
#include <terrace/offload/watch/traced_engine.h>

namespace terrace {
namespace {

constexpr const char* kRecords = "records";
constexpr const char* kParameters = "params";
constexpr const char* kFrozen = "frozen";
constexpr const char* kGradients = "grads";
constexpr const char* kActivations = "acts";
constexpr const char* kSaved = "saved";  // and a number

[[noreturn]] void cannot_resume(const std::string& folder, std::string reason, Wording advice) {
  throw Error(ErrorKind::config,
              {"cannot resume from the nvme tier in", folder, std::move(reason), std::move(advice)});
}

const StoreLayout* find_layout(const TierManifest& manifest, std::string_view name) {
  const auto found = std::ranges::find(manifest.stores, name, &StoreLayout::name);
  return found != manifest.stores.end() ? &*found : nullptr;
}

// Opens the store as the last of `commits` has it, or makes it anew if there are none.
std::unique_ptr<BlockStore> make_store(TierSpace& tier, BlockStoreOptions options,
                                       std::span<const TierManifest> commits, io::Engine& engine, Log& log) {
  if (commits.empty()) return std::make_unique<BlockStore>(tier, std::move(options), engine, log);
  std::vector<StoreLayout> layouts;
  for (const TierManifest& commit : commits) {
    const StoreLayout* layout = find_layout(commit, options.name);
    if (layout == nullptr) {
      cannot_resume(tier.folder(0).path(),
                    fmt::format("its commit {} has no \"{}\"", commit.commit, options.name),
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

std::unique_ptr<io::Engine> TierStores::make_engine(std::string_view purpose) {
  std::unique_ptr<io::Engine> made =
      options_.dry ? std::make_unique<DryEngine>(options_.io) : io::make_engine(options_.io);
  if (options_.hooks.decorate_engine) made = options_.hooks.decorate_engine(std::move(made));
  if (options_.hooks.step_events != nullptr)
    made = std::make_unique<TracedEngine>(std::move(made), *options_.hooks.step_events, purpose);
  register_files(*made);
  return made;
}

std::unique_ptr<io::Engine> TierStores::make_engine_with_memory(std::string_view purpose) {
  std::unique_ptr<io::Engine> made = make_engine(purpose);
  made->register_buffer(arena_.memory());
  return made;
}

// Registers the files of the stores made so far. They are not unregistered one by one: no engine starts
// anything once a store goes, and its registrations go with it. Only io_uring is warned about; the others
// have said of the buffers that they register nothing.
void TierStores::register_files(io::Engine& with) {
  for (const auto* store : {&params_, &frozen_, &records_, &copied_, &gradients_, &activations_}) {
    if (*store == nullptr) continue;
    for (const int fd : (*store)->descriptors()) {
      if (with.register_file(fd) || with.kind() != io::EngineKind::io_uring) continue;
      log_.warning_once(
          fmt::format("tier files are not registered ({}): transfers cost a little more processor time",
                      with.registration_refusal()));
    }
  }
}

TierStores::TierStores(const ChunkShards& shards, const OffloadOptions& options, const MemoryPlan& plan,
                       Device& device, HostArena& arena, Log& log)
    : shards_(shards),
      space_(shards.space()),
      options_(options),
      plan_(plan),
      device_(device),
      arena_(arena),
      log_(log) {
  const bool has_saved = options_.saved_activations == Placement::nvme;
  if (options_.parameters != Placement::nvme && options_.states != Placement::nvme && !has_saved) return;
  engine_ = make_engine("step");
  if (!engine_->register_buffer(arena_.memory())) {
    log_.warning_once(
        fmt::format("I/O buffers are not registered ({}): transfers cost a little more processor time",
                    engine_->registration_refusal()));
  }
  try {
    open_tier();
    if (options_.parameters == Placement::nvme) make_param_stores();
    if (options_.states == Placement::nvme) make_record_store();
    if (has_parameters_in_commits(plan_) && params_ == nullptr) make_copied_store();
    if (plan_.spilled_chunks > 0) make_gradient_store();
    if (plan_.nvme_activation_entries > 0) make_activation_store();
    if (params_ != nullptr) make_reader();
    if (params_ != nullptr && options_.reads_past_host) make_file_reader();
    register_files(*engine_);
    // No rank commits before all have their files: what one of them lacks was never whole.
    if (has_other_ranks()) RankVotes(options_.hooks.communicator).any(false);
  } catch (const Error& error) {
    // A resumed run cannot give up commits to lower its need.
    if (error.kind() != ErrorKind::capacity || !plan_.keeps_commits ||
        options_.tier_start == TierStart::resume)
      throw;
    ErrorParts parts = error.parts();
    if (!parts.advice.empty()) parts.advice += ", or ";
    parts.advice += "set " + Option::durable +
                    " to false, which takes less than half of that and gives up resuming after a crash";
    throw Error(error.kind(), std::move(parts));
  }
}

// States and parameters share one space. The paths of the states come first, so that the manifests lie with
// them.
void TierStores::open_tier() {
  TierSpaceOptions tier_options;
  const auto add_paths = [&](const std::vector<TierPath>& wanted) {
    TERRACE_ASSERT(!wanted.empty(), "what is on nvme has at least one path");
    for (const TierPath& path : wanted) {
      if (std::ranges::find(tier_options.paths, path.path, &TierPath::path) == tier_options.paths.end())
        tier_options.paths.push_back(path);
    }
  };
  if (options_.states == Placement::nvme) add_paths(options_.state_paths);
  if (options_.parameters == Placement::nvme) add_paths(options_.parameter_paths);
  if (options_.saved_activations == Placement::nvme) add_paths(passing_paths(options_));
  const bool resumes = options_.tier_start == TierStart::resume;
  if (resumes && !plan_.keeps_commits) {
    cannot_resume(tier_options.paths.front().path.string(), plan_.why_no_commits,
                  "place the state as the run did that is to go on, or go on from a checkpoint");
  }
  std::vector<std::filesystem::path> folders;
  for (const TierPath& path : tier_options.paths) folders.push_back(path.path);
  tier_options.discard_commits = options_.discard_commits;
  bool writes_beside = false, has_commits = false;
  if (has_other_ranks()) {
    writes_beside = start_with_ranks(folders, tier_options);
  } else if (options_.tier_start == TierStart::fresh && options_.discard_commits && !options_.dry) {
    const FoundTier found = look_at_tier(folders);
    has_commits = !found.commits.empty();
    writes_beside = may_write_beside_commit() && found.whole && found.commits.size() == 1 &&
                    !found.commits.front().retained && fits_beside(found.newest);
  }
  tier_options.start = writes_beside ? TierStart::resume : options_.tier_start;
  tier_options.dry = options_.dry;
  tier_options.events = options_.hooks.file_events;
  tier_options.clock = options_.hooks.clock;
  tier_ = std::make_unique<TierSpace>(std::move(tier_options), log_);
  for (const CommitFile& file : tier_->commits()) found_commits_.push_back(tier_->read_commit(file.commit));
  if (resumes) require_found_layout();
  if (writes_beside) {
    log_.info(fmt::format("commit {} stays in {} until this run has made its first one",
                          found_commits_.back().commit, tier_->folder(0).path()));
  } else if (has_commits) {
    log_.info(fmt::format("the state that was in {} is removed: the files of this run take its place",
                          tier_->folder(0).path()));
  }
}

// A step writes its records beside those of the last commit. So a new state can be written beside a commit
// that is to be discarded, if it has the same blocks in the same folders. Frozen parameters have no second
// place, and a retained commit would stay for ever.
bool TierStores::may_write_beside_commit() const {
  return options_.tier_start == TierStart::fresh && options_.discard_commits && !options_.dry &&
         plan_.keeps_commits && plan_.frozen_spare_slots == 0;
}

bool TierStores::fits_beside(const TierManifest& commit) const {
  const auto fits = [&](const char* name, uint64_t block_bytes, const std::vector<uint64_t>& chunk_bytes) {
    const StoreLayout* const layout = find_layout(commit, name);
    return layout != nullptr && layout->block_bytes == block_bytes && layout->chunk_bytes == chunk_bytes;
  };
  const bool has_parameters = has_parameters_in_commits(plan_);
  return commit.layout == plan_.record_layout && commit.stores.size() == (has_parameters ? 2 : 1) &&
         fits(kRecords, plan_.ring_slot_bytes, record_bytes()) &&
         (!has_parameters || fits(kParameters, plan_.param_block_bytes(), trained_param_bytes()));
}

bool TierStores::has_other_ranks() const {
  return options_.ranks > 1 && !options_.dry && plan_.keeps_commits;
}

// All ranks take up the same commit, or write beside the same one, or begin a space of one id.
bool TierStores::start_with_ranks(std::span<const std::filesystem::path> folders,
                                  TierSpaceOptions& start) const {
  Communicator& communicator = *options_.hooks.communicator;
  const RankVotes ranks(&communicator);
  const CommonTier common = common_tier(folders, communicator);
  start.least_number = common.least_number;
  start.discard_commits |= common.has_remains;
  if (options_.tier_start == TierStart::resume) {
    if (common.commit == 0) {
      throw Error(common.has_commits ? ErrorKind::corrupt : ErrorKind::config,
                  {"cannot resume from the nvme tier in", folders.front().string(),
                   common.has_commits ? common.trouble : "no commit of all ranks is there",
                   "name the paths of the run that is to go on, with as many ranks; or go on from a "
                   "checkpoint, with " +
                       Option::discard_commits});
    }
    start.commit = common.commit;
    start.retain = common.is_retained;
    return false;
  }
  const bool can = may_write_beside_commit() && common.is_single && common.commit > 0 &&
                   fits_beside(look_at_tier(folders, common.commit).newest);
  const bool writes_beside = !ranks.any(!can);
  if (writes_beside) {
    start.commit = common.commit;
  } else {
    start.id = ranks.of_first(draw_space_id());
  }
  return writes_beside;
}

// Returns the bytes of records per chunk.
std::vector<uint64_t> TierStores::record_bytes() const {
  return of_every_chunk(space_, [&](ChunkId c) {
    return space_.section_of(c).trainable ? shards_.own(c).tile_count * plan_.record_layout.tile_bytes() : 0;
  });
}

std::vector<uint64_t> TierStores::trained_param_bytes() const {
  return of_every_chunk(
      space_, [&](ChunkId c) { return space_.section_of(c).trainable ? shards_.param_bytes(c) : 0; });
}

void TierStores::require_found_layout() const {
  const RecordLayout& found = found_commits_.back().layout;
  if (found == plan_.record_layout) return;
  cannot_resume(tier_->folder(0).path(),
                fmt::format("its optimizer states are {}, and those of this run are {}", text_of(found),
                            text_of(plan_.record_layout)),
                found.canonical() == plan_.record_layout.canonical()
                    ? "resume with the options of the run that made it (" + Option::masters +
                          ", type of the moments), and save a checkpoint with it, from which this run goes on"
                    : "resume with the optimizer and the type of the moments of the run that made it");
}

// Returns the numbers of `paths` in the order of the space, which is that of the run that made it.
std::vector<uint32_t> TierStores::numbers_of(const std::vector<TierPath>& paths) const {
  std::vector<uint32_t> numbers;
  for (uint32_t p = 0; p < tier_->path_count(); ++p) {
    if (std::ranges::find(paths, tier_->paths()[p].path, &TierPath::path) != paths.end())
      numbers.push_back(p);
  }
  return numbers;
}

// Returns the bytes of the stores that are made after `store`, with an unfinished block and a mark on each
// path.
uint64_t TierStores::bytes_of_later_stores(std::string_view store) const {
  const auto with_ends = [this](uint64_t bytes, uint64_t block_bytes) {
    return bytes == 0 ? 0 : bytes + tier_->path_count() * (block_bytes + TierFolder::kMarkBytes);
  };
  uint64_t bytes = with_ends(plan_.activation_file_bytes, plan_.activation_block_bytes());
  if (store != kGradients) bytes += with_ends(plan_.gradient_file_bytes, plan_.spill_block_bytes());
  if (store == kParameters) bytes += with_ends(plan_.record_file_bytes, plan_.ring_slot_bytes);
  if (store == kRecords && options_.parameters != Placement::nvme)
    bytes += with_ends(plan_.parameter_file_bytes, plan_.param_block_bytes());
  return bytes;
}

void TierStores::make_param_stores() {
  BlockStoreOptions params;
  params.name = kParameters;
  params.block_bytes = plan_.param_block_bytes();
  params.verify = options_.verify_checksums;
  params.paths = numbers_of(options_.parameter_paths);
  params.leave_bytes = bytes_of_later_stores(kParameters);
  const bool are_in_commits = has_parameters_in_commits(plan_);
  params.in_place = !are_in_commits;
  params.spare_slots = plan_.parameter_spare_slots;
  BlockStoreOptions frozen = params;
  frozen.name = kFrozen;
  frozen.in_place = false;
  frozen.spare_slots = plan_.frozen_spare_slots;
  const bool apart = plan_.frozen_spare_slots > 0;
  params.chunk_bytes = of_every_chunk(space_, [&](ChunkId c) {
    const Section& section = space_.section_of(c);
    if (section.home == TensorHome::caller) return uint64_t{0};
    return section.trainable || !apart ? shards_.param_bytes(c) : 0;
  });
  frozen.chunk_bytes = of_every_chunk(
      space_, [&](ChunkId c) { return space_.section_of(c).trainable ? 0 : shards_.param_bytes(c); });
  const std::span<const TierManifest> found = found_commits_;
  params_ =
      make_store(*tier_, std::move(params), found.first(are_in_commits ? found.size() : 0), *engine_, log_);
  if (apart) frozen_ = make_store(*tier_, std::move(frozen), found_commits_, *engine_, log_);
}

void TierStores::make_gradient_store() {
  const std::vector<bool> spills = spilled_gradients(space_, plan_);
  BlockStoreOptions store;
  store.name = kGradients;
  store.block_bytes = plan_.spill_block_bytes();
  store.verify = options_.verify_checksums;
  store.paths = numbers_of(passing_paths(options_));
  store.leave_bytes = bytes_of_later_stores(kGradients);
  store.chunk_bytes = of_every_chunk(space_, [&](ChunkId c) -> uint64_t {
    if (!spills[index_of(c)]) return 0;
    return shards_.elements(c) * bytes_of(held_gradient_type(space_.section_of(c), options_)) *
           sums_of_accumulator(options_);
  });
  gradients_ = make_store(*tier_, std::move(store), {}, *engine_, log_);
}

void TierStores::make_activation_store() {
  BlockStoreOptions store;
  store.name = kActivations;
  store.block_bytes = plan_.activation_block_bytes();
  store.verify = options_.verify_checksums;
  store.paths = numbers_of(passing_paths(options_));
  store.chunk_bytes.assign(plan_.nvme_activation_entries, plan_.activation_entry_bytes);
  activations_ = make_store(*tier_, std::move(store), {}, *engine_, log_);
}

std::unique_ptr<BlockStore> TierStores::make_saved_store(uint32_t number, uint32_t units,
                                                         uint64_t unit_bytes) {
  BlockStoreOptions store;
  store.name = fmt::format("{}{}", kSaved, number);
  store.block_bytes = unit_bytes;
  store.verify = options_.verify_checksums;
  store.paths = numbers_of(passing_paths(options_));
  store.chunk_bytes.assign(units, unit_bytes);
  return std::make_unique<BlockStore>(*tier_, std::move(store), *engine_, log_);
}

// The reader works while the step thread computes: parameters come in, gradients go out.
void TierStores::make_reader() {
  if (reader_ != nullptr) return;
  reader_ = std::make_unique<io::IoThread>(make_engine_with_memory("parameters and gradients"),
                                           io::IoThreadOptions{.without_thread = options_.dry});
}

// This engine is not decorated, because it reads into memory that no decorator may touch.
void TierStores::make_file_reader() {
  std::unique_ptr<io::Engine> reading =
      options_.dry ? std::make_unique<DryEngine>(options_.io) : device_.make_file_reader(options_.io);
  if (options_.hooks.step_events != nullptr)
    reading = std::make_unique<TracedEngine>(std::move(reading), *options_.hooks.step_events, "device");
  for (const auto* store : {&params_, &frozen_}) {
    if (*store == nullptr) continue;
    for (const int fd : (*store)->descriptors()) {
      if (reading->register_file(fd)) continue;
      throw Error(
          ErrorKind::device,
          {fmt::format("the device cannot read by itself the tier file of {} in", (*store)->name()),
           tier_->folder((*store)->path_index_of(fd)).path(), std::string(reading->registration_refusal()),
           "set " + Option::reads_past_host + " to false, with which they go through host memory"});
    }
  }
  file_reader_ =
      std::make_unique<io::IoThread>(std::move(reading), io::IoThreadOptions{.without_thread = options_.dry});
}

// The store holds, for commits, parameters that live elsewhere.
void TierStores::make_copied_store() {
  BlockStoreOptions params;
  params.name = kParameters;
  params.block_bytes = plan_.param_block_bytes();
  params.verify = options_.verify_checksums;
  params.paths = numbers_of(options_.state_paths);
  params.in_place = false;
  params.spare_slots = plan_.parameter_spare_slots;
  params.chunk_bytes = trained_param_bytes();
  copied_ = make_store(*tier_, std::move(params), found_commits_, *engine_, log_);
}

void TierStores::make_record_store() {
  BlockStoreOptions store;
  store.name = kRecords;
  store.block_bytes = plan_.ring_slot_bytes;
  store.verify = options_.verify_checksums;
  store.paths = numbers_of(options_.state_paths);
  store.leave_bytes = bytes_of_later_stores(kRecords);
  store.in_place = !plan_.keeps_commits;
  store.spare_slots = plan_.record_spare_slots;
  store.chunk_bytes = record_bytes();
  records_ = make_store(*tier_, std::move(store), found_commits_, *engine_, log_);
}

}  // namespace terrace
