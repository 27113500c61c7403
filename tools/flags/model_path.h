// The value of --model: a folder or a file, a model in the cache of Hugging Face, or a released model, of
// which only the sizes are known.
#pragma once

#include <filesystem>
#include <string>

namespace terrace {

// Returns the path of a model: a file or folder of that name, else a folder of the cache
// ("Qwen/Qwen2.5-0.5B", in any case); empty for the name of a released model. Throws Error(config) if a path
// or "OWNER/NAME" leads nowhere, with the command that downloads it.
std::filesystem::path model_path(const std::string& model);

// Finds the value of --tokenizer in the same ways: a tokenizer.json, or a folder with one.
std::filesystem::path tokenizer_path(const std::string& flag);

}  // namespace terrace
