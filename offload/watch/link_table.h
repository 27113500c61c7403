// The links over which a step moves bytes, by the names that people and programs know them by. Whoever lists
// them takes them from here.
#pragma once

#include <array>
#include <cstdint>

#include <terrace/offload/watch/counters.h>

namespace terrace {

struct LinkEntry {
  const char* name;  // for people
  const char* key;   // for programs
  uint64_t OffloadCounters::*moved;
  uint64_t TrafficBound::*bound;  // null: nothing is left to choice
};

inline constexpr size_t kLinkCount = 13;
inline constexpr std::array<LinkEntry, kLinkCount> kLinks = {{
    {"host -> device", "h2d", &OffloadCounters::h2d_bytes, &TrafficBound::h2d_bytes},
    {"device -> host", "d2h", &OffloadCounters::d2h_bytes, &TrafficBound::d2h_bytes},
    {"parameters, nvme reads", "param_read", &OffloadCounters::param_read_bytes,
     &TrafficBound::param_read_bytes},
    {"of these, read by the device itself", "direct_read", &OffloadCounters::direct_read_bytes,
     &TrafficBound::direct_read_bytes},
    {"parameters, nvme writes", "param_write", &OffloadCounters::param_write_bytes,
     &TrafficBound::param_write_bytes},
    {"states, nvme reads", "record_read", &OffloadCounters::record_read_bytes,
     &TrafficBound::record_read_bytes},
    {"states, nvme writes", "record_write", &OffloadCounters::record_write_bytes,
     &TrafficBound::record_write_bytes},
    {"gradients, nvme reads", "gradient_read", &OffloadCounters::gradient_read_bytes,
     &TrafficBound::gradient_read_bytes},
    {"gradients, nvme writes", "gradient_write", &OffloadCounters::gradient_write_bytes,
     &TrafficBound::gradient_write_bytes},
    {"activations to the host", "activation_d2h", &OffloadCounters::activation_d2h_bytes, nullptr},
    {"activations back", "activation_h2d", &OffloadCounters::activation_h2d_bytes, nullptr},
    {"activations, nvme reads", "activation_read", &OffloadCounters::activation_read_bytes, nullptr},
    {"activations, nvme writes", "activation_write", &OffloadCounters::activation_write_bytes, nullptr},
}};

// Of `steps` steps that moved this in all, one at a time; what is left to no choice is its own least.
inline uint64_t least_per_step(const LinkEntry& link, const TrafficBound& bound, const OffloadCounters& moved,
                               uint64_t steps) {
  if (link.bound != nullptr) return bound.*link.bound;
  return steps > 0 ? moved.*link.moved / steps : 0;
}

// The ways in which somebody waits, which overlap with each other.
struct WaitEntry {
  const char* name;
  const char* key;
  uint64_t OffloadCounters::*ns;
};

inline constexpr std::array<WaitEntry, 7> kWaits = {{
    {"waiting for parameters", "fetch_wait", &OffloadCounters::fetch_wait_ns},
    {"waiting for activations", "activation_wait", &OffloadCounters::activation_wait_ns},
    {"waiting for gradients to land", "landing_wait", &OffloadCounters::landing_wait_ns},
    {"update waiting for the disk", "update_wait", &OffloadCounters::update_wait_ns},
    {"waiting for a turn on the drive", "turn_wait", &OffloadCounters::turn_wait_ns},
    {"waiting for a pending update", "pending_update_wait", &OffloadCounters::pending_update_wait_ns},
    {"waiting for commits", "commit_wait", &OffloadCounters::commit_wait_ns},
}};

}  // namespace terrace
