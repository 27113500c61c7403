#include <terrace/offload/gradients/pulled_gradients.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

// What a rank hands over: the chunk and the micro-batch, the elements among the owner's, and the step.
// Without elements it is the end of the micro-batch.
PullWords words_of(const OwnPart& part, uint64_t step) {
  return {index_of(part.chunk) | uint64_t{part.micro_batch} << 32, part.first_element, part.element_count,
          step};
}
OwnPart part_of(const PullWords& words) {
  return {ChunkId{static_cast<uint32_t>(words[0])}, static_cast<uint32_t>(words[0] >> 32), words[1],
          words[2]};
}

}  // namespace

PulledGradients::PulledGradients(Parts parts, Places places)
    : run_(parts.run),
      shards_(parts.run.shards),
      rounds_(rounds_of(parts.run.options)),
      cache_(parts.cache),
      pulls_(parts.pulls),
      places_(std::move(places)),
      slots_(std::make_unique<Slot[]>(parts.staging.size())),
      slot_count_(parts.staging.size()),
      ledger_(shards_, rounds_),
      free_(std::move(parts.incoming)),
      claims_(std::make_unique<Claim[]>(free_.size())),
      claim_count_(free_.size()) {
  for (size_t s = 0; s < slot_count_; ++s) slots_[s].memory = parts.staging[s];
  pulls_.listen(*this);
  thread_ = std::thread(&PulledGradients::work, this);
}

PulledGradients::~PulledGradients() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  called_.notify_all();
  thread_.join();
  for (size_t s = 0; s < slot_count_; ++s) {
    slots_[s].copied.wait_done();
    slots_[s].taken.wait_done();
  }
}

// --- The step thread ---

void PulledGradients::begin_step() {
  if (has_begun_) return;
  has_begun_ = true;
  round_ = 0;
  ++step_;
  added_.begin({kExchangedGradients, CopyName::kNoChunk, CopyName::Link::exchange});
  {
    const MutexLock lock(mutex_);
    begun_step_ = step_;
  }
  called_.notify_all();
}

void PulledGradients::allow_step() {
  const uint64_t step = has_begun_ ? step_ : step_ + 1;
  {
    const MutexLock lock(mutex_);
    if (step <= allowed_step_) return;
    allowed_step_ = step;
  }
  called_.notify_all();
}

// They become free in their order, since a rank's micro-batches do.
PulledGradients::Slot& PulledGradients::take_slot() {
  Slot& slot = slots_[next_slot_];
  slot.taken.wait(run_.watch);
  next_slot_ = (next_slot_ + 1) % slot_count_;
  return slot;
}

// The device slot may be taken again before its copies are over: an empty copy behind them says that it is
// free.
void PulledGradients::land(const GradientLanding& landing) {
  if (!has_data()) return cache_.drop_gradient(landing.chunk);
  Slot& slot = take_slot();
  const uint64_t element_bytes = bytes_of(run_.space.section_of(landing.chunk).type);
  CacheSlot& source = cache_.release_gradient(landing.chunk);
  slot.copied.begin(to_host_copy(kExchangedGradients, landing.chunk),
                    static_cast<uint32_t>(landing.runs.size()));
  for (const GradientRun& run : landing.runs) {
    const uint64_t offset = run.first_element * element_bytes, bytes = run.element_count * element_bytes;
    d2h_bytes_ += bytes;
    run_.device.copy_to_host(slot.memory + offset, source.id, offset, bytes, nullptr, slot.copied,
                             from_device_note(run_.watch.events(), TransferRole::grad, TransferReason::step,
                                              index_of(landing.chunk)));
  }
  source.out.begin(to_host_copy(kExchangedGradients, landing.chunk));
  run_.device.copy_to_host(slot.memory, source.id, 0, 0, nullptr, source.out);
  offer(landing, slot, &slot.copied);
}

// The padding behind the part has no gradient.
void PulledGradients::land_part(const GradientLanding& landing, const HandedPart& part) {
  if (!has_data()) return;
  Slot& slot = take_slot();
  const uint64_t element_bytes = bytes_of(run_.space.section_of(landing.chunk).type);
  const GradientRun& run = landing.runs.front();
  std::byte* const to = slot.memory + run.first_element * element_bytes;
  std::memcpy(to, part.gradient, part.element_count * element_bytes);
  std::memset(to + part.element_count * element_bytes, 0,
              (run.element_count - part.element_count) * element_bytes);
  offer(landing, slot, nullptr);
}

void PulledGradients::offer(const GradientLanding& landing, Slot& slot, const Event* after) {
  const uint64_t element_bytes = bytes_of(run_.space.section_of(landing.chunk).type);
  const uint32_t micro_batch = rounds_.number(round_, shards_.rank());
  const auto for_each_part = [&](auto body) {
    for (uint32_t owner = 0; owner < shards_.count(); ++owner) {
      const ShardTiles tiles = shards_.of(landing.chunk, owner);
      const uint64_t first = tiles.first_element(), last = first + tiles.elements();
      for (const GradientRun& run : landing.runs) {
        const uint64_t begin = std::max(first, run.first_element), end = std::min(last, run.end());
        if (begin < end) body(owner, begin, OwnPart{landing.chunk, micro_batch, begin - first, end - begin});
      }
    }
  };
  uint32_t count = 0;
  for_each_part([&](uint32_t, uint64_t, const OwnPart&) { ++count; });
  slot.taken.begin({kExchangedGradients, index_of(landing.chunk), CopyName::Link::exchange}, count);
  for_each_part([&](uint32_t owner, uint64_t begin, const OwnPart& part) {
    const uint64_t bytes = part.element_count * element_bytes;
    if (owner != shards_.rank()) out_bytes_ += bytes;
    pulls_.pulls().hand_over(owner, words_of(part, step_), {slot.memory + begin * element_bytes, bytes},
                             after, &slot.taken);
  });
}

void PulledGradients::say_end() {
  if (has_data()) {
    const PullWords words = words_of({ChunkId{0}, rounds_.number(round_, shards_.rank()), 0, 0}, step_);
    for (uint32_t owner = 0; owner < shards_.count(); ++owner)
      pulls_.pulls().hand_over(owner, words, {}, nullptr, nullptr);
  }
  ++round_;
}

void PulledGradients::end_micro_batch(bool ends_step) {
  say_end();
  if (ends_step) wait_for_step();
}

void PulledGradients::give_up() {
  while (round_ < rounds_.count()) say_end();
  wait_for_step();
}

void PulledGradients::wait_for_step() {
  for (size_t s = 0; s < slot_count_; ++s) slots_[s].taken.wait(run_.watch);
  added_.wait(run_.watch);
  has_begun_ = false;
}

RankBytes PulledGradients::moved() const {
  return {in_bytes_.load(std::memory_order_relaxed), out_bytes_, 0, 0};
}

// --- The communication side ---

void PulledGradients::hear(const HandedOver& part) {
  {
    const MutexLock lock(mutex_);
    inbox_.push_back(part);
  }
  called_.notify_all();
}

void PulledGradients::lost(const std::exception_ptr& failure) {
  {
    const MutexLock lock(mutex_);
    if (lost_ == nullptr) lost_ = failure;
  }
  called_.notify_all();
}

// --- The thread that adds ---

void PulledGradients::work() {
  while (wait_for_work()) {
    if (has_failed_) continue;
    try {
      sort_in();
      claim();
      if (claimed_ > 0) add_oldest();
      if (is_over()) finish_step();
    } catch (...) {
      fail(std::current_exception());
    }
  }
  for (; claimed_ > 0; --claimed_, oldest_claim_ = (oldest_claim_ + 1) % claim_count_)
    claims_[oldest_claim_].arrived.wait_done();
}

// Takes what has come, and begins a step that may begin. Returns false at the end.
bool PulledGradients::wait_for_work() {
  const MutexLock lock(mutex_);
  const auto can_open = [this] {
    return !is_open_ && allowed_step_ >= adding_step_ && begun_step_ >= adding_step_;
  };
  called_.wait(mutex_, [&] {
    if (stop_) return true;
    if (has_failed_) return !added_.done() && begun_step_ >= adding_step_;
    return lost_ != nullptr || can_open() || (is_open_ && (!inbox_.empty() || claimed_ > 0));
  });
  if (stop_ || has_failed_ || lost_ != nullptr) {
    const std::exception_ptr failure = lost_;
    if (!has_failed_ && failure != nullptr) has_failed_ = true;
    if (begun_step_ >= adding_step_ && !added_.done()) added_.complete_one(failure);
    return !stop_;
  }
  if (can_open()) {
    is_open_ = true;
    ledger_.begin_step();
    for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
      if (run_.is_trained(ChunkId{c})) places_.sums.forget(ChunkId{c});
    }
  }
  heard_.swap(inbox_);
  return true;
}

void PulledGradients::sort_in() {
  for (const HandedOver& part : heard_) {
    TERRACE_ASSERT(part.words[3] == adding_step_, "no rank is a step ahead of the owner's update");
    if (part.bytes == 0) {
      ledger_.end_micro_batch(part.from);
    } else {
      pending_.push_back(part);
    }
  }
  heard_.clear();
}

// In the order in which they came, as long as there is memory.
void PulledGradients::claim() {
  parts_.clear();
  for (const HandedOver& part : pending_) parts_.push_back(part_of(part.words));
  for (size_t i = 0; i < pending_.size() && !free_.empty();) {
    const HandedOver part = pending_[i];
    if (!ledger_.is_due(parts_[i], parts_)) {
      ++i;
      continue;
    }
    Claim& claim = claims_[(oldest_claim_ + claimed_) % claim_count_];
    claim.memory = free_.back();
    claim.landing = ledger_.take(parts_[i], claim.runs);
    claim.landing.runs = claim.runs;
    claim.first_element = parts_[i].first_element;
    claim.arrived.begin();
    free_.pop_back();
    ++claimed_;
    if (part.from != shards_.rank()) in_bytes_.fetch_add(part.bytes, std::memory_order_relaxed);
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    parts_.erase(parts_.begin() + static_cast<ptrdiff_t>(i));
    pulls_.pulls().take(part, {claim.memory, part.bytes}, claim.arrived,
                        exchanged_note(run_.watch.events(), index_of(claim.landing.chunk)));
    i = 0;  // those behind it may be due now
  }
}

void PulledGradients::add_oldest() {
  Claim& claim = claims_[oldest_claim_];
  claim.arrived.wait();
  const ChunkId chunk = claim.landing.chunk;
  const uint64_t before = claim.first_element * bytes_of(run_.space.section_of(chunk).type);
  GradientPlace& place = places_.of(chunk);
  place.make_room(claim.landing, [](ChunkId) {});
  place.add(claim.landing, claim.memory - before, true);
  free_.push_back(claim.memory);
  oldest_claim_ = (oldest_claim_ + 1) % claim_count_;
  --claimed_;
}

bool PulledGradients::is_over() const {
  return is_open_ && claimed_ == 0 && pending_.empty() && ledger_.have_all_ended();
}

// What did not come is zero.
void PulledGradients::finish_step() {
  for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (!run_.is_trained(chunk)) continue;
    const GradientLanding rest = ledger_.take_rest(chunk, rest_);
    GradientPlace& place = places_.of(chunk);
    const auto finish = [](ChunkId) {};
    if (!rest.runs.empty()) place.add_zeros(rest, rest, finish);
    if (shards_.elements(chunk) > 0) continue;
    place.make_room(rest, finish);
    place.add(rest, nullptr, true);
  }
  places_.finish();
  is_open_ = false;
  ++adding_step_;
  added_.complete_one();
}

// The others wait for what this rank does not add any more.
void PulledGradients::fail(const std::exception_ptr& failure) {
  has_failed_ = true;
  std::string why = "it cannot add gradients";
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    why = error.what();
  }
  {
    const MutexLock lock(mutex_);
    if (lost_ == nullptr) lost_ = failure;
    if (begun_step_ >= adding_step_ && !added_.done()) added_.complete_one(failure);
  }
  pulls_.ranks().leave(std::move(why));
}

}  // namespace terrace
