#include <terrace/offload/parameters/param_home.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/memory/cuda/cu_file.h>
#include <terrace/offload/plan/host_slots.h>

namespace terrace {

ParamHome::ParamHome(const RunContext& run, HostArena& arena, const ParameterStores& stores, Gathers& gathers)
    : shards_(run.shards),
      space_(run.space),
      placement_(run.options.parameters),
      device_(run.device),
      stores_(stores),
      reader_(stores.reader),
      gathers_(gathers),
      watch_(run.watch),
      home_(space_.chunk_count(), nullptr),
      expected_(space_.chunk_count(), nullptr),
      fresh_(space_.chunk_count(), nullptr),
      meeting_(std::make_unique<std::atomic<uint8_t>[]>(space_.chunk_count())),
      callers_(space_),
      device_shares_(run.plan.device_share_bytes == 0
                         ? nullptr
                         : std::make_unique<DeviceShares>(shards_, run.plan, device_, watch_)),
      old_(run, arena, {stores, home_, device_shares_.get()}),
      publication_(run, {stores, home_, device_shares_.get()}),
      most_blocks_(divide_up(run.plan.slot_bytes, run.plan.param_block_bytes())),
      reading_of_(space_.chunk_count(), nullptr),
      staging_(std::make_unique<Staging[]>(run.plan.staging_slots)),
      staging_of_(space_.chunk_count(), kNone),
      copy_of_(space_.chunk_count(), 0) {
  const MemoryPlan& plan = run.plan;
  TERRACE_ASSERT((placement_ == Placement::nvme) == (stores.all != nullptr && stores.reader != nullptr),
                 "a store and its reader belong to parameters on nvme");
  staging_count_ = plan.staging_slots;
  const std::vector<std::byte*> slots =
      carve_slots(arena, plan.share_bytes, plan.host_param_slots, "parameters");
  const uint32_t frozen_chunks = plan.frozen_chunks();
  const uint32_t trainable_chunks = plan.parameter_chunks - frozen_chunks;
  const uint32_t kept_trainable = plan.host_param_slots - plan.host_frozen_param_slots;
  size_t next = 0;
  uint32_t trainable_seen = 0, frozen_seen = 0;
  for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
    if (callers_.have(ChunkId{c})) continue;
    const bool kept = space_.section_of(ChunkId{c}).trainable
                          ? is_kept(trainable_seen++, kept_trainable, trainable_chunks)
                          : is_kept(frozen_seen++, plan.host_frozen_param_slots, frozen_chunks);
    if (kept) home_[c] = slots[next++];
  }
  const std::vector<std::byte*> staging = carve_slots(arena, plan.share_bytes, plan.staging_slots, "staging");
  for (uint32_t s = plan.staging_slots; s-- > 0;) {
    staging_[s].memory = staging[s];
    staging_[s].reading.transfer.prepare(most_blocks_);
    free_staging_.push_back(s);
  }
  held_staging_.reserve(plan.staging_slots);
  gathers.serve({stores_, home_, device_shares_.get()});
}

ParamHome::~ParamHome() {
  for (uint32_t s = 0; s < staging_count_; ++s) {
    staging_[s].read().wait_done();
    if (staging_[s].target != nullptr) gathers_.share_left(*staging_[s].target).wait_done();
  }
  for (const std::unique_ptr<Reading>& reading : read_past_host_) {
    if (reading != nullptr) reading->transfer.event().wait_done();
  }
}

void ParamHome::read_past_host(io::IoThread& reader) {
  file_reader_ = &reader;
  read_past_host_.resize(space_.chunk_count());
  for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
    if (home_[c] != nullptr || callers_.have(ChunkId{c})) continue;
    read_past_host_[c] = std::make_unique<Reading>();
    read_past_host_[c]->home = this;
    read_past_host_[c]->transfer.prepare(store_of(ChunkId{c}).block_count(ChunkId{c}));
    read_past_host_[c]->transfer.tell(&ParamHome::on_direct_read, read_past_host_[c].get());
  }
}

bool ParamHome::is_read_past_host(ChunkId chunk) const {
  const Reading* const reading = reading_of_[index_of(chunk)];
  return reading != nullptr && reading->slot != nullptr;
}

WaitSubject ParamHome::update_subject(ChunkId chunk) {
  return {"the update", "host -> device", TimeCause::update, chunk, nullptr, {}};
}

CopyName ParamHome::copy_name(ChunkId chunk) {
  return to_device_copy("parameters", chunk);
}

// A read behind an update begins when the update is over, so the update is waited for first.
void ParamHome::wait_read(const Staging& staging) {
  if (staging.read().done()) return;
  if (const Event* const updated = expected_[staging.chunk])
    wait_done_watched(*updated, watch_, update_subject(ChunkId{staging.chunk}));
  staging.reading.transfer.wait_done(watch_);
}

// The link copies in the order of the requests: a copy queued behind the read of another chunk delays those
// after it.
void ParamHome::wait_arrived(ChunkId chunk, const Event& arriving) {
  if (arriving.done()) return;
  if (const Event* const updated = expected_[index_of(chunk)])
    wait_done_watched(*updated, watch_, update_subject(chunk));
  if (device_shares_ != nullptr) device_shares_->written(chunk).wait_done(watch_);
  if (is_read_past_host(chunk))
    return wait_done_watched(arriving, watch_, reading_of_[index_of(chunk)]->transfer.subject());
  for (const uint32_t index : held_staging_) {
    const Staging& staging = staging_[index];
    if (staging.copy > copy_of_[index_of(chunk)]) break;
    wait_read(staging);
  }
  CopyName name = copy_name(chunk);
  name.link = gathers_.link();
  wait_done_watched(arriving, watch_, name.subject());
}

bool ParamHome::can_fetch_ahead(ChunkId chunk) const {
  if (!gathers_.has_room()) return false;
  return device_shares_ != nullptr || file_reader_ != nullptr || in_host_memory(chunk) != nullptr ||
         !free_staging_.empty();
}

void ParamHome::expect(ChunkId chunk, const Event& updated, const std::byte* fresh) {
  meeting_[index_of(chunk)].store(0, std::memory_order_relaxed);  // an unexpected update may have set it
  expected_[index_of(chunk)] = &updated;
  fresh_[index_of(chunk)] = home_[index_of(chunk)] == nullptr ? fresh : nullptr;
}

void ParamHome::stop_expecting(ChunkId chunk) {
  expected_[index_of(chunk)] = nullptr;
  meeting_[index_of(chunk)].store(0, std::memory_order_relaxed);
}

void ParamHome::forget_fresh() {
  for (uint32_t c = 0; device_shares_ != nullptr && c < fresh_.size(); ++c) {
    if (fresh_[c] != nullptr) device_shares_->written(ChunkId{c}).wait_done(watch_);
  }
  std::ranges::fill(fresh_, nullptr);
}

const std::byte* ParamHome::in_host_memory(ChunkId chunk) const {
  return home_[index_of(chunk)] != nullptr ? home_[index_of(chunk)] : fresh_[index_of(chunk)];
}

void ParamHome::send_to_device(ChunkId chunk, CacheSlot& slot) {
  h2d_bytes_ += shards_.param_bytes(chunk);
  publication_.note_made_on_device(chunk);
  gathers_.share(slot).begin(copy_name(chunk));
  copy_of_[index_of(chunk)] = ++copy_count_;
  slot.read = nullptr;
  copy_in(chunk, slot, in_host_memory(chunk), expected_[index_of(chunk)], TransferReason::update);
  wait_where_asked(chunk, slot);
}

void ParamHome::send_to_share(ChunkId chunk) {
  h2d_bytes_ += shards_.param_bytes(chunk);
  publication_.note_made_on_device(chunk);
  device_shares_->write(chunk, 0, in_host_memory(chunk), shards_.param_bytes(chunk),
                        expected_[index_of(chunk)]);
}

// Operations may still use the slot, or make the own share in it: an empty copy is over when they are.
void ParamHome::gather_in_place(ChunkId chunk, CacheSlot& slot, TransferReason reason) {
  if (shards_.count() > 1) {
    gathers_.share(slot).begin({"parameters", index_of(chunk), CopyName::Link::within_device});
    device_.copy_to_device(slot.id, 0, nullptr, 0, nullptr, gathers_.share(slot));
  }
  gathers_.gather(chunk, slot, {}, reason);
  wait_where_asked(chunk, slot);
}

// A failure is left to the user of the slot, as where nobody waits.
void ParamHome::wait_where_asked(ChunkId chunk, const CacheSlot& slot) {
  if (!gathers_.overlap()) wait_arrived(chunk, slot.in);
}

// The copy begins after the copies that leave the slot, and after `after`. A copy has one predecessor, so if
// there are two, an empty copy in front of it waits for the slot.
void ParamHome::copy_in(ChunkId chunk, CacheSlot& slot, const std::byte* source, const Event* after,
                        TransferReason reason) {
  if (after != nullptr && !slot.out.done()) {
    wait_done_watched(slot.fence, watch_, slot.out.subject());
    slot.fence.begin();
    device_.copy_to_device(slot.id, 0, source, 0, &slot.out, slot.fence);
  }
  device_.copy_to_device(
      slot.id, shards_.first_param_byte(chunk), source, shards_.param_bytes(chunk),
      after != nullptr ? after : &slot.out, gathers_.share(slot),
      to_device_note(watch_.events(), TransferRole::param, reason, index_of(chunk), copy_number(chunk)));
  gathers_.gather(chunk, slot, {source, after}, reason);
}

void ParamHome::start_fetch(ChunkId chunk, CacheSlot& slot) {
  if (device_shares_ != nullptr) {
    fetch_share(chunk, slot);
    return wait_where_asked(chunk, slot);
  }
  TERRACE_ASSERT(placement_ != Placement::none, "parameters that stay on the device are never fetched");
  forget_direct_read(chunk);
  copy_of_[index_of(chunk)] = ++copy_count_;
  slot.read = nullptr;
  const std::byte* const there = in_host_memory(chunk);
  if (file_reader_ != nullptr && there == nullptr && shards_.elements(chunk) > 0) {
    read_into_slot(chunk, slot);
  } else if (there != nullptr || file_reader_ != nullptr) {
    h2d_bytes_ += shards_.param_bytes(chunk);
    gathers_.share(slot).begin(copy_name(chunk));
    copy_in(chunk, slot, there, expected_[index_of(chunk)], TransferReason::step);
  } else {
    read_through_staging(chunk, slot);
  }
  wait_where_asked(chunk, slot);
}

// All ranks decide alike, so one without a share takes a slot of staging too.
void ParamHome::read_through_staging(ChunkId chunk, CacheSlot& slot) {
  h2d_bytes_ += shards_.param_bytes(chunk);
  Staging& staging = take_staging(chunk, slot);
  staging.copy = copy_of_[index_of(chunk)];
  gathers_.share(slot).begin(copy_name(chunk));
  slot.read = &staging.read();
  expect_read(chunk, staging.reading, staging.memory, TransferReason::step);
  if (const Event* const updated = expected_[index_of(chunk)]) {
    read_behind_update(chunk, *updated);
  } else {
    submit_read(chunk);
  }
  copy_in(chunk, slot, staging.memory, &staging.read(), TransferReason::step);
}

// The share has come from its update, or comes as one that send_to_share() has been called for.
void ParamHome::fetch_share(ChunkId chunk, CacheSlot& slot) {
  copy_of_[index_of(chunk)] = ++copy_count_;
  slot.read = nullptr;
  gathers_.share(slot).begin({"parameters", index_of(chunk), CopyName::Link::within_device});
  device_shares_->copy_to(chunk, slot, gathers_.share(slot));
  gathers_.gather(chunk, slot, {}, TransferReason::step);
}

// Reads the chunk into the device's slot; the engine waits for the copies that leave the slot.
void ParamHome::read_into_slot(ChunkId chunk, CacheSlot& slot) {
  const uint32_t blocks = store_of(chunk).block_count(chunk);
  Reading& reading = *read_past_host_[index_of(chunk)];
  std::byte* const memory = device_.begin_fills(slot.id, blocks, &slot.out);
  direct_read_bytes_ += shards_.param_bytes(chunk);
  reading.slot = &slot;
  expect_read(chunk, reading, memory + shards_.first_param_byte(chunk), TransferReason::step);
  gathers_.share(slot).begin({"parameters", index_of(chunk), CopyName::Link::nvme_to_device}, blocks);
  gathers_.gather(chunk, slot, {}, TransferReason::step);
  if (const Event* const updated = expected_[index_of(chunk)]) return read_behind_update(chunk, *updated);
  submit_read(chunk);
}

void ParamHome::forget_direct_read(ChunkId chunk) {
  if (!is_read_past_host(chunk)) return;
  reading_of_[index_of(chunk)]->transfer.wait_done(watch_);
  reading_of_[index_of(chunk)] = nullptr;
}

// The fetch and the end of the update meet here: the one that comes second starts the read.
void ParamHome::read_behind_update(ChunkId chunk, const Event& updated) {
  const uint8_t met = meeting_[index_of(chunk)].fetch_or(kFetchWaits, std::memory_order_acq_rel);
  if ((met & kUpdateFailed) != 0) {
    wait_done_watched(updated, watch_, update_subject(chunk));  // the event is about to be done
    reading_of_[index_of(chunk)]->transfer.fail_read(updated.failure());
  } else if ((met & kUpdateOver) != 0) {
    submit_read(chunk);
  }
}

void ParamHome::update_over(ChunkId chunk, const std::exception_ptr& failure) {
  if (failure == nullptr && is_in_memory(chunk)) gathers_.updated(chunk);
  const uint8_t came = failure == nullptr ? kUpdateOver : kUpdateFailed;
  const uint8_t met = meeting_[index_of(chunk)].fetch_or(came, std::memory_order_acq_rel);
  if ((met & kFetchWaits) == 0) return;
  if (failure != nullptr) return reading_of_[index_of(chunk)]->transfer.fail_read(failure);
  submit_read(chunk);
}

ParamHome::Staging& ParamHome::take_staging(ChunkId chunk, CacheSlot& slot) {
  fetch_finished(chunk);  // an earlier copy may have left the device without a use
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
  gathers_.finished(chunk);
  if (staging_of_[index_of(chunk)] != kNone) release_staging(staging_of_[index_of(chunk)]);
}

// Waits for the copy out of the staging slot. Its target may hold another chunk by now; then a later copy
// into it is waited for as well, which is harmless.
void ParamHome::release_staging(uint32_t index) {
  Staging& staging = staging_[index];
  wait_read(staging);
  gathers_.share_left(*staging.target).wait_done(watch_);
  staging_of_[staging.chunk] = kNone;
  reading_of_[staging.chunk] = nullptr;
  staging.target = nullptr;
  staging.chunk = kNone;
  held_staging_.erase(std::find(held_staging_.begin(), held_staging_.end(), index));
  free_staging_.push_back(index);
}

void ParamHome::expect_read(ChunkId chunk, Reading& reading, std::byte* memory, TransferReason reason) {
  reading_of_[index_of(chunk)] = &reading;
  reading.transfer.expect_read(
      store_of(chunk), chunk, memory,
      {.what = "parameters",
       .tag = transfer_tag(watch_.events(), TransferRole::param, reason, chunk),
       .link = reading.slot != nullptr ? "nvme -> device" : "nvme -> host -> device"});
  nvme_read_bytes_ += shards_.param_bytes(chunk);
}

void ParamHome::submit_read(ChunkId chunk) {
  Reading& reading = *reading_of_[index_of(chunk)];
  const bool is_direct = reading.slot != nullptr;
  reading.transfer.submit_read(TransferPort(is_direct ? *file_reader_ : *reader_, io::Priority::critical),
                               is_direct ? BlockTransfer::Check::later : BlockTransfer::Check::at_once);
}

void ParamHome::on_direct_read(void* context, ChunkTransfer& transfer, const io::Completion& completion,
                               std::exception_ptr& failure) noexcept {
  const Reading& reading = *static_cast<Reading*>(context);
  if (completion.error != 0) {
    failure = reworded(failure, [&](const Error& error) {
      return reading.home->direct_read_error(transfer.chunk(), completion, error);
    });
    // If an earlier transfer of the slot failed, its failure is the reason for this one.
    if (completion.error == ECANCELED && reading.slot->out.failed()) failure = reading.slot->out.failure();
  }
  reading.home->device_.end_fill(reading.slot->id);
  reading.home->gathers_.share(*reading.slot).complete_one(failure);
}

// Adds the chunk and its tensors to the failure, and words cuFile's own errors.
Error ParamHome::direct_read_error(ChunkId chunk, const io::Completion& completion,
                                   const Error& failure) const {
  ErrorParts parts = failure.parts();
  if (completion.error > kCuFileErrorBase) parts.reason = cu_file_reason(completion.error, "cuFileRead");
  const std::span<const TensorId> held = space_.tensors_of(chunk);
  parts.reason += fmt::format("; read by the device itself, for chunk {} ({} to {})", index_of(chunk),
                              space_.tensor(held.front()).name, space_.tensor(held.back()).name);
  if (parts.advice.empty())
    parts.advice =
        "set " + Option::reads_past_host + " to false and go on from the last commit or checkpoint";
  return Error(failure.kind(), std::move(parts));
}

void ParamHome::commit_with(Committer* committer) {
  committer_ = committer;
  publication_.commit_with(committer);
}

void ParamHome::before_change(ChunkId chunk) {
  if (committer_ != nullptr && home_[index_of(chunk)] != nullptr) committer_->before_change(chunk);
}

void ParamHome::read(ChunkId chunk, std::byte* destination) {
  if (device_shares_ != nullptr)
    return device_shares_->read(chunk, 0, destination, shards_.param_bytes(chunk));
  TERRACE_ASSERT(placement_ != Placement::none, "there is no home to read from");
  if (const std::byte* home = home_[index_of(chunk)]) {
    std::memcpy(destination, home, shards_.param_bytes(chunk));
    return;
  }
  if (shards_.elements(chunk) == 0) return;
  fetch_finished(chunk);  // a fetch ahead of time may still hold a staging slot
  forget_direct_read(chunk);
  Reading reading;
  reading.transfer.prepare(most_blocks_);
  expect_read(chunk, reading, destination, TransferReason::other);
  submit_read(chunk);
  reading_of_[index_of(chunk)] = nullptr;
  reading.transfer.wait(watch_);
}

}  // namespace terrace
