#include <terrace/offload/commits/committer.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/offload/watch/watched_votes.h>

namespace terrace {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
// So many writes keep a path busy and still let the reads of the next step in between.
constexpr size_t kWritesInFlightPerPath = 4;

[[noreturn]] void refuse_without_slots(const char* what_failed, const BlockStore& store) {
  if (store.bad_slot_count() == 0) {
    throw Error(ErrorKind::capacity, {what_failed, store.name(),
                                      "no slot is free: those of commits that failed are kept, because it is "
                                      "not known whether a crash would bring them back",
                                      "see what the commit failed with, and go on from the last commit or "
                                      "checkpoint"});
  }
  throw Error(ErrorKind::capacity,
              {what_failed, store.name(),
               std::to_string(store.bad_slot_count()) + " slots failed (" + store.last_bad_slot() +
                   "), and none is left",
               "the disk is failing: go on from the last commit or checkpoint on another one"});
}

}  // namespace

Committer::Committer(CommitStores stores, uint32_t chunk_count, uint32_t retained_commits,
                     std::unique_ptr<io::Engine> engine, StepWatch& watch, Log& log)
    : stores_(stores),
      chunk_count_(chunk_count),
      retained_limit_(retained_commits),
      watch_(watch),
      log_(log),
      engine_(std::move(engine)),
      cached_of_(kCommitParts.size() * chunk_count, kNone),
      transfers_(kWritesInFlightPerPath * stores_.space->path_count()) {
  for (Transfer& transfer : transfers_) {
    transfer.committer = this;
    transfer.block.tell(&Committer::on_written, &transfer);
  }
  next_number_ = stores_.space->next_number();
  thread_ = std::thread([this] { work(); });
}

Committer::~Committer() {
  {
    const MutexLock lock(mutex_);
    TERRACE_ASSERT(!pinned_, "a pinned commit goes before the offloader");
    stopping_ = true;
  }
  work_added_.notify_all();
  thread_.join();
}

void Committer::add_cached(CommitPart part, ChunkId chunk, const std::byte* memory, bool dirty) {
  TERRACE_ASSERT(stores_[part] != nullptr, "what is cached has a store");
  const MutexLock lock(mutex_);
  TERRACE_ASSERT(!in_progress_, "what is cached does not change during a commit");
  cached_of(part, chunk) = static_cast<uint32_t>(cached_.size());
  cached_.push_back({part, chunk, memory, dirty ? State::dirty : State::clean});
  queue_.reserve(cached_.size());
}

bool Committer::is_newer(CommitPart part, ChunkId chunk) {
  const MutexLock lock(mutex_);
  const uint32_t c = cached_of(part, chunk);
  return c != kNone && cached_[c].state != State::clean;
}

void Committer::forget_cached(CommitPart part, ChunkId chunk) {
  const MutexLock lock(mutex_);
  TERRACE_ASSERT(!in_progress_, "what is cached does not change during a commit");
  const uint32_t c = std::exchange(cached_of(part, chunk), kNone);
  TERRACE_ASSERT(c != kNone, "only what was added can be forgotten");
  if (c + 1 < cached_.size()) {
    cached_[c] = cached_.back();
    cached_of(cached_[c].part, cached_[c].chunk) = c;
  }
  cached_.pop_back();
}

void Committer::forget_cached() {
  wait_idle();
  const MutexLock lock(mutex_);
  cached_.clear();
  std::ranges::fill(cached_of_, kNone);
}

void Committer::take_up(CommitSlots commit, bool is_retained, std::vector<CommitSlots> retained) {
  const MutexLock lock(mutex_);
  last_commit_ = commit.commit;
  last_ = std::move(commit);
  retain_last_ = is_retained;
  for (CommitSlots& slots : retained) retained_.push_back(std::move(slots));
}

template <typename Condition>
void Committer::wait_until(Condition condition, std::optional<ChunkId> chunk, std::string_view what) {
  if (condition()) return;
  const uint64_t start = clock_.now_ns();
  {
    const WatchedWait watched(watch_, {what, "host -> nvme", TimeCause::commit, chunk, nullptr, {}});
    progress_.wait(mutex_, condition);
  }
  counters_.wait_ns += clock_.now_ns() - start;
}

void Committer::begin(const WholeState&, std::string_view info, std::span<const uint64_t> tensor_steps,
                      bool retain) {
  TERRACE_ASSERT(!retain || retained_limit_ > 0, "no room was planned for retained commits");
  {
    const MutexLock lock(mutex_);
    wait_until([this] { return !in_progress_ && !pinned_; }, std::nullopt, "the commit before");
  }
  throw_failure();
  CommitSlots next;
  next.commit = next_number_++;
  next.info = info;
  next.tensor_steps.assign(tensor_steps.begin(), tensor_steps.end());
  for (const CommitPart part : kCommitParts) {
    if (stores_[part] != nullptr) next[part] = stores_[part]->snapshot();
  }
  {
    const MutexLock lock(mutex_);
    next_ = std::move(next);
    retain_next_ = retain;
    queue_.clear();
    queue_front_ = 0;
    std::array<uint64_t, kCommitParts.size()> slots{};
    for (uint32_t c = 0; c < cached_.size(); ++c) {
      Cached& cached = cached_[c];
      if (cached.state != State::dirty) continue;
      cached.state = State::queued;
      cached.blocks_begun = cached.blocks_written = 0;
      slots[index_of(cached.part)] += store_of(cached).block_count(cached.chunk);
      queue_.push_back(c);
    }
    for (size_t part = 0; part < slots.size(); ++part) slots_wanted_[part].store(slots[part]);
    hurried_.reset();
    in_progress_ = true;
  }
  work_added_.notify_all();
}

bool Committer::in_progress() const {
  const MutexLock lock(mutex_);
  return in_progress_;
}

uint64_t Committer::finish() {
  wait_idle();
  throw_failure();
  return last_commit();
}

void Committer::throw_failure() {
  std::exception_ptr failure;
  {
    const MutexLock lock(mutex_);
    if (!in_progress_) failure = std::exchange(failure_, nullptr);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

uint64_t Committer::last_commit() const {
  const MutexLock lock(mutex_);
  return last_commit_;
}

bool Committer::may_have_another() const {
  const MutexLock lock(mutex_);
  return !in_progress_ && !uncertain_.empty();
}

bool Committer::may_change(ChunkId chunk) {
  const MutexLock lock(mutex_);
  for (const CommitPart part : kCommitParts) {
    const uint32_t c = cached_of(part, chunk);
    if (c == kNone || cached_[c].state != State::queued) continue;
    hurried_ = c;
    return false;
  }
  return true;
}

void Committer::before_change(ChunkId chunk) {
  const MutexLock lock(mutex_);
  for (const CommitPart part : kCommitParts) {
    const uint32_t c = cached_of(part, chunk);
    if (c == kNone) continue;
    if (cached_[c].state == State::queued) hurried_ = c;
    wait_until([&] { return cached_[c].state != State::queued; }, chunk,
               part == CommitPart::records ? "optimizer states of a commit" : "parameters of a commit");
    cached_[c].state = State::dirty;
  }
}

bool Committer::begin_write(CommitPart part, const io::Engine& engine, ChunkId chunk, uint32_t block,
                            std::span<const std::byte> source, BlockStore::Write& write) {
  BlockStore& store = *stores_[part];
  while (true) {
    // `idle` is read before the attempt: if a commit ends in between, it frees its slots and another attempt
    // follows.
    const bool idle = !in_progress();
    const bool may_take = idle || may_take_slot(part);
    if (may_take && store.begin_write(chunk, block, source, write)) return true;
    if (idle) break;
    may_take ? wait_idle() : wait_for_slots(part);
  }
  if (engine.in_flight() > 0) return false;
  refuse_without_slots("cannot write a part of the state to", store);
}

// Leaves the commit in progress the slots that it still needs, or both would wait for ever. The order of the
// two reads matters: a slot that the committer takes between them counts twice, never not at all.
bool Committer::may_take_slot(CommitPart part) const {
  const uint64_t wanted = slots_wanted_[index_of(part)].load();
  return wanted == 0 || stores_[part]->free_slot_count() > wanted;
}

void Committer::wait_for_slots(CommitPart part) {
  const MutexLock lock(mutex_);
  wait_until([&] { return !in_progress_ || may_take_slot(part); }, std::nullopt, "the slots of a commit");
}

void Committer::wait_idle() {
  const MutexLock lock(mutex_);
  wait_until([this] { return !in_progress_; }, std::nullopt, "a commit");
}

const CommitSlots& Committer::pin() {
  wait_idle();
  const MutexLock lock(mutex_);
  TERRACE_ASSERT(last_ && !pinned_, "there is one commit to pin, and one pin at a time");
  pinned_ = true;
  return *last_;
}

void Committer::unpin() {
  {
    const MutexLock lock(mutex_);
    pinned_ = false;
  }
  progress_.notify_all();
}

Committer::Counters Committer::counters() const {
  const MutexLock lock(mutex_);
  return counters_;
}

// --- The thread ---

void Committer::work() {
  watch_.set_commit_thread();
  while (true) {
    {
      const MutexLock lock(mutex_);
      work_added_.wait(mutex_, [this] { return in_progress_ || stopping_; });
      if (!in_progress_) break;
    }
    const std::optional<TraceEvent> recorded = begin_recording();
    std::exception_ptr failure;
    try {
      commit();
    } catch (...) {
      failure = std::current_exception();
    }
    if (recorded) end_recording(*recorded, failure != nullptr);
    next_.reset();  // frees the slots of a commit that failed before its manifest
    for (std::atomic<uint64_t>& wanted : slots_wanted_) wanted.store(0);
    {
      const MutexLock lock(mutex_);
      for (const uint32_t c : queue_) {
        if (cached_[c].state == State::queued) cached_[c].state = State::dirty;
      }
      failure_ = std::move(failure);  // the step thread, which is told of it, is the last to hold it
      in_progress_ = false;
    }
    progress_.notify_all();
  }
  engine_.reset();
}

std::optional<TraceEvent> Committer::begin_recording() const {
  if (!is_recording(watch_.events())) return std::nullopt;
  TraceEvent event = watch_.events()->begun(TraceKind::commit);
  event.id = next_->commit;
  event.bytes = counters().written_bytes;  // the bytes so far; end_recording() subtracts them
  return event;
}

void Committer::end_recording(TraceEvent commit, bool failed) const {
  commit.bytes = counters().written_bytes - commit.bytes;
  commit.failed = failed;
  watch_.events()->record_until_now(commit);
}

void Committer::commit() {
  uint64_t bytes = 0;
  bool may_be_there = false;
  std::exception_ptr failure;
  try {
    bytes = write_commit(may_be_there);
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    agree(std::move(failure));
  } catch (...) {
    if (may_be_there) uncertain_.push_back(std::move(*next_));
    throw;
  }
  stores_.space->remove_passed();
  make_last(bytes);
}

uint64_t Committer::write_commit(bool& may_be_there) {
  write_queued();
  for (BlockStore* store : stores_.parts) {
    if (store != nullptr) store->sync();
  }
  return stores_.space->write_commit(make_manifest(), may_be_there);
}

// Throws `failure`, and Error(peer) where another rank's part of the commit failed. Every rank keeps the
// commit before until it knows that all have this one: what a crash leaves is then whole on all of them.
void Committer::agree(std::exception_ptr failure) {
  struct Vote {
    uint64_t commit, is_durable;
  };
  const Vote mine{next_->commit, failure == nullptr};
  std::vector<Vote> all;
  try {
    all = WatchedVotes(RankVotes(stores_.ranks, Lane::commit), watch_).of_all("the end of a commit", mine);
  } catch (...) {
    if (failure == nullptr) throw;  // else the own failure says more
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  for (uint32_t r = 0; r < all.size(); ++r) {
    if (all[r].commit == mine.commit && all[r].is_durable != 0) continue;
    throw Error(ErrorKind::peer,
                {"cannot commit the state", "commit " + std::to_string(mine.commit),
                 all[r].commit == mine.commit
                     ? "rank " + std::to_string(r) + " could not write its part"
                     : "rank " + std::to_string(r) + " makes commit " + std::to_string(all[r].commit),
                 "see what that rank says; the commit before is still whole on all ranks"});
  }
}

// Returns the part that a change waits for, if it has blocks left, else the next one of the queue.
Committer::Cached* Committer::next_block() {
  const MutexLock lock(mutex_);
  const auto has_blocks = [this](const Cached& cached) {
    return cached.blocks_begun < store_of(cached).block_count(cached.chunk);
  };
  if (hurried_ && has_blocks(cached_[*hurried_])) return &cached_[*hurried_];
  while (queue_front_ < queue_.size() && !has_blocks(cached_[queue_[queue_front_]])) ++queue_front_;
  return queue_front_ < queue_.size() ? &cached_[queue_[queue_front_]] : nullptr;
}

void Committer::write_queued() {
  write_failure_ = nullptr;
  while (true) {
    for (Transfer& transfer : transfers_) {
      if (transfer.block.under_way() || write_failure_ != nullptr) continue;
      Cached* cached = next_block();
      if (cached == nullptr || !submit_block(transfer, *cached)) break;
    }
    if (engine_->in_flight() == 0) break;
    engine_->wait(1);
  }
  if (write_failure_ != nullptr) std::rethrow_exception(std::exchange(write_failure_, nullptr));
}

// False: no slot is free, and the writes under way will free some. So it is after a commit that failed, whose
// blocks have the slots that were planned for this one.
bool Committer::submit_block(Transfer& transfer, Cached& cached) {
  BlockStore& store = store_of(cached);
  const uint32_t block = cached.blocks_begun++;
  const std::span<const std::byte> bytes = {cached.memory + block * store.block_bytes(cached.chunk, 0),
                                            store.block_bytes(cached.chunk, block)};
  try {
    if (!store.begin_write(cached.chunk, block, bytes, transfer.block.write())) {
      if (engine_->in_flight() > 0) {
        --cached.blocks_begun;
        return false;
      }
      refuse_without_slots("cannot commit the state", store);
    }
  } catch (...) {
    write_failure_ = std::current_exception();
    return true;
  }
  slots_wanted_[index_of(cached.part)].fetch_sub(1);
  transfer.cached = static_cast<uint32_t>(&cached - cached_.data());
  const TransferRole role = cached.part == CommitPart::records ? TransferRole::state : TransferRole::param;
  transfer.block.start_write(
      store, TransferPort(*engine_, io::Priority::background),
      {.what = "a commit", .tag = transfer_tag(watch_.events(), role, TransferReason::commit, cached.chunk)});
  return true;
}

void Committer::on_written(void* context, BlockTransfer&, const io::Completion&,
                           std::exception_ptr failure) noexcept {
  const auto& transfer = *static_cast<Transfer*>(context);
  transfer.committer->block_written(transfer, std::move(failure));
}

void Committer::block_written(const Transfer& transfer, std::exception_ptr failure) noexcept {
  if (failure != nullptr) {
    if (write_failure_ == nullptr) write_failure_ = std::move(failure);
    return;
  }
  Cached& cached = cached_[transfer.cached];
  (*next_)[cached.part].adopt(transfer.block.write());
  const MutexLock lock(mutex_);
  counters_.written_bytes += transfer.block.bytes().size();
  if (++cached.blocks_written < store_of(cached).block_count(cached.chunk)) return;
  cached.state = State::clean;
  progress_.notify_all();
}

TierManifest Committer::make_manifest() const {
  TierManifest manifest;
  manifest.space = stores_.space->id();
  manifest.commit = next_->commit;
  manifest.info = next_->info;
  manifest.tensor_steps = next_->tensor_steps;
  if (!manifest.tensor_steps.empty()) manifest.version = 3;
  if (stores_.ranks != nullptr) {
    manifest.version = 4;
    manifest.shard = {stores_.ranks->rank(), stores_.ranks->size(), last_commit()};
  }
  manifest.layout = stores_.layout;
  for (const CommitPart part : kCommitParts) {
    if (stores_[part] != nullptr) manifest.stores.push_back(stores_[part]->layout_of((*next_)[part]));
  }
  return manifest;
}

void Committer::make_last(uint64_t manifest_bytes) {
  std::optional<CommitSlots> old = std::exchange(last_, std::move(next_));
  const bool retain_old = std::exchange(retain_last_, retain_next_);
  {
    const MutexLock lock(mutex_);
    last_commit_ = last_->commit;
    ++counters_.commits;
    counters_.manifest_bytes += manifest_bytes;
  }
  uncertain_.clear();  // the new manifest is later than theirs
  if (old && retain_old) retained_.push_back(std::move(*old));
  if (!retain_last_) return;
  stores_.space->retain_commit(last_->commit);
  // A retained commit goes only when another one is retained, so a run with a lower limit keeps those that it
  // finds.
  while (retained_.size() + 1 > retained_limit_) {
    remove_manifest(retained_.front().commit);
    retained_.pop_front();
  }
}

// The manifest goes before its slots: a manifest that exists names blocks that exist.
void Committer::remove_manifest(uint64_t commit) {
  try {
    stores_.space->remove_commit(commit);
  } catch (const Error& error) {
    log_.warning(std::string("an older commit stays beside the last one: ") + error.in(log_.door()));
  }
}

}  // namespace terrace
