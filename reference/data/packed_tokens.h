// PackedTokens: files of tokens as fixed-size little-endian numbers, end to end. They are .bin files in
// nanoGPT's format (uint16, or uint32 for larger vocabularies) or files of the token cache. Files stay open;
// nothing of them is kept in memory. It must never return a token that the model does not have.
#pragma once

#include <optional>

#include <terrace/aio/file.h>
#include <terrace/reference/data/token_source.h>

namespace terrace {

struct PackedFormat {
  uint32_t token_bytes = 2;   // 2 or 4
  uint64_t header_bytes = 0;  // before the first token of every file
  uint32_t vocabulary = 0;
};

// Guesses the bytes of a token in a file without a header from its beginning: 4 if all its four-byte numbers
// are tokens of the vocabulary (in a file of uint16, every other token would have to be 0 or one of the first
// few), else 2. Returns nothing if the file is too short, all zero or no regular file. Throws Error(config)
// for a file that looks like int64.
std::optional<uint32_t> apparent_token_bytes(const std::filesystem::path& path, uint32_t vocabulary);

class PackedTokens final : public TokenSource {
 public:
  // Throws Error when a file cannot be opened, has no tokens, ends within one, or (without a header) looks
  // like int64.
  PackedTokens(const std::vector<std::filesystem::path>& paths, const PackedFormat& format,
               std::string description);

  uint64_t token_count() const override { return token_count_; }
  void read(uint64_t first, std::span<int32_t> tokens) const override;
  uint32_t vocabulary() const override { return format_.vocabulary; }
  uint64_t fingerprint() const override { return fingerprint_; }
  std::string description() const override { return description_; }
  std::filesystem::path path() const override { return files_.front().file.path(); }

 private:
  struct Part {
    io::File file;
    uint64_t first_token;
    uint64_t token_count;
  };
  void add(const std::filesystem::path& path);
  void read_part(const Part& part, uint64_t first, std::span<int32_t> tokens) const;

  PackedFormat format_;
  std::string description_;
  std::vector<Part> files_;
  uint64_t token_count_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace terrace
