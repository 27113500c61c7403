#include <terrace/offload/watch/step_events.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

constexpr size_t kMostNames = 8192;
constexpr size_t kNameBytes = 256 << 10;

// A tag holds one bit that marks it as one, and then role, reason, step and chunk.
constexpr uint64_t kIsTag = uint64_t{1} << 63;
constexpr uint32_t kRoleShift = 61;
constexpr uint32_t kReasonShift = 59;
constexpr uint32_t kStepShift = 32;
constexpr uint64_t kStepMask = (uint64_t{1} << (kReasonShift - kStepShift)) - 1;
constexpr uint64_t kLastStep = kStepMask;
static_assert(kTransferRoleCount <= 4 && static_cast<size_t>(TransferReason::other) < 4, "two bits each");

}  // namespace

std::string_view key_of(TraceLink link) {
  switch (link) {
    case TraceLink::h2d:
      return "h2d";
    case TraceLink::d2h:
      return "d2h";
    case TraceLink::nvme_read:
      return "nvme_read";
    case TraceLink::nvme_write:
      return "nvme_write";
    case TraceLink::gather:
      return "gather";
    case TraceLink::exchange:
      return "exchange";
  }
  return "";
}

std::string_view key_of(TransferRole role) {
  switch (role) {
    case TransferRole::param:
      return "param";
    case TransferRole::grad:
      return "grad";
    case TransferRole::state:
      return "state";
    case TransferRole::activation:
      return "activation";
  }
  return "";
}

std::string_view key_of(TransferReason reason) {
  switch (reason) {
    case TransferReason::step:
      return "step";
    case TransferReason::update:
      return "update";
    case TransferReason::commit:
      return "commit";
    case TransferReason::other:
      return "other";
  }
  return "";
}

StepEvents::StepEvents(const Clock& clock, const StepEventsOptions& options)
    : clock_(clock),
      capacity_(options.memory_bytes / sizeof(Cell)),
      cells_(std::make_unique<Cell[]>(capacity_)) {
  TERRACE_ASSERT(capacity_ > 0, "there is room for one event at least");
  choose_steps(options.first_step, options.last_step);
  for (uint64_t c = 0; c < capacity_; ++c) cells_[c].turn.store(c, std::memory_order_relaxed);
  name_text_.reserve(kNameBytes);
  names_.reserve(kMostNames);
  number_of_name_.reserve(kMostNames);
  names_.push_back({0, 0});
}

StepEvents::~StepEvents() = default;

void StepEvents::choose_steps(uint64_t first, uint64_t last) {
  TERRACE_ASSERT(first >= 1 && first <= last && last <= kLastStep,
                 "the steps to be recorded are a range of step numbers");
  TERRACE_ASSERT(!recording(), "steps are chosen before any is recorded");
  first_step_ = first;
  last_step_ = last;
}

void StepEvents::set_facts(TraceFacts facts) {
  facts_ = std::move(facts);
  files_.clear();
}

uint64_t StepEvents::memory_bytes() const {
  return capacity_ * sizeof(Cell);
}

void StepEvents::begin_step(uint64_t step) {
  step_.store(static_cast<uint32_t>(step), std::memory_order_relaxed);
  update_step_.store(static_cast<uint32_t>(step), std::memory_order_relaxed);
  recording_.store(is_chosen(step), std::memory_order_relaxed);
  if (recording()) step_begun_ns_ = now_ns();
}

void StepEvents::end_step() {
  if (recording() && step() != 0) {
    TraceEvent event = begun(TraceKind::step);
    event.begin_ns = step_begun_ns_;
    record(event);
  }
  step_.store(0, std::memory_order_relaxed);
}

void StepEvents::begin_update(bool in_next_step) {
  update_step_.store(step() + (in_next_step ? 1 : 0), std::memory_order_relaxed);
}

TraceEvent StepEvents::begun(TraceKind kind) const {
  TraceEvent event;
  event.kind = kind;
  event.step = step();
  event.begin_ns = event.end_ns = now_ns();
  return event;
}

// If a cell's turn is behind this event's number, its event has not been taken out yet: the buffer is full.
void StepEvents::record(const TraceEvent& event) noexcept {
  uint64_t number = next_.load(std::memory_order_relaxed);
  while (true) {
    Cell& cell = cells_[number % capacity_];
    const uint64_t turn = cell.turn.load(std::memory_order_acquire);
    if (turn < number) {
      left_out_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (turn > number) {  // another thread has the cell
      number = next_.load(std::memory_order_relaxed);
      continue;
    }
    if (!next_.compare_exchange_weak(number, number + 1, std::memory_order_relaxed)) continue;
    cell.event = event;
    cell.turn.store(number + 1, std::memory_order_release);
    return;
  }
}

uint64_t StepEvents::take(FunctionRef<void(const TraceEvent&)> sink) {
  uint64_t count = 0;
  for (;; ++taken_, ++count) {
    Cell& cell = cells_[taken_ % capacity_];
    if (cell.turn.load(std::memory_order_acquire) != taken_ + 1) return count;
    sink(cell.event);
    cell.turn.store(taken_ + capacity_, std::memory_order_release);
  }
}

uint64_t StepEvents::tag(TransferRole role, TransferReason reason, uint32_t chunk) const {
  const bool of_update = reason == TransferReason::update;
  return tag_in((of_update ? update_step_ : step_).load(std::memory_order_relaxed), role, reason, chunk);
}

uint64_t StepEvents::tag_in(uint64_t step, TransferRole role, TransferReason reason, uint32_t chunk) const {
  // A transfer that is asked for between two steps is recorded if the step before is.
  if (step == 0 ? !recording() : !is_chosen(step)) return 0;
  return kIsTag | static_cast<uint64_t>(role) << kRoleShift | static_cast<uint64_t>(reason) << kReasonShift |
         (step & kStepMask) << kStepShift | chunk;
}

TraceEvent StepEvents::event_of(uint64_t tag) {
  TERRACE_ASSERT(is_tag(tag), "only what has a tag is a transfer of a step");
  TraceEvent event;
  event.kind = TraceKind::transfer;
  event.role = static_cast<TransferRole>(tag >> kRoleShift & 3);
  event.reason = static_cast<TransferReason>(tag >> kReasonShift & 3);
  event.step = static_cast<uint32_t>(tag >> kStepShift & kStepMask);
  event.chunk = static_cast<uint32_t>(tag);
  return event;
}

CopyNote StepEvents::note_of(Copies& copies, TransferRole role, TransferReason reason, uint32_t chunk,
                             uint64_t id) {
  const uint64_t its_tag = tag(role, reason, chunk);
  return its_tag == 0 ? CopyNote{} : CopyNote{&copies, its_tag, id};
}

CopyNote StepEvents::to_device(TransferRole role, TransferReason reason, uint32_t chunk, uint64_t id) {
  return note_of(to_device_, role, reason, chunk, id);
}

CopyNote StepEvents::note_of_updated(Copies& copies, uint32_t chunk) {
  const uint64_t counted_in = step() != 0 ? step() : update_step_.load(std::memory_order_relaxed);
  const uint64_t its_tag = tag_in(counted_in, TransferRole::param, TransferReason::update, chunk);
  return its_tag == 0 ? CopyNote{} : CopyNote{&copies, its_tag, 0};
}

CopyNote StepEvents::updated_to_device(uint32_t chunk) {
  return note_of_updated(to_device_, chunk);
}

CopyNote StepEvents::from_device(TransferRole role, TransferReason reason, uint32_t chunk) {
  return note_of(from_device_, role, reason, chunk);
}

CopyNote StepEvents::gathered(TransferReason reason, uint32_t chunk) {
  if (reason == TransferReason::update) return note_of_updated(gathered_, chunk);
  return note_of(gathered_, TransferRole::param, reason, chunk);
}

CopyNote StepEvents::exchanged(uint32_t chunk) {
  return note_of(exchanged_, TransferRole::grad, TransferReason::step, chunk);
}

void StepEvents::Copies::copied(const CopyNote& note, uint64_t bytes, uint64_t begun_ns) noexcept {
  TraceEvent event = event_of(note.tag);
  event.link = link_;
  event.id = note.id;
  event.bytes = bytes;
  event.begin_ns = begun_ns;
  event.end_ns = events_.now_ns();
  events_.record(event);
}

StepEvents::OpenFile StepEvents::file_of(int descriptor) const {
  const auto found = std::ranges::find(files_, descriptor, &OpenFile::descriptor);
  return found != files_.end() ? *found : OpenFile{};
}

void StepEvents::add_file(int descriptor, uint32_t path, TransferRole role) {
  TERRACE_ASSERT(path <= std::numeric_limits<uint8_t>::max(), "more paths than an event can name");
  files_.push_back({descriptor, static_cast<uint8_t>(path), role});
}

uint16_t StepEvents::add_engine(std::string_view name) {
  const auto found = std::ranges::find(engines_, name);
  const auto lane = static_cast<uint16_t>(found - engines_.begin());
  if (found == engines_.end()) engines_.emplace_back(name);
  return lane;
}

uint32_t StepEvents::number_of(std::string_view operation) {
  const auto found = number_of_name_.find(operation);
  if (found != number_of_name_.end()) return found->second;
  if (names_.size() == kMostNames || name_text_.size() + operation.size() > kNameBytes) {
    ++nameless_;
    return 0;
  }
  const auto begin = static_cast<uint32_t>(name_text_.size());
  name_text_.insert(name_text_.end(), operation.begin(), operation.end());
  const auto number = static_cast<uint32_t>(names_.size());
  names_.push_back({begin, static_cast<uint32_t>(operation.size())});
  number_of_name_.emplace(name(number), number);
  return number;
}

std::string_view StepEvents::name(uint32_t number) const {
  return {name_text_.data() + names_[number].begin, names_[number].bytes};
}

}  // namespace terrace
