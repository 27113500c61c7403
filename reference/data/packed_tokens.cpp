#include <terrace/reference/data/packed_tokens.h>

#include <fmt/format.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/reference/data/internal/data_errors.h>

namespace terrace {
namespace {

constexpr size_t kBeginningBytes = 8192;
constexpr size_t kTellingTokens = 16;  // with fewer, a width is only guessed
constexpr size_t kTellingPairs = 64;   // with fewer, zeros may be tokens

// Fewer bytes than asked for only at the end of the file.
size_t read_at(const io::File& file, uint64_t offset, std::span<uint8_t> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count =
        ::pread(file.fd(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) data::cannot_read(file.path(), system_reason(errno), data::kCheckFileSystem);
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

uint32_t token_at(const uint8_t* bytes, uint32_t token_bytes) {
  uint32_t token = 0;
  for (uint32_t b = 0; b < token_bytes; ++b) token |= uint32_t{bytes[b]} << (8 * b);
  return token;
}

// int64, numpy's own type, would be read as tokens of which every second one, or three of four, are 0.
void refuse_int64(const io::File& file, std::span<const uint8_t> beginning) {
  constexpr size_t kNumberBytes = 8;
  if (beginning.size() < kNumberBytes * kTellingPairs) return;
  uint32_t low_halves = 0;
  uint32_t high_halves = 0;
  for (size_t at = 0; at + kNumberBytes <= beginning.size(); at += kNumberBytes) {
    low_halves |= token_at(beginning.data() + at, 4);
    high_halves |= token_at(beginning.data() + at + 4, 4);
  }
  if (low_halves == 0 || high_halves != 0) return;
  data::cannot_use(
      file.path(), "every second number of 4 bytes is 0: it looks like int64, 8 bytes a token",
      "write tokens of uint16 or uint32 (numpy: tokens.astype(numpy.uint32).tofile(\"train.bin\"))");
}

}  // namespace

std::optional<uint32_t> apparent_token_bytes(const std::filesystem::path& path, uint32_t vocabulary) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  const io::File file = io::File::open(path, {.no_follow = false});
  if (file.size_bytes() % 4 != 0) return 2;
  std::array<uint8_t, kBeginningBytes> buffer;
  const size_t bytes = read_at(file, 0, buffer);
  refuse_int64(file, {buffer.data(), bytes});
  const bool all_zero = std::all_of(buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(bytes),
                                    [](uint8_t byte) { return byte == 0; });
  if (all_zero || bytes < 4 * kTellingTokens) return std::nullopt;
  for (size_t at = 0; at + 4 <= bytes; at += 4) {
    if (token_at(buffer.data() + at, 4) >= vocabulary) return 2;
  }
  return 4;
}

PackedTokens::PackedTokens(const std::vector<std::filesystem::path>& paths, const PackedFormat& format,
                           std::string description)
    : format_(format), description_(std::move(description)) {
  TERRACE_ASSERT(!paths.empty() && (format.token_bytes == 2 || format.token_bytes == 4),
                 fmt::format("{} files of {}-byte tokens", paths.size(), format.token_bytes));
  TERRACE_ASSERT(format.vocabulary > 0 && format.vocabulary <= INT32_MAX, "no vocabulary");
  for (const std::filesystem::path& path : paths) add(path);
}

void PackedTokens::add(const std::filesystem::path& path) {
  const Wording advice = "make it anew: tokens are little-endian, end to end";
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (error) data::cannot_read(path, system_reason(error.value()), "check that the file exists");
  if (!std::filesystem::is_regular_file(status))
    data::cannot_use_special(path, status, "give a file of tokens");
  io::File file = io::File::open(path, {.no_follow = false});
  const uint64_t size = file.size_bytes();
  const uint64_t payload = size - std::min(size, format_.header_bytes);
  if (payload == 0) data::cannot_use(path, "it holds no tokens", advice);
  if (payload % format_.token_bytes != 0) {
    data::cannot_use(
        path,
        fmt::format("it has {} bytes, and tokens of {} bytes: the last one, at position {}, is "
                    "cut off",
                    size, format_.token_bytes, payload / format_.token_bytes),
        format_.token_bytes == 4 ? "if they are of two bytes, say so with " + Option::token_bytes : advice);
  }
  std::array<uint8_t, kBeginningBytes> buffer;
  const size_t beginning = read_at(file, 0, buffer);
  if (format_.header_bytes == 0) refuse_int64(file, {buffer.data(), beginning});
  const std::string name = path.filename().string();
  fingerprint_ = XXH3_64bits_withSeed(name.data(), name.size(), fingerprint_);
  fingerprint_ = XXH3_64bits_withSeed(&size, sizeof(size), fingerprint_);
  fingerprint_ = XXH3_64bits_withSeed(buffer.data(), beginning, fingerprint_);
  // The same bytes are other tokens in the wider type.
  if (format_.token_bytes == 4) fingerprint_ = XXH3_64bits_withSeed("uint32", 6, fingerprint_);
  const uint64_t count = payload / format_.token_bytes;
  files_.push_back({std::move(file), token_count_, count});
  token_count_ += count;
}

void PackedTokens::read(uint64_t first, std::span<int32_t> tokens) const {
  TERRACE_ASSERT(first <= token_count_ && tokens.size() <= token_count_ - first,
                 fmt::format("{} tokens at {} of {}", tokens.size(), first, token_count_));
  if (tokens.empty()) return;
  auto part =
      std::upper_bound(files_.begin(), files_.end(), first,
                       [](uint64_t wanted, const Part& other) { return wanted < other.first_token; }) -
      1;
  for (; !tokens.empty(); ++part) {
    const uint64_t inside = first - part->first_token;
    const auto count = static_cast<size_t>(std::min<uint64_t>(tokens.size(), part->token_count - inside));
    read_part(*part, inside, tokens.first(count));
    tokens = tokens.subspan(count);
    first += count;
  }
}

void PackedTokens::read_part(const Part& part, uint64_t first, std::span<int32_t> tokens) const {
  // The bytes are read into the memory of the tokens and widened from the back: token i is written to bytes
  // 4 i to 4 i + 3, and what is still to be widened lies below token_bytes * i.
  auto* bytes = reinterpret_cast<uint8_t*>(tokens.data());
  const size_t wanted = tokens.size() * format_.token_bytes;
  if (read_at(part.file, format_.header_bytes + first * format_.token_bytes, {bytes, wanted}) != wanted) {
    data::cannot_read(
        part.file.path(),
        fmt::format("it had {} tokens when the run began, and now ends before", part.token_count),
        "leave the training data as they are while a run uses them");
  }
  for (size_t i = tokens.size(); i-- > 0;) {
    const uint32_t token = token_at(bytes + i * format_.token_bytes, format_.token_bytes);
    if (token >= format_.vocabulary) {
      data::cannot_use(part.file.path(),
                       fmt::format("token {} at position {} is outside the vocabulary of {}", token,
                                   first + i, format_.vocabulary),
                       "give the tokens of this model's tokenizer, or a model with a larger vocabulary");
    }
    tokens[i] = static_cast<int32_t>(token);
  }
}

}  // namespace terrace
