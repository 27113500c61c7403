#include <terrace/offload/step_watch.h>

#include <fmt/format.h>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>

namespace terrace {

void StepWatch::begin(const WaitSubject& subject) {
  const MutexLock lock(mutex_);
  TERRACE_ASSERT(!waiting_, "a thread waits for one thing at a time");
  waiting_ = true;
  ++wait_count_;
  subject_ = subject;
}

void StepWatch::end() {
  const MutexLock lock(mutex_);
  TERRACE_ASSERT(waiting_, "no wait has begun");
  waiting_ = false;
}

std::optional<uint64_t> StepWatch::current() const {
  const MutexLock lock(mutex_);
  return waiting_ ? std::optional(wait_count_) : std::nullopt;
}

std::optional<std::string> StepWatch::describe(uint64_t wait) const {
  const MutexLock lock(mutex_);
  if (!waiting_ || wait_count_ != wait) return std::nullopt;
  std::string text =
      fmt::format("{} waits for {}", activity_.empty() ? "the start" : activity_, subject_.what);
  if (subject_.chunk) text += fmt::format(" of chunk {}", index_of(*subject_.chunk));
  text += fmt::format(" ({})", subject_.link);
  if (const io::Request* request = subject_.request) {
    text +=
        fmt::format(": {} {} at offset {} of {}", request->kind == io::OpKind::read ? "reading" : "writing",
                    format_bytes(request->bytes), request->offset, subject_.file);
  } else if (!subject_.file.empty()) {
    text += fmt::format(": {}", subject_.file);
  }
  return text;
}

}  // namespace terrace
