#include <terrace/offload/parameters/publication.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

// Memory for so many writes is allocated in advance; more are seldom under way.
constexpr uint32_t kWritesAtOnce = 64;
constexpr const char* kWhat = "fresh parameters";

}  // namespace

Publication::Publication(const RunContext& run, const ParameterHomes& homes)
    : shards_(run.shards),
      space_(run.space),
      placement_(run.options.parameters),
      device_(run.device),
      homes_(homes),
      watch_(run.watch),
      most_blocks_(divide_up(run.plan.slot_bytes, run.plan.param_block_bytes())),
      newer_on_device_(space_.chunk_count(), false) {
  leaving_.reserve(kWritesAtOnce);
  const uint32_t writes = placement_ == Placement::nvme ? std::min(space_.chunk_count(), kWritesAtOnce) : 0;
  for (uint32_t w = 0; w < writes; ++w) free_writes_.push_back(&add_write());
}

WaitSubject Publication::subject() const {
  for (const auto& [gone, write, copy] : leaving_) {
    if (gone->done()) continue;
    if (copy != nullptr) return copy->subject();
    const WaitSubject subject = write->subject();
    if (subject.request != nullptr) return subject;
  }
  return {kWhat, "host -> nvme", TimeCause::write, std::nullopt, nullptr, {}};
}

const Event* Publication::publish(ChunkId chunk, const std::byte* buffer, io::Engine* engine,
                                  DeviceCache* device) {
  if (shards_.elements(chunk) == 0) return nullptr;  // another rank's
  if (const std::byte* home = homes_.host_slots[index_of(chunk)]) {
    TERRACE_ASSERT(buffer == home, "new parameters are made where they live");
    return nullptr;
  }
  if (placement_ == Placement::none) {
    TERRACE_ASSERT(device != nullptr, "parameters that live on the device need it");
    return publish_to_device(chunk, buffer, *device);
  }
  TERRACE_ASSERT(engine != nullptr, "writing to a tier file needs an engine");
  return publish_to_file(chunk, buffer, *engine);
}

void Publication::publish_run(ChunkId chunk, const std::byte* buffer, uint64_t first_byte, uint64_t bytes,
                              io::Engine* engine, DeviceCache* device) {
  if (homes_.host_slots[index_of(chunk)] != nullptr) return;
  if (placement_ == Placement::none) {
    return start_copy(chunk, buffer, first_byte, bytes, *device).wait(watch_);
  }
  BlockStore& store = homes_.stores.of(space_, chunk);
  const uint64_t block_bytes = store.block_bytes(chunk, 0);
  for (uint64_t at = first_byte / block_bytes * block_bytes; at < first_byte + bytes; at += block_bytes) {
    const auto block = static_cast<uint32_t>(at / block_bytes);
    BlockTransfer write;
    take_slot(chunk, block, {buffer + at, store.block_bytes(chunk, block)}, write.write(), *engine);
    write.start_write(
        store, TransferPort(*engine),
        {.what = kWhat,
         .tag = transfer_tag(watch_.events(), TransferRole::param, TransferReason::update, chunk)});
    write.finish(watch_);
    nvme_write_bytes_ += store.block_bytes(chunk, block);
  }
}

const DeviceCopy& Publication::start_copy(ChunkId chunk, const std::byte* buffer, uint64_t first_byte,
                                          uint64_t bytes, DeviceCache& device) {
  h2d_bytes_ += bytes;
  note_made_on_device(chunk);
  if (homes_.device_shares != nullptr)
    return homes_.device_shares->write(chunk, first_byte, buffer + first_byte, bytes, nullptr);
  device.detach_param(chunk);
  CacheSlot& slot = device.param_slot(chunk);
  slot.in.begin(to_device_copy(kWhat, chunk));
  device_.copy_to_device(
      slot.id, shards_.first_param_byte(chunk) + first_byte, buffer + first_byte, bytes, nullptr, slot.in,
      to_device_note(watch_.events(), TransferRole::param, TransferReason::update, index_of(chunk)));
  return slot.in;
}

const Event* Publication::publish_to_device(ChunkId chunk, const std::byte* buffer, DeviceCache& device) {
  const DeviceCopy& copy = start_copy(chunk, buffer, 0, shards_.param_bytes(chunk), device);
  leaving_.push_back({&copy, nullptr, &copy});
  return &copy;
}

const Event* Publication::publish_to_file(ChunkId chunk, const std::byte* buffer, io::Engine& engine) {
  ChunkTransfer& write = take_write();
  leaving_.push_back({&write.event(), &write, nullptr});
  write.start_write(
      homes_.stores.of(space_, chunk), chunk, buffer, TransferPort(engine),
      {.what = kWhat,
       .tag = transfer_tag(watch_.events(), TransferRole::param, TransferReason::update, chunk)},
      [&](uint32_t block, std::span<const std::byte> source, BlockStore::Write& taken) {
        take_slot(chunk, block, source, taken, engine);
      });
  nvme_write_bytes_ += shards_.param_bytes(chunk);
  return &write.event();
}

void Publication::take_slot(ChunkId chunk, uint32_t block, std::span<const std::byte> source,
                            BlockStore::Write& write, io::Engine& engine) {
  BlockStore& store = homes_.stores.of(space_, chunk);
  if (committer_ == nullptr || &store == homes_.stores.frozen) {
    if (store.begin_write(chunk, block, source, write)) return;
    throw Error(ErrorKind::capacity, {"cannot write parameters of", fmt::format("chunk {}", index_of(chunk)),
                                      "the nvme tier has no room for them beside those of the last commit",
                                      "commit and wait for it first"});
  }
  while (!committer_->begin_write(CommitPart::parameters, engine, chunk, block, source, write))
    wait_watched(engine, watch_, subject());
}

ChunkTransfer& Publication::add_write() {
  ChunkTransfer& write = *writes_.emplace_back(std::make_unique<ChunkTransfer>());
  write.prepare(most_blocks_);
  free_writes_.reserve(writes_.size());
  return write;
}

ChunkTransfer& Publication::take_write() {
  if (free_writes_.empty()) return add_write();
  ChunkTransfer& write = *free_writes_.back();
  free_writes_.pop_back();
  return write;
}

void Publication::forget(const Event& gone) {
  const auto found = std::ranges::find(leaving_, &gone, &Leaving::gone);
  TERRACE_ASSERT(found != leaving_.end() && gone.done(), "what is forgotten was published, and is done");
  if (failure_ == nullptr) failure_ = gone.failure();
  if (found->write != nullptr) free_writes_.push_back(found->write);
  leaving_.erase(found);
}

void Publication::forget_all() {
  while (!leaving_.empty()) forget(*leaving_.front().gone);
  failure_ = nullptr;
}

void Publication::wait(const Event& gone, io::Engine* engine) {
  while (engine != nullptr && !gone.done() && engine->in_flight() > 0)
    wait_watched(*engine, watch_, subject());
  wait_done_watched(gone, watch_, subject());
}

void Publication::finish(io::Engine* engine) {
  for (const Leaving& leaving : leaving_) wait(*leaving.gone, engine);
  while (!leaving_.empty()) forget(*leaving_.front().gone);
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace terrace
