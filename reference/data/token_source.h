// TokenSource: a row of tokens that training reads, whatever kind of file they come from, and the function
// that makes one of a path. A source reads the tokens that a caller asks for and keeps nothing of size.
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
  // Copies the tokens [first, first + tokens.size()), which must exist. Each is below vocabulary(). Throws
  // Error naming file and position for a larger token, and for a file that has changed. Thread-safe;
  // allocates nothing.
  virtual void read(uint64_t first, std::span<int32_t> tokens) const = 0;
  virtual uint32_t vocabulary() const = 0;
  // A number by which a resumed run recognises its tokens.
  virtual uint64_t fingerprint() const = 0;
  // Returns a text for people: "12 files, 3.40 MiB, one token per byte".
  virtual std::string description() const = 0;
  // Returns the first of the tokens' paths, for messages.
  virtual std::filesystem::path path() const = 0;
  // True if a token is a byte of the text.
  virtual bool tokens_are_bytes() const { return false; }
};

struct TokenOptions {
  // Text, folders of text, .bin files of tokens (nanoGPT's), or folders of these.
  std::vector<std::filesystem::path> paths;
  // The model's vocabulary, since .bin files do not say theirs. A larger token is an Error.
  uint32_t vocabulary = 0;
  // Bytes of a token of .bin files, 2 (uint16) or 4 (uint32); 0: guess from the files' beginnings.
  uint32_t token_bytes = 0;
};

struct OpenTokens {
  std::unique_ptr<TokenSource> train;
  // The tokens held out when the files were made (val.bin beside train.bin); null if there are none.
  std::unique_ptr<TokenSource> validation;
};

// True if the paths are .bin files of tokens (or folders of these) and no text.
bool are_token_files(const std::vector<std::filesystem::path>& paths);

// Throws Error when a path cannot be read or holds no usable tokens.
OpenTokens open_tokens(const TokenOptions& options);

}  // namespace terrace
