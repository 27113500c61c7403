// ByteTokens: text with one token per byte. It knows no encoding: every byte is a token, whatever it means.
#pragma once

#include <terrace/reference/data/text_files.h>
#include <terrace/reference/data/token_source.h>

namespace terrace {

class ByteTokens final : public TokenSource {
 public:
  static constexpr uint32_t kVocabulary = 256;

  explicit ByteTokens(TextFiles files) : files_(std::move(files)) {}

  uint64_t token_count() const override { return files_.byte_count(); }
  void read(uint64_t first, std::span<int32_t> tokens) const override;
  uint32_t vocabulary() const override { return kVocabulary; }
  uint64_t fingerprint() const override { return files_.fingerprint(); }
  std::string description() const override;
  std::filesystem::path path() const override { return files_.paths().front(); }
  bool tokens_are_bytes() const override { return true; }

 private:
  TextFiles files_;
};

}  // namespace terrace
