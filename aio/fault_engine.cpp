#include <algorithm>
#include <ctime>
#include <limits>
#include <string>
#include <utility>

#include <terrace/aio/fault_engine.h>
#include <terrace/base/assert.h>

namespace terrace::io {
namespace {

// SplitMix64: a bijection that mixes well.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// Everything planned for one index.
struct Effects {
  const Fault* fail = nullptr;
  const Fault* torn = nullptr;
  const Fault* corrupt = nullptr;
  const Fault* short_transfer = nullptr;
  uint64_t delay_ns = 0;
  bool any = false;
};

Effects effects_on(const std::vector<Fault>& plan, uint64_t index, OpKind kind) {
  Effects effects;
  for (const Fault& fault : plan) {
    if (fault.index != index && fault.index != kEveryIndex) continue;
    if (fault.kind == FaultKind::torn_write && kind != OpKind::write) continue;
    if (fault.kind == FaultKind::corrupt_read && kind != OpKind::read) continue;
    effects.any = true;
    switch (fault.kind) {
      case FaultKind::fail:
        effects.fail = &fault;
        break;
      case FaultKind::torn_write:
        effects.torn = &fault;
        break;
      case FaultKind::corrupt_read:
        effects.corrupt = &fault;
        break;
      case FaultKind::short_transfer:
        effects.short_transfer = &fault;
        break;
      case FaultKind::delay:
        effects.delay_ns = std::max(effects.delay_ns, fault.delay_ns);
        break;
    }
  }
  return effects;
}

// How much of `bytes` is really moved.
uint64_t moved_bytes(const Effects& effects, uint64_t bytes) {
  for (const Fault* fault : {effects.fail, effects.torn, effects.short_transfer}) {
    if (fault != nullptr) bytes = std::min(bytes, fault->bytes);
  }
  return bytes;
}

void flip(const Effects& effects, std::byte* data, uint64_t bytes) {
  if (effects.corrupt != nullptr && effects.corrupt->bytes < bytes)
    data[effects.corrupt->bytes] ^= std::byte{1};
}

void sleep_until(const FaultTime& time, uint64_t due_ns) {
  const uint64_t now_ns = time.clock->now_ns();
  if (due_ns > now_ns) time.sleep(due_ns - now_ns);
}

}  // namespace

std::vector<Fault> seeded_faults(uint64_t seed, uint64_t count, uint32_t per_million,
                                 const Fault& prototype) {
  std::vector<Fault> plan;
  for (uint64_t index = 0; index < count; ++index) {
    if (mix(seed ^ mix(index)) % 1'000'000 >= per_million) continue;
    plan.push_back(prototype);
    plan.back().index = index;
  }
  return plan;
}

FaultTime real_time() {
  static const SteadyClock clock;
  return FaultTime{
      &clock, [](uint64_t ns) {
        const timespec pause{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
        nanosleep(&pause, nullptr);
      }};
}

FaultTime simulated_time(FakeClock& clock) {
  return FaultTime{&clock, [&clock](uint64_t ns) { clock.advance(ns); }};
}

// ---- FaultEngine ----

struct FaultEngine::Tracked {
  FaultEngine* owner;
  Request request;
  Effects effects;
  uint64_t due_ns;
  Completion completion;
};

FaultEngine::FaultEngine(std::unique_ptr<Engine> base, std::vector<Fault> plan, FaultTime time)
    : base_(std::move(base)), plan_(std::move(plan)), time_(std::move(time)) {
  for (const Fault& fault : plan_) {
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
  const Effects effects = effects_on(plan_, next_index_++, request.kind);
  *tracked = Tracked{this, request, effects, time_.clock->now_ns() + effects.delay_ns, {}};
  ++in_flight_;
  if (effects.any) ++faults_done_;
  Request below = request;
  below.bytes = moved_bytes(effects, request.bytes);
  below.on_complete = &FaultEngine::on_base_complete;
  below.context = tracked;
  goes_to_base = below.bytes > 0 || effects.fail == nullptr;
  if (!goes_to_base) {
    tracked->completion = Completion{effects.fail->error, 0, request.tag};
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
  base_->submit(below);
}

void FaultEngine::on_base_complete(void* context, const Completion& completion) noexcept {
  auto& tracked = *static_cast<Tracked*>(context);
  tracked.owner->finish(tracked, completion);
}

void FaultEngine::finish(Tracked& tracked, const Completion& completion) {
  const Effects& effects = tracked.effects;
  Completion changed = completion;
  if (completion.error == 0 && effects.fail != nullptr) changed.error = effects.fail->error;
  if (completion.error == 0 && effects.fail == nullptr) changed.bytes = tracked.request.bytes;
  flip(effects, tracked.request.data, completion.bytes);
  if (effects.delay_ns == 0 || time_.clock->now_ns() >= tracked.due_ns) {
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
    const auto first = std::min_element(
        held_.begin(), held_.end(), [](const Tracked* a, const Tracked* b) { return a->due_ns < b->due_ns; });
    if (first == held_.end() || (*first)->due_ns > time_.clock->now_ns()) return;
    Tracked* tracked = *first;
    held_.erase(first);
    run(*tracked, tracked->completion);
  }
}

size_t FaultEngine::poll() {
  const uint64_t before = completed_;
  base_->poll();
  run_due();
  return completed_ - before;
}

size_t FaultEngine::wait(size_t min_count) {
  const uint64_t before = completed_;
  const uint64_t target = before + std::min<uint64_t>(min_count, in_flight_);
  base_->poll();
  run_due();
  while (completed_ < target && !woken_.exchange(false)) {
    if (base_->in_flight() > 0) {
      base_->wait(1);
    } else {
      uint64_t due_ns = std::numeric_limits<uint64_t>::max();
      for (const Tracked* tracked : held_) due_ns = std::min(due_ns, tracked->due_ns);
      sleep_until(time_, due_ns);
    }
    run_due();
  }
  return completed_ - before;
}

void FaultEngine::wake() noexcept {
  woken_.store(true);
  base_->wake();
}

// ---- FaultTransport ----

struct FaultTransport::Tracked {
  Piece piece;
  Effects effects;
  uint64_t due_ns;
  int64_t result;
};

FaultTransport::FaultTransport(std::unique_ptr<Transport> base, std::vector<Fault> plan, FaultTime time)
    : base_(std::move(base)), plan_(std::move(plan)), time_(std::move(time)) {}

FaultTransport::~FaultTransport() = default;

void FaultTransport::start(std::span<const Piece> pieces) {
  std::vector<Piece> below;
  for (const Piece& piece : pieces) {
    if (tracked_.size() <= piece.id) tracked_.resize(piece.id + 1);
    const Effects effects = effects_on(plan_, next_index_++, piece.kind);
    tracked_[piece.id] = Tracked{piece, effects, time_.clock->now_ns() + effects.delay_ns, 0};
    Piece changed = piece;
    changed.bytes = static_cast<uint32_t>(moved_bytes(effects, piece.bytes));
    if (changed.bytes > 0 && effects.fail == nullptr) {
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
  if (tracked.effects.fail != nullptr) result = -tracked.effects.fail->error;
  if (result >= 0 && tracked.effects.torn != nullptr) result = tracked.piece.bytes;
  if (result > 0) flip(tracked.effects, tracked.piece.data, static_cast<uint64_t>(result));
  tracked.result = result;
  finished_.push_back(id);
}

// In the order in which they became due.
size_t FaultTransport::take_due(std::span<PieceResult> results) {
  size_t count = 0;
  while (count < results.size()) {
    const auto first = std::min_element(finished_.begin(), finished_.end(), [this](uint32_t a, uint32_t b) {
      return tracked_[a].due_ns < tracked_[b].due_ns;
    });
    if (first == finished_.end() || tracked_[*first].due_ns > time_.clock->now_ns()) break;
    results[count++] = PieceResult{*first, tracked_[*first].result};
    finished_.erase(first);
  }
  return count;
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
    for (const uint32_t id : finished_) due_ns = std::min(due_ns, tracked_[id].due_ns);
    sleep_until(time_, due_ns);
  }
}

}  // namespace terrace::io
