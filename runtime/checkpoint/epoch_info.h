// What an epoch of the nvme tier says of the run that it is of: the facts of a checkpoint, as the text that
// the tier keeps in its manifest. docs/checkpoint_format.md has the format. Nothing here reads a file.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <terrace/runtime/checkpoint/checkpoint.h>

namespace terrace {

// All of `info`, its tensor_hash included, which the caller has set.
std::string epoch_info_text(const CheckpointInfo& info);

// `manifest` is named in errors. Throws Error(corrupt) unless the text is, byte for byte, one that
// epoch_info_text() writes, and Error(config) when a later version wrote it.
CheckpointInfo parse_epoch_info(std::string_view text, const std::filesystem::path& manifest);

}  // namespace terrace
