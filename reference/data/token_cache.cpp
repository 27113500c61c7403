#include <terrace/reference/data/token_cache.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>

#include <terrace/aio/aside_file.h>
#include <terrace/aio/file.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/progress.h>
#include <terrace/base/units.h>
#include <terrace/base/workers.h>
#include <terrace/reference/data/byte_tokens.h>
#include <terrace/reference/data/internal/segment_encoder.h>
#include <terrace/reference/data/internal/text_segments.h>
#include <terrace/reference/data/packed_tokens.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kVersion = 2;  // of the file and of how text is cut into segments
constexpr std::string_view kPartial = ".partial-";

// What a file begins with, little-endian; the tokens follow.
struct Header {
  std::array<char, 16> magic = {'t', 'e', 'r', 'r', 'a', 'c', 'e',  '-',
                                't', 'o', 'k', 'e', 'n', 's', '\n', 0};
  uint64_t version = kVersion;
  uint64_t key = 0;
  uint64_t token_bytes = 0;
  uint64_t token_count = 0;
  uint64_t tokens_hash = 0;  // of their bytes
  uint64_t hash = 0;         // of what is in front of it

  uint64_t hash_of_rest() const { return XXH3_64bits(this, offsetof(Header, hash)); }
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>);

[[noreturn]] void fail(const char* what, const fs::path& path, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT;
  throw Error(is_full ? ErrorKind::capacity : ErrorKind::io,
              {what, path.string(), system_reason(error),
               is_full ? "free space there, or name a cache folder on a larger disk"
                       : "name a cache folder that can be written to"});
}

class TokenHash {
 public:
  TokenHash() { XXH3_64bits_reset(&state_); }
  void add(const void* bytes, size_t size) { XXH3_64bits_update(&state_, bytes, size); }
  uint64_t value() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

// A name of its own for each process, and a lock, by which others know the file from what a dead process
// left.
io::AsideOptions partial_options() {
  std::random_device random;
  return {.suffix = fmt::format("{}{:08x}{:08x}", kPartial, random(), random()),
          .what = "the file of tokens",
          .advice = "name a cache folder that can be written to",
          .events = nullptr};
}

void remove_dead_partials(const fs::path& folder, Log& log) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().native().find(kPartial) == std::string::npos) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::unlink(entry.path().c_str()) == 0)
      log.info(fmt::format("removed what a dead process left: {}", entry.path().string()));
    ::close(fd);
  }
}

// Without a tokenizer tokens are bytes.
uint64_t fingerprint_of(const Tokenizer* tokenizer) {
  return tokenizer == nullptr ? 0 : tokenizer->fingerprint();
}
uint32_t vocabulary_of(const Tokenizer* tokenizer) {
  return tokenizer == nullptr ? ByteTokens::kVocabulary : tokenizer->vocabulary();
}

uint64_t key_of(const TextFiles& files, const Tokenizer* tokenizer) {
  uint64_t key = XXH3_64bits_withSeed(&kVersion, sizeof(kVersion), fingerprint_of(tokenizer));
  const uint64_t text = files.fingerprint();
  key = XXH3_64bits_withSeed(&text, sizeof(text), key);
  for (const TextFiles::File& file : files.files()) {
    const std::array<uint64_t, 2> state = {file.byte_count, static_cast<uint64_t>(file.changed_ns)};
    key = XXH3_64bits_withSeed(state.data(), sizeof(state), key);
  }
  return key;
}

// All of them once, at the rate of the disk: later any part may be read at any time.
uint64_t hash_of_tokens(const io::File& file, uint64_t begin, uint64_t bytes) {
  TokenHash hash;
  std::vector<std::byte> block(kMiB);
  while (bytes > 0) {
    const ssize_t count =
        ::pread(file.fd(), block.data(), std::min<uint64_t>(bytes, block.size()), static_cast<off_t>(begin));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("cannot read the file of tokens", file.path(), count < 0 ? errno : EIO);
    hash.add(block.data(), static_cast<size_t>(count));
    begin += static_cast<uint64_t>(count);
    bytes -= static_cast<uint64_t>(count);
  }
  return hash.value();
}

// Whether the file is whole and holds what is wanted. One that is not is made anew.
bool has_tokens(const fs::path& path, uint64_t key, uint64_t token_bytes, Log& log) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  const io::File file = io::File::open(path, {.no_follow = false});
  Header header;
  if (::pread(file.fd(), &header, sizeof(header), 0) != ssize_t{sizeof(header)}) return false;
  const Header expected;
  const bool is_wanted = header.magic == expected.magic && header.version == kVersion && header.key == key &&
                         header.token_bytes == token_bytes && header.hash == header.hash_of_rest() &&
                         header.token_count > 0 &&
                         file.size_bytes() == sizeof(header) + header.token_count * token_bytes;
  if (!is_wanted) return false;
  if (hash_of_tokens(file, sizeof(header), header.token_count * token_bytes) == header.tokens_hash)
    return true;
  log.warning(fmt::format("the tokens in {} are not what was written there: their checksum is another one",
                          path.string()));
  return false;
}

// Tokenizes segment by segment, several at a time, and writes them in order.
class Tokenization {
 public:
  Tokenization(const TextFiles& files, const Tokenizer* tokenizer, uint64_t token_bytes, io::AsideFile& out,
               Log& log)
      : files_(files),
        tokenizer_(tokenizer),
        token_bytes_(token_bytes),
        out_(out),
        log_(log),
        progress_(log, "tokenizing", files.byte_count()),
        workers_(0) {
    for (size_t i = 0; i < workers_.thread_count(); ++i) slots_.emplace_back(tokenizer);
  }

  // Sets the count of tokens and their hash.
  void run(Header& header) {
    data::TextSegments segments(files_, tokenizer_ == nullptr ? data::TextCuts() : tokenizer_->cuts());
    begin_ns_ = clock_.now_ns();
    for (;;) {
      size_t filled = 0;
      while (filled < slots_.size() && segments.next(slots_[filled].segment)) ++filled;
      if (filled == 0) break;
      workers_.parallel_for(filled,
                            [&](size_t i) { slots_[i].encoder.encode(slots_[i].segment, slots_[i].result); });
      for (size_t i = 0; i < filled; ++i) put(slots_[i]);
    }
    report();
    header.token_count = token_count_;
    header.tokens_hash = hash_.value();
  }

 private:
  struct Slot {
    explicit Slot(const Tokenizer* tokenizer) : encoder(tokenizer) {}
    data::SegmentEncoder encoder;
    data::TextSegment segment;
    data::SegmentEncoder::Result result;
  };

  void put(const Slot& slot) {
    const std::vector<int32_t>& tokens = slot.result.tokens;
    bytes_.resize(tokens.size() * token_bytes_);
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (uint64_t b = 0; b < token_bytes_; ++b)
        bytes_[i * token_bytes_ + b] = static_cast<uint8_t>(static_cast<uint32_t>(tokens[i]) >> (8 * b));
    }
    out_.write(sizeof(Header) + token_count_ * token_bytes_, std::as_bytes(std::span(bytes_)));
    hash_.add(bytes_.data(), bytes_.size());
    token_count_ += tokens.size();
    forced_count_ += slot.segment.is_forced ? 1 : 0;
    if (broken_count_ == 0 && slot.result.broken_count > 0)
      first_broken_ = slot.segment.first_byte + slot.result.first_broken;
    broken_count_ += slot.result.broken_count;
    progress_.add(slot.segment.text.size());
  }

  void report() {
    if (broken_count_ > 0) {
      const TextFiles::File& file = files_.file_at(first_broken_);
      log_.warning(
          fmt::format("{} pieces of the text are no UTF-8 and became U+FFFD; the first is at byte {} of {}",
                      broken_count_, first_broken_ - file.first_byte, file.path.string()));
    }
    if (forced_count_ > 0) {
      log_.warning(
          fmt::format("{} places were cut as there was no better one for {}: the tokens around them may be "
                      "others than those of the whole",
                      forced_count_, format_bytes(data::TextSegments::kMostBytes)));
    }
    log_.info(fmt::format("tokenized {}: {} tokens in {}", format_bytes(files_.byte_count()), token_count_,
                          format_duration(clock_.now_ns() - begin_ns_)));
  }

  const TextFiles& files_;
  const Tokenizer* tokenizer_;
  uint64_t token_bytes_;
  io::AsideFile& out_;
  Log& log_;
  ProgressReport progress_;
  Workers workers_;
  SteadyClock clock_;
  std::vector<Slot> slots_;
  std::vector<uint8_t> bytes_;
  TokenHash hash_;
  uint64_t token_count_ = 0;
  uint64_t forced_count_ = 0;
  uint64_t broken_count_ = 0;
  uint64_t first_broken_ = 0;
  uint64_t begin_ns_ = 0;
};

void make_tokens(const TextFiles& files, const Tokenizer* tokenizer, const fs::path& path, Header header,
                 Log& log) {
  log.info(
      fmt::format("tokenizing {} of text, once, into {}", format_bytes(files.byte_count()), path.string()));
  io::AsideFile out(path, partial_options());
  out.file().try_lock();
  Tokenization(files, tokenizer, header.token_bytes, out, log).run(header);
  header.hash = header.hash_of_rest();
  out.write(0, std::as_bytes(std::span(&header, 1)));
  out.publish();  // the tokens are on the disk before the name is
}

std::string description_of(const TextFiles& files, const Tokenizer* tokenizer) {
  const std::string text = files.description();
  if (tokenizer == nullptr) return text + ", one token per byte, a text of JSON lines ends with a newline";
  std::string begin;
  for (const int32_t token : tokenizer->prefix()) begin += " " + tokenizer->name_of(token);
  if (!begin.empty()) begin = " begins with" + begin + " and";
  const auto end = tokenizer->end_of_text();
  return fmt::format("{}; {}, {}", text, tokenizer->description(),
                     end ? fmt::format("each text{} ends with {}", begin, tokenizer->name_of(*end))
                         : "nothing stands between them, as the tokenizer has no end-of-text token");
}

// The tokens of a text: a resumed run sees the same whenever text and tokenizer are the same, whatever the
// cache file is called.
class CachedTokens final : public TokenSource {
 public:
  CachedTokens(PackedTokens tokens, uint64_t fingerprint, fs::path path, bool are_bytes)
      : tokens_(std::move(tokens)),
        fingerprint_(fingerprint),
        path_(std::move(path)),
        are_bytes_(are_bytes) {}
  uint64_t token_count() const override { return tokens_.token_count(); }
  void read(uint64_t first, std::span<int32_t> tokens) const override { tokens_.read(first, tokens); }
  uint32_t vocabulary() const override { return tokens_.vocabulary(); }
  uint64_t fingerprint() const override { return fingerprint_; }
  std::string description() const override { return tokens_.description(); }
  fs::path path() const override { return path_; }
  bool tokens_are_bytes() const override { return are_bytes_; }

 private:
  PackedTokens tokens_;
  uint64_t fingerprint_;
  fs::path path_;
  bool are_bytes_;
};

}  // namespace

fs::path default_cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return fs::path(cache) / "terrace";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return fs::path(home) / ".cache" / "terrace";
  throw Error(ErrorKind::config, {"there is no place for", "tokens of text",
                                  "HOME and XDG_CACHE_HOME are not set", "name a cache folder for them"});
}

std::unique_ptr<TokenSource> tokenize_cached(const TextFiles& files, const Tokenizer* tokenizer,
                                             const fs::path& cache_folder, Log& log) {
  std::error_code error;
  fs::create_directories(cache_folder, error);
  if (error) fail("cannot create the folder for tokens", cache_folder, error.value());
  Header header;
  header.key = key_of(files, tokenizer);
  header.token_bytes = vocabulary_of(tokenizer) <= 65536 ? 2 : 4;
  const fs::path path = cache_folder / fmt::format("tokens-{:016x}.bin", header.key);
  if (!has_tokens(path, header.key, header.token_bytes, log)) {
    remove_dead_partials(cache_folder, log);
    make_tokens(files, tokenizer, path, header, log);
  }
  const PackedFormat format = {static_cast<uint32_t>(header.token_bytes), sizeof(Header),
                               vocabulary_of(tokenizer)};
  const uint64_t text = files.fingerprint();
  return std::make_unique<CachedTokens>(PackedTokens({path}, format, description_of(files, tokenizer)),
                                        XXH3_64bits_withSeed(&text, sizeof(text), fingerprint_of(tokenizer)),
                                        files.paths().front(), tokenizer == nullptr);
}

}  // namespace terrace
