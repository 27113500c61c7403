// DataFlags and DataChoice: the data that a subcommand reads, and the tokenizer of text. Every subcommand
// with --data uses them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <terrace/reference/data/token_source.h>
#include <terrace/reference/data/tokenizer.h>

#include "command.h"

namespace terrace {

struct DataFlags {
  std::vector<std::string> paths;
  std::string tokenizer;
  std::string token_type;
  std::string cache_folder;

  // Adds --data, --tokenizer, --token-type and --cache-dir; this object must stay where it is.
  void add_to(const FlagGroup& group);
};

// DataChoice: the data that the flags choose, checked but not opened yet.
class DataChoice {
 public:
  // Text is tokenized by --tokenizer, else by the tokenizer.json of `model_folder` (may be empty); otherwise
  // it is bytes. Files of tokens need no tokenizer, and the folder's is not read. Throws Error(config) for
  // flags that are missing or do not fit together, and for a tokenizer that cannot be used.
  DataChoice(const DataFlags& flags, const std::filesystem::path& model_folder);

  // Returns null if text is bytes. For files of tokens it returns the tokenizer of --tokenizer.
  const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
  bool are_token_files() const { return are_token_files_; }
  // Returns the vocabulary of a model that is made for these data; nothing if the data do not determine it.
  std::optional<uint32_t> vocabulary() const;
  // Opens the data for a model with that many tokens and names their tokenizer in `log`. Throws Error(config)
  // when the data have more tokens, and when the model has a tokenizer but the text would be read as bytes.
  OpenTokens open(uint32_t model_vocabulary, Log& log) const;
  // Opens the data if no text must be tokenized. Otherwise it returns nothing, and the text exists.
  std::optional<OpenTokens> open_as_they_are(uint32_t model_vocabulary) const;

 private:
  void require_vocabulary(uint32_t model_vocabulary) const;

  std::vector<std::filesystem::path> paths_;
  std::filesystem::path cache_folder_;
  std::filesystem::path tokenizer_path_;
  bool are_token_files_ = false;
  uint32_t token_bytes_ = 0;  // TokenOptions::token_bytes
  std::optional<Tokenizer> tokenizer_;
};

}  // namespace terrace
