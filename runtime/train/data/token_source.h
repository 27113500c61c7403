// TokenSource: a row of tokens that training reads from, whatever kind of file they come from, and the door
// through which a path becomes one. A source reads what it is asked for and keeps nothing of size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/log.h>

namespace terrace {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual uint64_t token_count() const = 0;
  // Copies the tokens [first, first + tokens.size()), which must exist. Each is below vocabulary(); a file
  // that holds another one is an Error that names file and position, as is one that has changed.
  // Thread-safe; allocates nothing.
  virtual void read(uint64_t first, std::span<int32_t> tokens) const = 0;
  virtual uint32_t vocabulary() const = 0;
  // Whether a resumed run sees the tokens it saw before.
  virtual uint64_t fingerprint() const = 0;
  // For people: "12 files, 3.40 MiB, one token per byte".
  virtual std::string description() const = 0;
  // Where the tokens come from, for messages: the first of the paths.
  virtual std::filesystem::path path() const = 0;
  // Whether a token is a byte of the text.
  virtual bool tokens_are_bytes() const { return false; }
};

struct TokenOptions {
  // Text, folders of text, .bin files of tokens (nanoGPT's), or folders of these.
  std::vector<std::filesystem::path> paths;
  // Of .bin files, which do not say it themselves: what the model has. A larger token is an Error.
  uint32_t vocabulary = 0;
  // Bytes of a token of .bin files, 2 (uint16) or 4 (uint32); 0: as their beginnings look.
  uint32_t token_bytes = 0;
};

struct OpenTokens {
  std::unique_ptr<TokenSource> train;
  // Tokens that were held out when the files were made (val.bin beside train.bin); null where there are none.
  std::unique_ptr<TokenSource> validation;
};

// Whether the paths are .bin files of tokens (or folders of these) and no text.
bool are_token_files(const std::vector<std::filesystem::path>& paths);

// Throws Error when something cannot be read or is not what it must be.
OpenTokens open_tokens(const TokenOptions& options);

}  // namespace terrace
