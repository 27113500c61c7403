// terrace_state_writer and terrace_state_reader: a saved state on its way out and in.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <terrace/capi/errors.h>
#include <terrace/capi/store.h>
#include <terrace/runtime/checkpoint/checkpoint_values.h>
#include <terrace/runtime/saved/saved_state.h>
#include <terrace_run.h>

struct terrace_state_writer {
  terrace_state_writer(const terrace_state_options& given, std::vector<std::string> files,
                       terrace::saved::StateKind kind)
      : forks(terrace::c::forks()),
        log(given.log, given.log_context),
        writer(given.folder, given.name, std::move(files), log, std::move(kind)) {}
  const uint32_t forks;
  terrace::c::CallbackLog log;
  terrace::saved::StateWriter writer;
  std::string facts;  // of a checkpoint whose states are written
  bool has_failed = false;
};

struct terrace_state_reader {
  terrace::saved::StateReader reader;
  const std::string path = reader.path().string();
  std::optional<terrace::CheckpointValues> values = {};  // once any were asked for
};

namespace terrace::c {

inline constexpr const char* kSaveState = "cannot save a checkpoint";
inline constexpr const char* kLoadState = "cannot load a checkpoint";

// Uses a writer. One that has failed before is refused: a file of it may be cut short.
template <typename Action>
void use_writer(terrace_state_writer* writer, Action action) {
  require_pointer(writer, kSaveState, "writer");
  if (writer->forks != forks())
    misuse(kSaveState, "writer", "this process was forked after the save began",
           "save in the process that began it");
  if (writer->has_failed)
    misuse(kSaveState, "writer", "an earlier call of this save has failed", "end it, and save again");
  writer->has_failed = true;
  action(*writer);
  writer->has_failed = false;
}

}  // namespace terrace::c
