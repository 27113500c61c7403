// ByteWriter and ByteReader: little-endian numbers in and out of bytes. A reader must never be asked for more
// than there is, so code that reads a file compares left() first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <terrace/base/assert.h>

namespace terrace::tier {

class ByteWriter {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_unsigned_v<T>);
    std::array<std::byte, sizeof(T)> little_endian;
    for (size_t b = 0; b < sizeof(T); ++b) little_endian[b] = static_cast<std::byte>(value >> (8 * b));
    bytes(little_endian);
  }
  void bytes(std::span<const std::byte> bytes) {
    written_.insert(written_.end(), bytes.begin(), bytes.end());
  }
  void text(std::string_view text) { bytes(std::as_bytes(std::span(text))); }
  // Writes zeros up to the next multiple of 8.
  void pad() { written_.resize((written_.size() + 7) / 8 * 8); }
  std::span<const std::byte> written() const { return written_; }
  std::vector<std::byte> take() { return std::move(written_); }
  void reserve(size_t bytes) { written_.reserve(bytes); }

 private:
  std::vector<std::byte> written_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  size_t left() const { return bytes_.size() - at_; }
  template <typename T>
  T number() {
    static_assert(std::is_unsigned_v<T>);
    const std::span<const std::byte> from = bytes(sizeof(T));
    T value = 0;
    for (size_t b = 0; b < sizeof(T); ++b) value |= static_cast<T>(static_cast<T>(from[b]) << (8 * b));
    return value;
  }
  std::span<const std::byte> bytes(size_t count) {
    TERRACE_ASSERT(count <= left(), "read past the end of the bytes");
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  // Skips to the next multiple of 8. Returns false when the skipped bytes are not all zeros, or not there.
  bool skip_padding() {
    while (at_ % 8 != 0) {
      if (left() == 0 || bytes_[at_] != std::byte{0}) return false;
      ++at_;
    }
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

}  // namespace terrace::tier
