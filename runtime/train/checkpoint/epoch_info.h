// The facts of a run in a commit of the nvme tier: those of a checkpoint, as the text that the tier keeps in
// its manifest. docs/checkpoint_format.md has the format. Nothing here reads a file.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <terrace/runtime/train/checkpoint/checkpoint.h>

namespace terrace {

struct EpochInfo {
  CheckpointInfo run;           // with its tensor_hash
  uint64_t chunk_elements = 0;  // of the flat space: a run that goes on needs the same
};

std::string epoch_info_text(const EpochInfo& info);

// `manifest` is named in errors. Throws Error(corrupt) unless epoch_info_text() writes the text byte for
// byte, and Error(config) when a later version wrote it.
EpochInfo parse_epoch_info(std::string_view text, const std::filesystem::path& manifest);

}  // namespace terrace
