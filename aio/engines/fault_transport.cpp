#include <terrace/aio/engines/fault_transport.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace::io {
void FaultSleeper::sleep_until(const FaultTime& time, uint64_t due_ns) {
  if (time.sleep_until) {
    if (due_ns > time.clock->now_ns()) time.sleep_until(due_ns);
    return;
  }
  const MutexLock lock(mutex_);
  while (!woken_) {
    const uint64_t now_ns = time.clock->now_ns();
    if (now_ns >= due_ns) return;
    changed_.wait_for(mutex_, std::chrono::nanoseconds(due_ns - now_ns));
  }
}

void FaultSleeper::wake() noexcept {
  {
    const MutexLock lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

bool FaultSleeper::take_woken() {
  const MutexLock lock(mutex_);
  return std::exchange(woken_, false);
}

struct FaultTransport::Tracked {
  Piece piece;
  FaultEffects effects;
  int64_t result;
};

FaultTransport::FaultTransport(std::unique_ptr<Transport> base, std::vector<Fault> faults, FaultTime time)
    : FaultTransport(std::move(base), std::make_unique<FaultPlan>(std::move(faults), std::move(time))) {}

FaultTransport::FaultTransport(std::unique_ptr<Transport> base, std::unique_ptr<FaultPlan> own_plan)
    : FaultTransport(std::move(base), *own_plan) {
  own_plan_ = std::move(own_plan);
}

FaultTransport::FaultTransport(std::unique_ptr<Transport> base, FaultPlan& plan)
    : base_(std::move(base)), plan_(plan) {}

FaultTransport::~FaultTransport() = default;

void FaultTransport::start(std::span<const Piece> pieces) {
  std::vector<Piece> below;
  for (const Piece& piece : pieces) {
    if (tracked_.size() <= piece.id) tracked_.resize(piece.id + 1);
    FaultEffects effects = plan_.effects_on(piece.kind, piece.fd, piece.bytes);
    if (effects.disk_is_full && effects.moved_bytes > 0) effects.error = 0;
    tracked_[piece.id] = Tracked{piece, effects, 0};
    Piece changed = piece;
    changed.bytes = static_cast<uint32_t>(effects.moved_bytes);
    if (changed.bytes > 0 && effects.error == 0) {
      below.push_back(changed);
    } else {
      finish(piece.id, 0);
    }
  }
  if (below.empty()) return;
  in_base_ += below.size();
  base_->start(below);
}

void FaultTransport::finish(uint32_t id, int64_t result) {
  Tracked& tracked = tracked_[id];
  if (tracked.effects.error != 0) result = -tracked.effects.error;
  if (result >= 0 && tracked.effects.claims_all) result = tracked.piece.bytes;
  if (result > 0) tracked.effects.flip(tracked.piece.data, static_cast<uint64_t>(result));
  tracked.result = result;
  finished_.push_back(id);
}

// In the order in which they became due.
size_t FaultTransport::take_due(std::span<PieceResult> results) {
  size_t count = 0;
  while (count < results.size()) {
    const auto first = std::min_element(finished_.begin(), finished_.end(), [this](uint32_t a, uint32_t b) {
      return tracked_[a].effects.due_ns < tracked_[b].effects.due_ns;
    });
    if (first == finished_.end() || tracked_[*first].effects.due_ns > plan_.time().clock->now_ns()) break;
    results[count++] = PieceResult{*first, tracked_[*first].result};
    finished_.erase(first);
  }
  return count;
}

// In this order: reap() asks the base about a wake that ended its sleep.
void FaultTransport::wake() noexcept {
  base_->wake();
  sleeper_.wake();
}

Reaped FaultTransport::reap(std::span<PieceResult> results, bool block) {
  bool woken = false;
  std::vector<PieceResult> below(std::max<size_t>(in_base_, 1));
  for (;;) {
    // Blocking, everything that is below comes up before time is allowed to pass: a simulated run does not
    // depend on how fast the system underneath is.
    bool may_block = block;
    while (in_base_ > 0 && !woken) {
      const Reaped reaped = base_->reap(below, may_block);
      woken = woken || reaped.woken;
      in_base_ -= reaped.count;
      for (size_t i = 0; i < reaped.count; ++i) finish(below[i].id, below[i].result);
      if (!may_block) break;
      may_block = in_base_ > 0;
    }
    const size_t count = take_due(results);
    if (count > 0 || !block || woken) return Reaped{count, woken};
    uint64_t due_ns = std::numeric_limits<uint64_t>::max();
    for (const uint32_t id : finished_) due_ns = std::min(due_ns, tracked_[id].effects.due_ns);
    sleeper_.sleep_until(plan_.time(), due_ns);
    if (sleeper_.take_woken()) woken = base_->reap(below, false).woken;
  }
}

}  // namespace terrace::io
