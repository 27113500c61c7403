// DeviceCopy: one event for copies between device and host memory. The thread that starts them names them,
// and a waiting thread finds the name here.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <terrace/base/event.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

// CopyName is kept small, because every slot of the device has several.
struct CopyName {
  enum class Link : uint8_t {
    none,
    host_to_device,
    device_to_host,
    nvme_to_host,
    nvme_to_device,
    gather,
    exchange,
    within_device
  };
  static constexpr uint32_t kNoChunk = UINT32_MAX;

  const char* what = "a copy";  // a literal
  uint32_t chunk = kNoChunk;
  Link link = Link::none;

  WaitSubject subject() const {
    constexpr std::string_view kPaths[] = {"",
                                           "host -> device",
                                           "device -> host",
                                           "nvme -> host -> device",
                                           "nvme -> device",
                                           "other ranks",
                                           "other ranks",
                                           "within the device"};
    const bool reads = link == Link::nvme_to_host || link == Link::nvme_to_device;
    const bool is_for_ranks = link == Link::gather || link == Link::exchange;
    return {what,
            kPaths[static_cast<size_t>(link)],
            reads          ? TimeCause::read
            : is_for_ranks ? TimeCause::ranks
                           : TimeCause::device_copy,
            chunk == kNoChunk ? std::nullopt : std::optional(ChunkId{chunk}),
            nullptr,
            {},
            link == Link::gather ? RankWait::gather : RankWait::exchange};
  }
};

inline CopyName to_device_copy(const char* what, std::optional<ChunkId> chunk = std::nullopt) {
  return {what, chunk ? index_of(*chunk) : CopyName::kNoChunk, CopyName::Link::host_to_device};
}
inline CopyName to_host_copy(const char* what, std::optional<ChunkId> chunk = std::nullopt) {
  return {what, chunk ? index_of(*chunk) : CopyName::kNoChunk, CopyName::Link::device_to_host};
}

class DeviceCopy : public Event {
 public:
  // Expects `count` copies of that name, which the caller starts with this as their event. Without a name the
  // waiting thread names them.
  void begin(const CopyName& name, uint32_t count = 1) {
    name_ = name;
    Event::begin(count);
  }
  void begin(uint32_t count = 1) { begin(CopyName{}, count); }

  // The subject of a wait for the last copies.
  WaitSubject subject() const { return name_.subject(); }
  using Event::wait;
  using Event::wait_done;
  // Waits for the copies, watched, and throws their failure.
  void wait(StepWatch& watch) const { wait_watched(*this, watch, subject()); }
  // Waits for the copies, watched; their failure is left to failure().
  void wait_done(StepWatch& watch) const noexcept { wait_done_watched(*this, watch, subject()); }

 private:
  CopyName name_;
};

}  // namespace terrace
