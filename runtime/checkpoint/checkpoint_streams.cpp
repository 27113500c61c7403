#include <terrace/runtime/checkpoint/checkpoint_streams.h>

#include <terrace/runtime/checkpoint/internal/folders.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>
#include <terrace/runtime/checkpoint/internal/save_steps.h>
#include <terrace/runtime/checkpoint/internal/tensor_list.h>

namespace terrace {

saved::StateKind checkpoint_kind() {
  return checkpoint::state_kind();
}

std::string write_checkpoint_streams(saved::StateWriter& writer, const CheckpointInfo& info,
                                     StateSource& source) {
  return checkpoint::write_streams(
      writer, info, source, [](uint64_t) {}, [](checkpoint::SaveMoment) {});
}

std::string checkpoint::write_streams(saved::StateWriter& writer, const CheckpointInfo& info,
                                      StateSource& source, FunctionRef<void(uint64_t)> wrote,
                                      FunctionRef<void(SaveMoment)> reached) {
  const auto write = [&](std::span<const std::byte> bytes) {
    writer.write(bytes);
    wrote(bytes.size());
  };
  writer.begin_file(kStatesName, source.states_bytes(), [&](int fd) { return source.clone_states(fd); });
  source.read_states(write);
  writer.end_file();
  reached(SaveMoment::states_written);
  if (source.frozen_bytes() > 0) {
    writer.begin_file(kFrozenName, source.frozen_bytes(), [&](int fd) { return source.clone_frozen(fd); });
    source.read_frozen(write);
    writer.end_file();
    reached(SaveMoment::frozen_written);
  }
  Manifest manifest{.info = info,
                    .states = {},
                    .frozen = {},
                    .layout = source.layout(),
                    .tensors = listed_tensors(source.space())};
  manifest.info.tensor_hash = hash_of(manifest.tensors);
  return facts_text(manifest);
}

}  // namespace terrace
