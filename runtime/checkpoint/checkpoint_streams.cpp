#include <terrace/runtime/checkpoint/checkpoint_streams.h>

#include <terrace/runtime/checkpoint/internal/folders.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>
#include <terrace/runtime/checkpoint/internal/tensor_list.h>

namespace terrace {

saved::StateKind checkpoint_kind() {
  return checkpoint::state_kind();
}

std::string write_checkpoint_streams(saved::StateWriter& writer, const CheckpointInfo& info,
                                     StateSource& source) {
  const auto write = [&](std::span<const std::byte> bytes) { writer.write(bytes); };
  writer.begin_file(checkpoint::kStatesName, source.states_bytes());
  source.read_states(write);
  if (source.frozen_bytes() > 0) {
    writer.begin_file(checkpoint::kFrozenName, source.frozen_bytes());
    source.read_frozen(write);
  }
  checkpoint::Manifest manifest{.info = info,
                                .states = {},
                                .frozen = {},
                                .layout = source.layout(),
                                .tensors = checkpoint::listed_tensors(source.space())};
  manifest.info.tensor_hash = checkpoint::hash_of(manifest.tensors);
  return facts_text(manifest);
}

}  // namespace terrace
