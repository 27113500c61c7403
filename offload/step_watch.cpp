#include <terrace/offload/step_watch.h>

#include <fmt/format.h>

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

StepWatch::Wait& StepWatch::mine() {
  return std::this_thread::get_id() == update_thread_ ? update_ : step_;
}

void StepWatch::set_update_thread() {
  const MutexLock lock(mutex_);
  update_thread_ = std::this_thread::get_id();
}

void StepWatch::begin(const WaitSubject& subject) {
  const MutexLock lock(mutex_);
  Wait& wait = mine();
  TERRACE_ASSERT(!wait.in_progress, "a thread waits for one thing at a time");
  wait.in_progress = true;
  ++wait.count;
  wait.subject = subject;
}

void StepWatch::end() {
  const MutexLock lock(mutex_);
  TERRACE_ASSERT(mine().in_progress, "no wait has begun");
  mine().in_progress = false;
}

std::optional<uint64_t> StepWatch::current() const {
  const MutexLock lock(mutex_);
  return step_.in_progress ? std::optional(step_.count) : std::nullopt;
}

std::optional<std::string> StepWatch::describe(uint64_t wait) const {
  const MutexLock lock(mutex_);
  if (!step_.in_progress || step_.count != wait) return std::nullopt;
  std::string text =
      fmt::format("{} waits for {}", activity_.empty() ? "the start" : activity_, text_of(step_.subject));
  if (step_.subject.on_update && update_.in_progress)
    text += fmt::format("; the update waits for {}", text_of(update_.subject));
  return text;
}

}  // namespace terrace
