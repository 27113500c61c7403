#include "train_resume.h"

#include <fmt/format.h>

#include <terrace/base/error.h>
#include <terrace/runtime/checkpoint/checkpoint.h>

#include "command_line.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Of this one checkpoint alone: another may be whole.
bool is_damage(const Error& failure) {
  return failure.kind() == ErrorKind::corrupt || failure.kind() == ErrorKind::io;
}

void say_fallback(const fs::path& damaged, const Error& failure, const fs::path& next, Log& log) {
  log.warning(fmt::format("{} cannot be used and the one before it, {}, is taken: {}", damaged.string(),
                          next.filename().string(), failure.what()));
}

[[noreturn]] void none_is_whole(const std::string& folder, const Error& failure) {
  ErrorParts parts = failure.parts();
  parts.advice =
      fmt::format("no checkpoint in {} is whole: restore one, or save a new run to another folder", folder);
  throw Error(failure.kind(), std::move(parts));
}

}  // namespace

std::vector<fs::path> choose_checkpoints(const TrainFlags& flags, Log& log) {
  if (flags.resume.empty()) return {};
  if (flags.resume != kResumeAuto) {
    require_exists("--resume", flags.resume);
    read_checkpoint_info(flags.resume);
    return {flags.resume};
  }
  std::vector<fs::path> candidates = checkpoints_to_resume_from(flags.save);
  while (!candidates.empty()) {
    try {
      const CheckpointInfo info = read_checkpoint_info(candidates.front());
      log.info(
          fmt::format("--resume auto: going on from {}, step {}", candidates.front().string(), info.step));
      return candidates;
    } catch (const Error& failure) {
      if (!is_damage(failure)) throw;
      if (candidates.size() == 1) none_is_whole(flags.save, failure);
      say_fallback(candidates[0], failure, candidates[1], log);
      candidates.erase(candidates.begin());
    }
  }
  log.info(fmt::format("--resume auto: no checkpoint is in {}, the run starts at its beginning", flags.save));
  return {};
}

void take_up(std::span<const fs::path> checkpoints, Trainer& trainer, Log& log) {
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    try {
      trainer.resume(checkpoints[i]);
      return;
    } catch (const Error& failure) {
      if (!is_damage(failure) || i + 1 == checkpoints.size()) throw;
      say_fallback(checkpoints[i], failure, checkpoints[i + 1], log);
    }
  }
}

}  // namespace terrace
