#include <terrace/offload/watch/step_watch.h>

#include <fmt/format.h>

#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

std::string text_of(const WaitSubject& subject) {
  std::string text(subject.what);
  if (subject.chunk) text += fmt::format(" of chunk {}", index_of(*subject.chunk));
  if (!subject.link.empty()) text += fmt::format(" ({})", subject.link);
  if (const io::Request* request = subject.request) {
    text +=
        fmt::format(": {} {} at offset {} of {}", request->kind == io::OpKind::read ? "reading" : "writing",
                    format_bytes(request->bytes), request->offset, subject.file);
  } else if (!subject.file.empty()) {
    text += fmt::format(": {}", subject.file);
  }
  return text;
}

}  // namespace

StepWatch::Wait& StepWatch::own_wait() {
  const std::thread::id thread = std::this_thread::get_id();
  return thread == update_thread_ ? update_ : thread == commit_thread_ ? commit_ : step_;
}

const StepWatch::Wait* StepWatch::wait_behind(const Wait& wait) const {
  const TimeCause cause = wait.subject.cause;
  if (cause == TimeCause::update && &wait == &step_ && update_.in_progress) return &update_;
  if (cause == TimeCause::commit && &wait != &commit_ && commit_.in_progress) return &commit_;
  return nullptr;
}

TimeCause StepWatch::cause_of_step() const {
  const Wait* last = &step_;
  while (const Wait* const behind = wait_behind(*last)) last = behind;
  return last->subject.cause;
}

void StepWatch::set_update_thread() {
  const MutexLock lock(mutex_);
  update_thread_ = std::this_thread::get_id();
}

void StepWatch::set_commit_thread() {
  const MutexLock lock(mutex_);
  commit_thread_ = std::this_thread::get_id();
}

void StepWatch::begin(const WaitSubject& subject) {
  const MutexLock lock(mutex_);
  Wait& wait = own_wait();
  TERRACE_ASSERT(!wait.in_progress, "a thread waits for one thing at a time");
  wait.in_progress = true;
  ++wait.count;
  wait.subject = subject;
  if (is_recording(events_) && &wait != &commit_) begin_recording(wait, &wait == &update_);
  if (account_ == nullptr) return;
  if (&wait == &step_) {
    ranks_charged_ns_ = account_->charged_ns(TimeCause::ranks);
    return account_->enter(cause_of_step());
  }
  if (step_.in_progress) account_->change(cause_of_step());
}

void StepWatch::end() {
  const MutexLock lock(mutex_);
  Wait& wait = own_wait();
  TERRACE_ASSERT(wait.in_progress, "no wait has begun");
  wait.in_progress = false;
  if (wait.recorded) end_recording(wait);
  if (account_ == nullptr) return;
  if (&wait == &step_) {
    account_->leave();
    rank_wait_ns_[static_cast<size_t>(wait.subject.of_ranks)] +=
        account_->charged_ns(TimeCause::ranks) - ranks_charged_ns_;
    return;
  }
  if (step_.in_progress) account_->change(cause_of_step());
}

void StepWatch::begin_recording(Wait& wait, bool of_update) {
  TraceEvent event = events_->begun(TraceKind::wait);
  event.lane = of_update ? 1 : 0;
  event.cause = wait.subject.cause;
  if (wait.subject.chunk) event.chunk = index_of(*wait.subject.chunk);
  wait.recorded = event;
}

void StepWatch::end_recording(Wait& wait) {
  events_->record_until_now(*std::exchange(wait.recorded, std::nullopt));
}

void StepWatch::begin_computing() {
  if (account_ != nullptr) account_->enter(TimeCause::compute);
}

void StepWatch::end_computing() {
  if (account_ != nullptr) account_->leave();
}

std::optional<uint64_t> StepWatch::current() const {
  const MutexLock lock(mutex_);
  return step_.in_progress ? std::optional(step_.count) : std::nullopt;
}

bool StepWatch::is_for_ranks(uint64_t wait) const {
  const MutexLock lock(mutex_);
  return step_.in_progress && step_.count == wait && cause_of_step() == TimeCause::ranks;
}

std::optional<std::string> StepWatch::describe(uint64_t wait) const {
  const MutexLock lock(mutex_);
  if (!step_.in_progress || step_.count != wait) return std::nullopt;
  const std::string activity = activity_.get();
  std::string text =
      fmt::format("{} waits for {}", activity.empty() ? "the start" : activity, text_of(step_.subject));
  for (const Wait* behind = wait_behind(step_); behind != nullptr; behind = wait_behind(*behind))
    text += fmt::format("; the {} waits for {}", behind == &update_ ? "update" : "commit",
                        text_of(behind->subject));
  return text;
}

}  // namespace terrace
