// DeviceCopy: copies between device and host memory that are waited for together. Who starts them says by
// which name a thread waits for them, and whoever waits finds it here.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <terrace/base/event.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

inline WaitSubject to_device_copy(std::string_view what, std::optional<ChunkId> chunk = std::nullopt) {
  return {what, "host -> device", TimeCause::device_copy, chunk, nullptr, {}};
}
inline WaitSubject to_host_copy(std::string_view what, std::optional<ChunkId> chunk = std::nullopt) {
  return {what, "device -> host", TimeCause::device_copy, chunk, nullptr, {}};
}

class DeviceCopy : public Event {
 public:
  // Expects `count` copies of that name, which the caller starts with this as their event.
  void begin(const WaitSubject& name, uint32_t count = 1) {
    name_ = name;
    Event::begin(count);
  }
  // Expects copies that whoever waits for them names himself.
  void begin(uint32_t count = 1) {
    begin(WaitSubject{"a copy", {}, TimeCause::device_copy, {}, nullptr, {}}, count);
  }

  // What a wait for the last copies waits for.
  const WaitSubject& subject() const { return name_; }
  using Event::wait;
  using Event::wait_done;
  // Waits, watched, and throws the failure.
  void wait(StepWatch& watch) const { wait_watched(*this, watch, name_); }
  // Waits, watched; the failure is left to failure().
  void wait_done(StepWatch& watch) const noexcept { wait_done_watched(*this, watch, name_); }

 private:
  WaitSubject name_;
};

}  // namespace terrace
