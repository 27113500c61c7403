#include <terrace/offload/parameters/old_parameters.h>

#include <fmt/format.h>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>
#include <terrace/offload/plan/host_slots.h>

namespace terrace {

OldParameters::OldParameters(const RunContext& run, HostArena& arena, const ParameterHomes& homes)
    : shards_(run.shards),
      device_(run.device),
      store_(homes.stores.all),
      homes_(homes),
      watch_(run.watch),
      staging_(std::make_unique<Staging[]>(run.plan.old_parameter_slots)),
      staging_count_(run.plan.old_parameter_slots),
      staging_of_(run.space.chunk_count(), kNone) {
  const std::vector<std::byte*> slots =
      carve_slots(arena, run.plan.share_bytes, staging_count_, "parameters before an update");
  const uint64_t most_blocks = divide_up(run.plan.slot_bytes, run.plan.param_block_bytes());
  for (uint32_t s = staging_count_; s-- > 0;) {
    staging_[s].memory = slots[s];
    if (store_ != nullptr) staging_[s].read.prepare(most_blocks);
    free_.push_back(s);
  }
}

OldParameters::~OldParameters() {
  for (uint32_t s = 0; s < staging_count_; ++s)
    TERRACE_ASSERT(arrived(staging_[s]).done(), "parameters are still on their way into memory that goes");
}

bool OldParameters::start_open(ChunkId chunk, io::Engine* engine, DeviceCache* cache) {
  if (homes_.host_slots[index_of(chunk)] != nullptr || staging_of_[index_of(chunk)] != kNone) return true;
  if (free_.empty()) return false;
  const uint32_t index = free_.back();
  free_.pop_back();
  staging_of_[index_of(chunk)] = index;
  Staging& staging = staging_[index];
  staging.chunk = chunk;
  if (store_ != nullptr) {
    TERRACE_ASSERT(engine != nullptr, "reading from a tier file needs an engine");
    start_read(staging, *engine);
  } else {
    TERRACE_ASSERT(cache != nullptr, "copies from the device are the step thread's to start");
    start_copy(staging, cache);
  }
  return true;
}

void OldParameters::start_read(Staging& staging, io::Engine& engine) {
  const uint64_t tag =
      transfer_tag(watch_.events(), TransferRole::param, TransferReason::update, staging.chunk);
  staging.read.start_read(*store_, staging.chunk, staging.memory, TransferPort(engine),
                          {.what = "old parameters", .tag = tag});
  nvme_read_bytes_ += shards_.param_bytes(staging.chunk);
}

void OldParameters::start_copy(Staging& staging, DeviceCache* cache) {
  const uint64_t bytes = shards_.param_bytes(staging.chunk);
  d2h_bytes_ += bytes;
  if (homes_.device_shares != nullptr) {
    staging.copied.begin(to_host_copy("old parameters", staging.chunk));
    return homes_.device_shares->copy_to_host(staging.chunk, 0, staging.memory, bytes, TransferReason::update,
                                              staging.copied);
  }
  cache->detach_param(staging.chunk);
  CacheSlot& slot = cache->param_slot(staging.chunk);
  staging.copied.begin(to_host_copy("old parameters", staging.chunk));
  device_.copy_to_host(staging.memory, slot.id, shards_.first_param_byte(staging.chunk), bytes, &slot.in,
                       staging.copied,
                       from_device_note(watch_.events(), TransferRole::param, TransferReason::update,
                                        index_of(staging.chunk)));
}

bool OldParameters::is_open(ChunkId chunk) const {
  if (homes_.host_slots[index_of(chunk)] != nullptr) return true;
  const uint32_t index = staging_of_[index_of(chunk)];
  return index != kNone && arrived(staging_[index]).done();
}

bool OldParameters::is_reading() const {
  for (uint32_t s = 0; store_ != nullptr && s < staging_count_; ++s) {
    if (!staging_[s].read.event().done()) return true;
  }
  return false;
}

void OldParameters::wait_open(ChunkId chunk) {
  if (is_open(chunk)) return;
  const uint32_t index = staging_of_[index_of(chunk)];
  TERRACE_ASSERT(index != kNone, fmt::format("chunk {} was not opened", index_of(chunk)));
  const Staging& staging = staging_[index];
  if (store_ != nullptr) return staging.read.wait_done(watch_);
  staging.copied.wait_done(watch_);
}

const std::byte* OldParameters::parameters(ChunkId chunk) const {
  if (const std::byte* home = homes_.host_slots[index_of(chunk)]) return home;
  TERRACE_ASSERT(is_open(chunk), fmt::format("the parameters of chunk {} are not there", index_of(chunk)));
  const Staging& staging = staging_[staging_of_[index_of(chunk)]];
  if (const std::exception_ptr failure = arrived(staging).failure()) std::rethrow_exception(failure);
  return staging.memory;
}

void OldParameters::release(ChunkId chunk) {
  if (homes_.host_slots[index_of(chunk)] != nullptr) return;
  TERRACE_ASSERT(is_open(chunk), fmt::format("chunk {} is released and was not open", index_of(chunk)));
  free_.push_back(staging_of_[index_of(chunk)]);
  staging_of_[index_of(chunk)] = kNone;
}

}  // namespace terrace
