#include "flags/data_flags.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include <terrace/aio/folder.h>
#include <terrace/base/error.h>
#include <terrace/reference/data/byte_tokens.h>
#include <terrace/reference/data/token_cache.h>

#include "command_line.h"
#include "flags/model_path.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// A folder without a tokenizer.json may hold the files from which one can be made.
void refuse_other_tokenizers(const fs::path& model_folder) {
  for (const char* name : {"tokenizer.model", "vocab.json", "vocab.txt"}) {
    if (!io::is_there(model_folder / name)) continue;
    const std::string folder = model_folder.string();
    refuse(folder, fmt::format("it has {}, and no tokenizer.json", name),
           fmt::format("make one with transformers: python3 -c 'from transformers import AutoTokenizer; "
                       "AutoTokenizer.from_pretrained(\"{0}\").save_pretrained(\"{0}\")'",
                       folder));
  }
}

// Throws the error, with the flag for another folder if it is about the cache. A folder that this user may
// not write to was named by mistake.
[[noreturn]] void throw_with_cache_flag(const Error& error, const fs::path& folder) {
  ErrorParts parts = error.parts();
  if (!folder.empty() && !parts.subject.in(Door::program).starts_with(folder.string()))
    throw Error(error.kind(), parts);
  parts.advice += " (--cache-dir)";
  const bool may_not = access(folder.c_str(), F_OK) != 0 || access(folder.c_str(), W_OK | X_OK) != 0;
  throw Error(error.kind() == ErrorKind::io && may_not ? ErrorKind::config : error.kind(), parts);
}

}  // namespace

void DataFlags::add_to(const FlagGroup& group) {
  group
      .text("--data", "PATH", paths,
            "A text file, a folder of them, or .bin files of tokens (nanoGPT's). May be given again")
      .take_all();
  group.text("--tokenizer", "FILE", tokenizer,
             "A tokenizer.json that makes tokens of text; without it, a token is a byte");
  group.text("--token-type", "uint16|uint32", token_type,
             "Tokens of .bin files: uint16 or uint32, little-endian (default: detected)");
  group.text("--cache-dir", "DIR", cache_folder,
             "Where tokenized text is kept (default $XDG_CACHE_HOME/terrace or ~/.cache/terrace)");
}

DataChoice::DataChoice(const DataFlags& flags, const fs::path& model_folder)
    : paths_(flags.paths.begin(), flags.paths.end()), cache_folder_(flags.cache_folder) {
  if (paths_.empty()) {
    refuse_missing(
        "--data",
        "give a text file or a folder of text files, for example --data /usr/share/common-licenses");
  }
  for (const fs::path& path : paths_) require_exists("--data", path);
  are_token_files_ = terrace::are_token_files(paths_);
  if (!flags.token_type.empty()) {
    if (flags.token_type != "uint16" && flags.token_type != "uint32")
      refuse("--token-type", fmt::format("\"{}\" is neither", flags.token_type), "give uint16 or uint32");
    if (!are_token_files_) refuse("--token-type", "--data are no .bin files", "leave it out");
    token_bytes_ = flags.token_type == "uint16" ? 2 : 4;
  }
  if (!flags.tokenizer.empty()) {
    tokenizer_path_ = tokenizer_path(flags.tokenizer);
  } else if (!are_token_files_ && !model_folder.empty() && io::is_there(model_folder / "tokenizer.json")) {
    tokenizer_path_ = model_folder / "tokenizer.json";
  } else if (!are_token_files_ && !model_folder.empty()) {
    refuse_other_tokenizers(model_folder);
  }
  if (!tokenizer_path_.empty()) tokenizer_.emplace(Tokenizer::load(tokenizer_path_));
}

std::optional<uint32_t> DataChoice::vocabulary() const {
  if (tokenizer_) return tokenizer_->vocabulary();
  if (are_token_files_) return std::nullopt;
  return ByteTokens::kVocabulary;
}

void DataChoice::require_vocabulary(uint32_t model_vocabulary) const {
  if (are_token_files_) return;
  if (*vocabulary() > model_vocabulary) {
    refuse(tokenizer_ ? tokenizer_path_.string() : "text as bytes",
           fmt::format("it has {} tokens, and the model has {}", *vocabulary(), model_vocabulary),
           "give the tokenizer that belongs to the model with --tokenizer");
  }
  if (tokenizer_ || model_vocabulary == ByteTokens::kVocabulary) return;
  refuse("text as bytes",
         fmt::format("the model has {} tokens, so it is not a model of bytes", model_vocabulary),
         "give the tokenizer.json that belongs to the model with --tokenizer");
}

std::optional<OpenTokens> DataChoice::open_as_they_are(uint32_t model_vocabulary) const {
  require_vocabulary(model_vocabulary);
  if (are_token_files_) return open_tokens({paths_, model_vocabulary, token_bytes_});
  const TextFiles text(paths_);  // throws if there is none
  if (tokenizer_ || !text.are_plain()) return std::nullopt;
  return open_tokens({paths_, model_vocabulary, token_bytes_});
}

OpenTokens DataChoice::open(uint32_t model_vocabulary, Log& log) const {
  if (std::optional<OpenTokens> open = open_as_they_are(model_vocabulary)) return *std::move(open);
  if (tokenizer_) log.info(fmt::format("tokens of the text are made by {}", tokenizer_path_.string()));
  const TextFiles text(paths_);
  fs::path folder = cache_folder_;
  OpenTokens open;
  try {
    if (folder.empty()) folder = default_cache_folder();
    open.train = tokenize_cached(text, tokenizer(), folder, log);
  } catch (const Error& error) {
    throw_with_cache_flag(error, folder);
  }
  return open;
}

}  // namespace terrace
