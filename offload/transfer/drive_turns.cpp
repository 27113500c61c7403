#include <terrace/offload/transfer/drive_turns.h>

#include <fmt/format.h>

#include <iterator>

namespace terrace {
namespace {

constexpr size_t kHolderTextBytes = 64;

}  // namespace

DriveTurns::DriveTurns(std::span<const std::filesystem::path> paths, const DriveTurnOptions& options,
                       const Clock& clock, StepWatch& watch, Log& log)
    : token_(paths, options.token), turn_ns_(options.turn_ns), clock_(clock), log_(log), watch_(watch) {
  for (const std::filesystem::path& path : paths) place_ += (place_.empty() ? "" : ", ") + path.string();
  subject_.reserve(place_.size() + kHolderTextBytes);
  if (!token_.usable()) {
    log_.warning_once(fmt::format("updates take no turns on the drive of {} with other processes: {}", place_,
                                  token_.refusal()));
  }
}

bool DriveTurns::may_read() {
  if (!token_.usable()) return true;
  if (!token_.held()) {
    if (!token_.try_acquire()) return without_;
    begin_turn();
  }
  // One block at least in every turn, or two processes could pass the drive to each other for ever.
  if (has_read_ && clock_.now_ns() >= turn_end_ns_ && token_.wanted()) {
    token_.release();
    return false;
  }
  has_read_ = true;
  return true;
}

void DriveTurns::wait() {
  const uint64_t start = clock_.now_ns();
  describe_wait();
  bool taken = false;
  {
    const WatchedWait watched(
        watch_, {"a turn on the drive", "nvme", TimeCause::read, std::nullopt, nullptr, subject_});
    taken = token_.acquire();
  }
  wait_ns_ += clock_.now_ns() - start;
  without_ = !taken;
  if (taken) return begin_turn();
  log_.warning_once(
      fmt::format("another process has had the drive of {} for long: updates go on beside it; without "
                  "OffloadOptions::drive_turns they never take turns",
                  place_));
}

void DriveTurns::begin_turn() {
  turn_end_ns_ = clock_.now_ns() + turn_ns_;
  has_read_ = false;
  without_ = false;
}

void DriveTurns::describe_wait() {
  subject_.assign(place_);
  if (const uint64_t holder = token_.holder())
    fmt::format_to(std::back_inserter(subject_), ", held by process {}", holder);
}

}  // namespace terrace
