#include <terrace/offload/param_home.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/memory/cu_file.h>
#include <terrace/offload/host_slots.h>

namespace terrace {

ParamHome::ParamHome(const FlatSpace& space, Placement placement, const MemoryPlan& plan, HostArena& arena,
                     Device& device, BlockStore* store, BlockStore* frozen, io::IoThread* reader,
                     StepWatch& watch)
    : space_(space),
      placement_(placement),
      device_(device),
      store_(store),
      frozen_(frozen),
      reader_(reader),
      watch_(watch),
      home_(space.chunk_count(), nullptr),
      expected_(space.chunk_count(), nullptr),
      fresh_(space.chunk_count(), nullptr),
      meeting_(std::make_unique<std::atomic<uint8_t>[]>(space.chunk_count())),
      old_(space, plan, arena, device, store, home_, watch),
      published_(space.chunk_count(), false),
      readings_(space.chunk_count()),
      staging_(std::make_unique<Staging[]>(plan.staging_slots)),
      staging_of_(space.chunk_count(), kNone),
      copy_of_(space.chunk_count(), 0) {
  TERRACE_ASSERT((placement == Placement::nvme) == (store != nullptr && reader != nullptr),
                 "a store and its reader belong to parameters on nvme");
  staging_count_ = plan.staging_slots;
  const std::vector<std::byte*> slots =
      carve_slots(arena, plan.slot_bytes, plan.host_param_slots, "parameters");
  const uint32_t frozen_chunks = plan.parameter_chunks - plan.record_chunks;
  const uint32_t kept_trainable = plan.host_param_slots - plan.host_frozen_param_slots;
  size_t next = 0;
  uint32_t trainable_seen = 0, frozen_seen = 0;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    const bool kept = space.section_of(ChunkId{c}).trainable
                          ? is_kept(trainable_seen++, kept_trainable, plan.record_chunks)
                          : is_kept(frozen_seen++, plan.host_frozen_param_slots, frozen_chunks);
    if (kept) home_[c] = slots[next++];
  }
  const std::vector<std::byte*> staging = carve_slots(arena, plan.slot_bytes, plan.staging_slots, "staging");
  for (uint32_t s = plan.staging_slots; s-- > 0;) {
    staging_[s].memory = staging[s];
    free_staging_.push_back(s);
  }
  written_.resize(space.chunk_count());
  transfer_begin_.push_back(0);
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (placement == Placement::nvme && home_[c] == nullptr) {
      for (uint32_t b = 0; b < store_of(ChunkId{c}).block_count(ChunkId{c}); ++b)
        transfers_.push_back({this, ChunkId{c}, b, {}, {}, nullptr, nullptr, 0, 0, false});
      written_[c] = std::make_unique<Event>();
    }
    transfer_begin_.push_back(static_cast<uint32_t>(transfers_.size()));
  }
  publishing_.reserve(space.chunk_count());
  held_staging_.reserve(plan.staging_slots);
}

ParamHome::~ParamHome() {
  for (uint32_t s = 0; s < staging_count_; ++s) {
    staging_[s].read.wait_done();
    if (staging_[s].target != nullptr) staging_[s].target->in.wait_done();
  }
  for (const std::unique_ptr<Event>& over : read_past_host_) {
    if (over != nullptr) over->wait_done();
  }
}

void ParamHome::read_past_host(io::IoThread& reader) {
  file_reader_ = &reader;
  read_past_host_.resize(space_.chunk_count());
  for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
    if (home_[c] == nullptr) read_past_host_[c] = std::make_unique<Event>();
  }
}

uint64_t ParamHome::param_bytes(ChunkId chunk) const {
  return space_.chunk(chunk).elements * bytes_of(space_.section_of(chunk).type);
}

std::span<ParamHome::BlockTransfer> ParamHome::blocks_of(ChunkId chunk) {
  const uint32_t c = index_of(chunk);
  return std::span(transfers_).subspan(transfer_begin_[c], transfer_begin_[c + 1] - transfer_begin_[c]);
}

const io::Request* ParamHome::pending_request(ChunkId chunk) {
  for (BlockTransfer& block : blocks_of(chunk)) {
    if (std::atomic_ref(block.pending).load(std::memory_order_relaxed)) return &block.request;
  }
  return nullptr;
}

std::string_view ParamHome::file_of(ChunkId chunk, const io::Request* request) const {
  return request != nullptr ? std::string_view(store_of(chunk).path_of(*request)) : std::string_view();
}

WaitSubject ParamHome::update_subject(ChunkId chunk) {
  return {"the update", "host -> device", TimeCause::update, chunk, nullptr, {}};
}

WaitSubject ParamHome::read_subject(ChunkId chunk) {
  const io::Request* request = pending_request(chunk);
  const bool is_direct = readings_[index_of(chunk)].slot != nullptr;
  return {"parameters",    is_direct ? "nvme -> device" : "nvme -> host -> device",
          TimeCause::read, chunk,
          request,         file_of(chunk, request)};
}

// Which waits for the chunk's update where that is not over: its transfers are the update's until then.
void ParamHome::wait_read(const Staging& staging) {
  if (staging.read.done()) return;
  const ChunkId chunk{staging.chunk};
  if (const Event* const updated = expected_[staging.chunk])
    wait_done_watched(*updated, watch_, update_subject(chunk));
  wait_done_watched(staging.read, watch_, read_subject(chunk));
}

// The link copies in the order in which it was asked to: a copy that is queued behind the read of another
// chunk keeps those after it waiting.
void ParamHome::wait_arrived(ChunkId chunk, const Event& arriving) {
  if (arriving.done()) return;
  if (const Event* const updated = expected_[index_of(chunk)])
    wait_done_watched(*updated, watch_, update_subject(chunk));
  if (readings_[index_of(chunk)].slot != nullptr)
    return wait_done_watched(arriving, watch_, read_subject(chunk));
  for (const uint32_t index : held_staging_) {
    const Staging& staging = staging_[index];
    if (staging.copy > copy_of_[index_of(chunk)]) break;
    wait_read(staging);
  }
  wait_done_watched(arriving, watch_,
                    {"parameters", "host -> device", TimeCause::device_copy, chunk, nullptr, {}});
}

WaitSubject ParamHome::publication_subject() {
  for (const auto& [chunk, gone] : publishing_) {
    if (gone->done()) continue;  // its transfers may be another thread's by now
    const io::Request* request = pending_request(chunk);
    if (request != nullptr)
      return {"fresh parameters", "host -> nvme", TimeCause::write, chunk, request, file_of(chunk, request)};
  }
  const bool to_device = placement_ == Placement::none;
  return {"fresh parameters",
          to_device ? "host -> device" : "host -> nvme",
          to_device ? TimeCause::device_copy : TimeCause::write,
          std::nullopt,
          nullptr,
          {}};
}

bool ParamHome::can_fetch_ahead(ChunkId chunk) const {
  return file_reader_ != nullptr || in_host_memory(chunk) != nullptr || !free_staging_.empty();
}

void ParamHome::expect(ChunkId chunk, const Event& updated, const std::byte* fresh) {
  meeting_[index_of(chunk)].store(0, std::memory_order_relaxed);  // an update that nobody expected has come
  expected_[index_of(chunk)] = &updated;
  fresh_[index_of(chunk)] = home_[index_of(chunk)] == nullptr ? fresh : nullptr;
}

void ParamHome::stop_expecting(ChunkId chunk) {
  expected_[index_of(chunk)] = nullptr;
  meeting_[index_of(chunk)].store(0, std::memory_order_relaxed);
}

void ParamHome::forget_fresh() {
  std::ranges::fill(fresh_, nullptr);
}

const std::byte* ParamHome::in_host_memory(ChunkId chunk) const {
  return home_[index_of(chunk)] != nullptr ? home_[index_of(chunk)] : fresh_[index_of(chunk)];
}

void ParamHome::send_to_device(ChunkId chunk, CacheSlot& slot) {
  h2d_bytes_ += param_bytes(chunk);
  published_[index_of(chunk)] = true;
  slot.in.begin();
  copy_of_[index_of(chunk)] = ++copy_count_;
  slot.read = nullptr;
  copy_in(chunk, slot, in_host_memory(chunk), expected_[index_of(chunk)], TransferReason::update);
}

// Behind what still leaves the slot, and behind `after`. A copy has one predecessor, so where there are two
// an empty one stands for the slot.
void ParamHome::copy_in(ChunkId chunk, CacheSlot& slot, const std::byte* source, const Event* after,
                        TransferReason reason) {
  if (after != nullptr && !slot.out.done()) {
    wait_done_watched(
        slot.fence, watch_,
        {"a device slot to be empty", "device -> host", TimeCause::device_copy, std::nullopt, nullptr, {}});
    slot.fence.begin();
    device_.copy_to_device(slot.id, 0, source, 0, &slot.out, slot.fence);
  }
  device_.copy_to_device(
      slot.id, 0, source, param_bytes(chunk), after != nullptr ? after : &slot.out, slot.in,
      to_device_note(watch_.events(), TransferRole::param, reason, index_of(chunk), copy_number(chunk)));
}

void ParamHome::start_fetch(ChunkId chunk, CacheSlot& slot) {
  TERRACE_ASSERT(placement_ != Placement::none, "parameters that live on the device are never fetched");
  forget_direct_read(chunk);
  const Event* const updated = expected_[index_of(chunk)];
  copy_of_[index_of(chunk)] = ++copy_count_;
  slot.read = nullptr;
  if (file_reader_ != nullptr && in_host_memory(chunk) == nullptr) return read_into_slot(chunk, slot);
  h2d_bytes_ += param_bytes(chunk);
  if (const std::byte* source = in_host_memory(chunk)) {
    slot.in.begin();
    return copy_in(chunk, slot, source, updated, TransferReason::step);
  }
  Staging& staging = take_staging(chunk, slot);
  staging.copy = copy_of_[index_of(chunk)];
  slot.in.begin();
  slot.read = &staging.read;
  begin_read(chunk, {staging.memory, &staging.read}, TransferReason::step);
  if (updated == nullptr) {
    submit_read(chunk);
  } else {
    read_behind_update(chunk, *updated);
  }
  copy_in(chunk, slot, staging.memory, &staging.read, TransferReason::step);
}

// Behind what still leaves the slot, for which the engine waits.
void ParamHome::read_into_slot(ChunkId chunk, CacheSlot& slot) {
  const auto blocks = static_cast<uint32_t>(blocks_of(chunk).size());
  std::byte* const memory = device_.begin_file_reads(slot.id, blocks, &slot.out);
  direct_read_bytes_ += param_bytes(chunk);
  slot.read = &slot.in;
  read_past_host_[index_of(chunk)]->begin(blocks);
  begin_read(chunk, {memory, &slot.in, &slot}, TransferReason::step);
  if (const Event* const updated = expected_[index_of(chunk)]) return read_behind_update(chunk, *updated);
  submit_read(chunk);
}

// The chunk's transfers are free.
void ParamHome::forget_direct_read(ChunkId chunk) {
  if (readings_[index_of(chunk)].slot == nullptr) return;
  wait_done_watched(*read_past_host_[index_of(chunk)], watch_, read_subject(chunk));
  readings_[index_of(chunk)] = {};
}

// The chunk's transfers are the update's until it is over.
void ParamHome::read_behind_update(ChunkId chunk, const Event& updated) {
  const uint8_t met = meeting_[index_of(chunk)].fetch_or(kFetchWaits, std::memory_order_acq_rel);
  if ((met & kUpdateFailed) != 0) {
    wait_done_watched(updated, watch_, update_subject(chunk));  // about to be
    fail_read(chunk, updated.failure());
  } else if ((met & kUpdateOver) != 0) {
    submit_read(chunk);
  }
}

void ParamHome::update_over(ChunkId chunk, const std::exception_ptr& failure) {
  const uint8_t came = failure == nullptr ? kUpdateOver : kUpdateFailed;
  const uint8_t met = meeting_[index_of(chunk)].fetch_or(came, std::memory_order_acq_rel);
  if ((met & kFetchWaits) == 0) return;
  if (failure != nullptr) return fail_read(chunk, failure);
  submit_read(chunk);
}

ParamHome::Staging& ParamHome::take_staging(ChunkId chunk, CacheSlot& slot) {
  fetch_finished(chunk);  // of an earlier copy that left the device without ever being used
  if (free_staging_.empty()) release_staging(held_staging_.front());
  const uint32_t index = free_staging_.back();
  free_staging_.pop_back();
  held_staging_.push_back(index);
  staging_of_[index_of(chunk)] = index;
  staging_[index].target = &slot;
  staging_[index].chunk = index_of(chunk);
  return staging_[index];
}

void ParamHome::fetch_finished(ChunkId chunk) {
  if (staging_of_[index_of(chunk)] != kNone) release_staging(staging_of_[index_of(chunk)]);
}

// Waits for the copy out of the staging slot. Its target may hold another chunk by now; a later copy into it
// is then waited for as well, which is never wrong.
void ParamHome::release_staging(uint32_t index) {
  Staging& staging = staging_[index];
  wait_read(staging);
  wait_done_watched(
      staging.target->in, watch_,
      {"parameters", "host -> device", TimeCause::device_copy, ChunkId{staging.chunk}, nullptr, {}});
  staging_of_[staging.chunk] = kNone;
  staging.target = nullptr;
  staging.chunk = kNone;
  held_staging_.erase(std::find(held_staging_.begin(), held_staging_.end(), index));
  free_staging_.push_back(index);
}

void ParamHome::begin_read(ChunkId chunk, const Reading& reading, TransferReason reason) {
  readings_[index_of(chunk)] = reading;
  reading.event->begin(static_cast<uint32_t>(blocks_of(chunk).size()));
  for (BlockTransfer& block : blocks_of(chunk))
    block.read_tag = transfer_tag(watch_.events(), TransferRole::param, reason, chunk);
  nvme_read_bytes_ += param_bytes(chunk);
}

void ParamHome::fail_read(ChunkId chunk, const std::exception_ptr& failure) {
  for (size_t block = blocks_of(chunk).size(); block > 0; --block) end_block(chunk, failure);
}

void ParamHome::end_block(ChunkId chunk, std::exception_ptr failure) noexcept {
  const Reading reading = readings_[index_of(chunk)];
  if (reading.slot == nullptr) return reading.event->complete_one(std::move(failure));
  Event& over = *read_past_host_[index_of(chunk)];
  device_.end_file_read(reading.slot->id);
  reading.event->complete_one(std::move(failure));
  over.complete_one();
}

void ParamHome::submit_read(ChunkId chunk) {
  const Reading reading = readings_[index_of(chunk)];
  io::IoThread& reader = reading.slot != nullptr ? *file_reader_ : *reader_;
  std::byte* destination = reading.memory;
  for (BlockTransfer& block : blocks_of(chunk)) {
    const uint64_t length = store_of(chunk).block_bytes(chunk, block.block);
    block.request = store_of(chunk).read_request(chunk, block.block, {destination, length});
    block.request.on_complete = &ParamHome::on_read;
    block.request.context = &block;
    block.request.tag = block.read_tag;
    std::atomic_ref(block.pending).store(true, std::memory_order_relaxed);
    reader.submit(block.request, io::Priority::critical);
    destination += length;
  }
}

void ParamHome::on_read(void* context, const io::Completion& completion) noexcept {
  BlockTransfer& block = *static_cast<BlockTransfer*>(context);
  std::atomic_ref(block.pending).store(false, std::memory_order_relaxed);
  std::exception_ptr failure;
  ParamHome& home = *block.home;
  try {
    if (home.readings_[index_of(block.chunk)].slot != nullptr) {
      home.end_direct_read(block, completion);
    } else {
      home.store_of(block.chunk).end_read(block.chunk, block.block, block.request, completion);
    }
  } catch (...) {
    failure = std::current_exception();
  }
  home.end_block(block.chunk, failure);
}

// What went before it in the slot and failed is the failure of this one; else it says whose bytes they are,
// in the words of who read them.
void ParamHome::end_direct_read(const BlockTransfer& block, const io::Completion& completion) {
  const CacheSlot& slot = *readings_[index_of(block.chunk)].slot;
  try {
    store_of(block.chunk).end_transfer(block.request, completion);
  } catch (const Error& failure) {
    if (completion.error == ECANCELED && slot.out.failed()) slot.out.wait();
    ErrorParts parts = failure.parts();
    if (completion.error > kCuFileErrorBase) parts.reason = cu_file_reason(completion.error, "cuFileRead");
    const std::span<const TensorId> held = space_.tensors_of(block.chunk);
    parts.reason += fmt::format("; read by the device itself, for chunk {} ({} to {})", index_of(block.chunk),
                                space_.tensor(held.front()).name, space_.tensor(held.back()).name);
    if (parts.advice.empty())
      parts.advice = "set aio.use_gds to false and go on from the last epoch or checkpoint";
    throw Error(failure.kind(), std::move(parts));
  }
}

void ParamHome::submit_write(BlockTransfer& block) {
  block.request = block.write.request;
  block.request.on_complete = &ParamHome::on_written;
  block.request.context = &block;
  block.request.tag = block.write_tag;
  std::atomic_ref(block.pending).store(true, std::memory_order_relaxed);
  block.engine->submit({&block.request, 1});
}

void ParamHome::on_written(void* context, const io::Completion& completion) noexcept {
  BlockTransfer& block = *static_cast<BlockTransfer*>(context);
  BlockStore& store = block.home->store_of(block.chunk);
  std::atomic_ref(block.pending).store(false, std::memory_order_relaxed);
  const BlockStore::WriteEnd end = store.end_write(block.write, completion);
  if (end == BlockStore::WriteEnd::again) return submit_write(block);
  std::exception_ptr failure;
  if (end == BlockStore::WriteEnd::failed)
    failure = std::make_exception_ptr(store.io_error(block.write.request, completion));
  block.event->complete_one(failure);
}

void ParamHome::begin_write(BlockTransfer& block, std::span<const std::byte> source) {
  BlockStore& store = store_of(block.chunk);
  if (committer_ == nullptr || &store == frozen_) {
    const bool begun = store.begin_write(block.chunk, block.block, source, block.write);
    TERRACE_ASSERT(begun, "no slot is free for a block of parameters");
    return;
  }
  while (!committer_->begin_write(EpochPart::parameters, *block.engine, block.chunk, block.block, source,
                                  block.write, [] {}))
    wait_watched(*block.engine, watch_, publication_subject());
}

void ParamHome::before_change(ChunkId chunk) {
  if (committer_ != nullptr && home_[index_of(chunk)] != nullptr) committer_->before_change(chunk);
}

bool ParamHome::take_published(ChunkId chunk) {
  const bool published = published_[index_of(chunk)];
  published_[index_of(chunk)] = false;
  return published;
}

const Event* ParamHome::publish(ChunkId chunk, const std::byte* buffer, io::Engine* engine,
                                DeviceCache* device) {
  if (home_[index_of(chunk)] != nullptr) {
    TERRACE_ASSERT(buffer == home_[index_of(chunk)], "new parameters are made where they live");
    return nullptr;
  }
  const Event* const gone = placement_ == Placement::none ? publish_to_device(chunk, buffer, device)
                                                          : publish_to_file(chunk, buffer, engine);
  publishing_.push_back({chunk, gone});
  return gone;
}

const Event* ParamHome::publish_to_device(ChunkId chunk, const std::byte* buffer, DeviceCache* device) {
  TERRACE_ASSERT(device != nullptr, "parameters that live on the device need it");
  device->detach_param(chunk);
  CacheSlot& slot = device->param_slot(chunk);
  slot.in.begin();
  device_.copy_to_device(
      slot.id, 0, buffer, param_bytes(chunk), nullptr, slot.in,
      to_device_note(watch_.events(), TransferRole::param, TransferReason::update, index_of(chunk)));
  h2d_bytes_ += param_bytes(chunk);
  published_[index_of(chunk)] = true;
  return &slot.in;
}

const Event* ParamHome::publish_to_file(ChunkId chunk, const std::byte* buffer, io::Engine* engine) {
  TERRACE_ASSERT(engine != nullptr, "writing to a tier file needs an engine");
  Event& written = *written_[index_of(chunk)];
  const std::span<BlockTransfer> blocks = blocks_of(chunk);
  written.begin(static_cast<uint32_t>(blocks.size()));
  for (BlockTransfer& block : blocks) {
    const uint64_t length = store_of(chunk).block_bytes(chunk, block.block);
    block.event = &written;
    block.engine = engine;
    block.write_tag = transfer_tag(watch_.events(), TransferRole::param, TransferReason::update, chunk);
    begin_write(block, {buffer, length});
    submit_write(block);
    buffer += length;
  }
  nvme_write_bytes_ += param_bytes(chunk);
  return &written;
}

void ParamHome::wait_published(const Event& gone, io::Engine* engine) {
  while (engine != nullptr && !gone.done() && engine->in_flight() > 0)
    wait_watched(*engine, watch_, publication_subject());
  wait_done_watched(gone, watch_, publication_subject());
}

void ParamHome::finish_publishing(io::Engine* engine) {
  std::exception_ptr failure;
  for (const Publication& publication : publishing_) {
    wait_published(*publication.gone, engine);
    if (failure == nullptr) failure = publication.gone->failure();
  }
  publishing_.clear();
  if (failure != nullptr) std::rethrow_exception(failure);
}

void ParamHome::read(ChunkId chunk, std::byte* destination) {
  TERRACE_ASSERT(placement_ != Placement::none, "there is no home to read from");
  if (const std::byte* home = home_[index_of(chunk)]) {
    std::memcpy(destination, home, param_bytes(chunk));
    return;
  }
  fetch_finished(chunk);  // a fetch ahead of time may be using the chunk's transfers
  forget_direct_read(chunk);
  Event read;
  begin_read(chunk, {destination, &read}, TransferReason::other);
  submit_read(chunk);
  const io::Request* const request = pending_request(chunk);
  wait_watched(read, watch_,
               {"parameters", "nvme -> host", TimeCause::read, chunk, request, file_of(chunk, request)});
}

}  // namespace terrace
