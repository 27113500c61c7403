#include <terrace/aio/engines/fault_engine.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace::io {
namespace {

void flip(const FaultEffects& effects, std::byte* data, uint64_t bytes) {
  if (effects.flipped_byte && *effects.flipped_byte < bytes) data[*effects.flipped_byte] ^= std::byte{1};
}

}  // namespace

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

// ---- FaultEngine ----

struct FaultEngine::Tracked {
  FaultEngine* owner;
  Request request;
  FaultEffects effects;
  Completion completion;
};

FaultEngine::FaultEngine(std::unique_ptr<Engine> base, std::vector<Fault> faults, FaultTime time)
    : FaultEngine(std::move(base), std::make_unique<FaultPlan>(std::move(faults), std::move(time))) {}

FaultEngine::FaultEngine(std::unique_ptr<Engine> base, std::unique_ptr<FaultPlan> own_plan)
    : FaultEngine(std::move(base), *own_plan) {
  own_plan_ = std::move(own_plan);
}

FaultEngine::FaultEngine(std::unique_ptr<Engine> base, FaultPlan& plan)
    : EngineDecorator(std::move(base)), plan_(plan) {
  for (const Fault& fault : plan_.faults()) {
    TERRACE_ASSERT(fault.kind != FaultKind::short_transfer,
                   "an engine never ends short: plan short transfers on a FaultTransport, below it");
  }
}

FaultEngine::~FaultEngine() {
  while (in_flight_ > 0) wait(in_flight_);
}

// What the base is asked to do for `request`, if anything.
Request FaultEngine::start(const Request& request, bool& goes_to_base) {
  if (free_.empty()) free_.push_back(tracked_.emplace_back(std::make_unique<Tracked>()).get());
  Tracked* tracked = free_.back();
  free_.pop_back();
  const FaultEffects effects = plan_.effects_on(request.kind, request.fd, request.bytes);
  *tracked = Tracked{this, request, effects, {}};
  ++in_flight_;
  Request below = request;
  below.bytes = effects.moved_bytes;
  below.on_complete = &FaultEngine::on_base_complete;
  below.context = tracked;
  goes_to_base = below.bytes > 0 || effects.error == 0;
  if (!goes_to_base) {
    tracked->completion = Completion{effects.error, 0, request.tag};
    held_.push_back(tracked);
  }
  return below;
}

void FaultEngine::submit(std::span<const Request> requests) {
  std::vector<Request> below;
  below.reserve(requests.size());
  for (const Request& request : requests) {
    bool goes_to_base = false;
    const Request changed = start(request, goes_to_base);
    if (goes_to_base) below.push_back(changed);
  }
  base().submit(below);
}

void FaultEngine::on_base_complete(void* context, const Completion& completion) noexcept {
  auto& tracked = *static_cast<Tracked*>(context);
  tracked.owner->finish(tracked, completion);
}

void FaultEngine::finish(Tracked& tracked, const Completion& completion) {
  const FaultEffects& effects = tracked.effects;
  Completion changed = completion;
  if (completion.error == 0) {
    changed.error = effects.error;
    if (effects.claims_all && effects.error == 0) changed.bytes = tracked.request.bytes;
  }
  flip(effects, tracked.request.data, completion.bytes);
  if (plan_.time().clock->now_ns() >= effects.due_ns) {
    run(tracked, changed);
  } else {
    tracked.completion = changed;
    held_.push_back(&tracked);
  }
}

void FaultEngine::run(Tracked& tracked, const Completion& completion) {
  const Request request = tracked.request;
  free_.push_back(&tracked);
  --in_flight_;
  ++completed_;
  request.on_complete(request.context, completion);
}

// In the order in which they became due.
void FaultEngine::run_due() {
  for (;;) {
    const auto first = std::min_element(held_.begin(), held_.end(), [](const Tracked* a, const Tracked* b) {
      return a->effects.due_ns < b->effects.due_ns;
    });
    if (first == held_.end() || (*first)->effects.due_ns > plan_.time().clock->now_ns()) return;
    Tracked* tracked = *first;
    held_.erase(first);
    run(*tracked, tracked->completion);
  }
}

size_t FaultEngine::poll() {
  const uint64_t before = completed_;
  base().poll();
  run_due();
  return completed_ - before;
}

size_t FaultEngine::wait(size_t min_count) {
  const uint64_t before = completed_;
  const uint64_t target = before + std::min<uint64_t>(min_count, in_flight_);
  base().poll();
  run_due();
  while (completed_ < target && !sleeper_.take_woken()) {
    if (base().in_flight() > 0) {
      base().wait(1);
    } else {
      uint64_t due_ns = std::numeric_limits<uint64_t>::max();
      for (const Tracked* tracked : held_) due_ns = std::min(due_ns, tracked->effects.due_ns);
      sleeper_.sleep_until(plan_.time(), due_ns);
    }
    run_due();
  }
  return completed_ - before;
}

void FaultEngine::wake() noexcept {
  sleeper_.wake();
  base().wake();
}

// ---- FaultTransport ----

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
  if (result > 0) flip(tracked.effects, tracked.piece.data, static_cast<uint64_t>(result));
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
