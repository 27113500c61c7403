// WaitSubject: the name of a wait. Whoever starts a transfer gives it, and whoever waits reports it.
#pragma once

#include <optional>
#include <string_view>

#include <terrace/aio/engine.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/offload/watch/time_account.h>

namespace terrace {

// What a wait with TimeCause::ranks is for.
enum class RankWait : uint8_t { gather, exchange, ballot };
inline constexpr size_t kRankWaitCount = 3;

// The waiting thread owns everything here and leaves it unchanged while the wait lasts.
struct WaitSubject {
  std::string_view what;                  // "parameters"
  std::string_view link;                  // "nvme -> host -> device"
  TimeCause cause = TimeCause::overhead;  // update: the wait is for an update
  std::optional<ChunkId> chunk;
  const io::Request* request = nullptr;  // the oldest unfinished request, to `file`
  std::string_view file;                 // without a request: the subject in words
  RankWait of_ranks = RankWait::ballot;  // with TimeCause::ranks
};

// The subject of a wait for a word of every other rank.
inline WaitSubject word_of_ranks(std::string_view what) {
  return {what, "other ranks", TimeCause::ranks, std::nullopt, nullptr, {}};
}

}  // namespace terrace
