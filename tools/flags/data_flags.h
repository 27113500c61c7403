// DataFlags and DataChoice: which data a subcommand reads, and what makes tokens of text. Shared by whoever
// takes --data.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <terrace/runtime/train/data/token_source.h>
#include <terrace/runtime/train/data/tokenizer.h>

#include "command.h"

namespace terrace {

struct DataFlags {
  std::vector<std::string> paths;
  std::string tokenizer;
  std::string token_type;
  std::string cache_folder;

  // Adds --data, --tokenizer, --token-type and --cache-dir; this object must stay where it is.
  void add_to(Command& app, const char* group);
};

// What the flags come to: looked at, and not opened yet.
class DataChoice {
 public:
  // Text is tokenized by --tokenizer, else by the tokenizer.json of `model_folder` (may be empty), else it is
  // bytes; files of tokens need none, and the folder's is not looked at. Throws Error(config) for what is
  // missing or does not fit together, and for a tokenizer that cannot be used.
  DataChoice(const DataFlags& flags, const std::filesystem::path& model_folder);

  // Null where text is bytes; of files of tokens, what --tokenizer names.
  const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
  bool are_token_files() const { return are_token_files_; }
  // Of a model that is made for these data; nothing where the data do not say.
  std::optional<uint32_t> vocabulary() const;
  // For a model with that many tokens; says to `log` what makes them. Throws Error(config) when the data have
  // more, and when the model is of tokens and the text would be read as bytes.
  OpenTokens open(uint32_t model_vocabulary, Log& log) const;
  // The same as far as no tokens must be made of text: then nothing, and the text has been found.
  std::optional<OpenTokens> open_as_they_are(uint32_t model_vocabulary) const;

 private:
  void require_vocabulary(uint32_t model_vocabulary) const;

  std::vector<std::filesystem::path> paths_;
  std::filesystem::path cache_folder_;
  std::filesystem::path tokenizer_path_;
  bool are_token_files_ = false;
  uint32_t token_bytes_ = 0;  // as TokenOptions has it
  std::optional<Tokenizer> tokenizer_;
};

}  // namespace terrace
