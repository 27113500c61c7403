// What a commit of the nvme tier says of the run that it is of: the facts of a checkpoint, as the text that
// the tier keeps in its manifest. docs/checkpoint_format.md has the format. Nothing here reads a file.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <terrace/runtime/train/checkpoint/checkpoint.h>

namespace terrace {

struct EpochInfo {
  CheckpointInfo run;           // with its tensor_hash
  uint64_t chunk_elements = 0;  // of the flat space: the commit can only be taken up with the same
};

std::string epoch_info_text(const EpochInfo& info);

// `manifest` is named in errors. Throws Error(corrupt) unless the text is, byte for byte, one that
// epoch_info_text() writes, and Error(config) when a later version wrote it.
EpochInfo parse_epoch_info(std::string_view text, const std::filesystem::path& manifest);

}  // namespace terrace
