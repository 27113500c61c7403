// The facts of a run in a commit of the nvme tier: those of a checkpoint, as the text that the tier keeps in
// its manifest. docs/checkpoint_format.md has the format. Nothing here reads a file.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <terrace/runtime/checkpoint/checkpoint.h>

namespace terrace {

// `info` is with its tensor_hash and chunk_elements.
std::string commit_info_text(const CheckpointInfo& info);

// False for the text of a commit that another program has made, one that embeds the memory manager: that is
// all its own.
bool is_commit_info(std::string_view text);

// `manifest` is named in errors. Throws Error(corrupt) unless commit_info_text() writes the text byte for
// byte, and Error(config) when a later version wrote it.
CheckpointInfo parse_commit_info(std::string_view text, const std::filesystem::path& manifest);

}  // namespace terrace
