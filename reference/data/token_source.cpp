#include <terrace/reference/data/token_source.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/aio/folder.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/reference/data/byte_tokens.h>
#include <terrace/reference/data/internal/data_errors.h>
#include <terrace/reference/data/packed_tokens.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

bool is_bin(const fs::path& path) {
  return path.extension() == ".bin";
}

// The .bin files of a folder, when it is a folder of tokens: it has a train.bin (beside whatever made it), or
// nothing but .bin files. Empty otherwise, and for what cannot be listed: that is reported where it is
// opened.
std::vector<fs::path> token_files_in(const fs::path& folder) {
  std::vector<fs::path> found;
  bool has_other = false;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().filename().native().starts_with('.')) continue;
    if (is_bin(entry->path())) {
      found.push_back(entry->path());
    } else {
      has_other = true;
    }
  }
  if (error || (has_other && !io::is_there(folder / "train.bin"))) return {};
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<fs::path> token_files_at(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return token_files_in(path);
  return is_bin(path) ? std::vector{path} : std::vector<fs::path>();
}

std::string describe(const std::vector<fs::path>& paths, uint32_t token_bytes) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const fs::path& path : paths) {
    const uint64_t size = fs::file_size(path, error);
    if (!error) bytes += size;
  }
  return fmt::format(
      "{} of uint{} tokens, {}",
      paths.size() == 1 ? paths.front().filename().string() : fmt::format("{} files", paths.size()),
      8 * token_bytes, format_bytes(bytes));
}

// Of all files alike, where nobody says it.
uint32_t token_bytes_of(const std::vector<fs::path>& files, const TokenOptions& options) {
  if (options.token_bytes != 0) return options.token_bytes;
  uint32_t token_bytes = 0;
  const fs::path* said_by = nullptr;
  for (const fs::path& file : files) {
    const std::optional<uint32_t> apparent = apparent_token_bytes(file, options.vocabulary);
    if (!apparent || *apparent == token_bytes) continue;
    if (said_by != nullptr) {
      data::cannot_use(file,
                       fmt::format("it looks like tokens of uint{}, and {} like tokens of uint{}",
                                   8 * *apparent, said_by->string(), 8 * token_bytes),
                       "give files of one type, or say which it is with " + Option::token_bytes);
    }
    token_bytes = *apparent;
    said_by = &file;
  }
  return said_by == nullptr ? 2 : token_bytes;
}

OpenTokens open_token_files(const TokenOptions& options) {
  TERRACE_ASSERT(options.vocabulary > 0, "the vocabulary of .bin files must be known");
  std::vector<fs::path> train;
  std::vector<fs::path> validation;
  for (const fs::path& path : options.paths) {
    for (const fs::path& file : token_files_at(path)) {
      (file.filename().native().starts_with("val") ? validation : train).push_back(file);
    }
  }
  if (train.empty()) train.swap(validation);  // they were asked for by name
  std::vector<fs::path> all = train;
  all.insert(all.end(), validation.begin(), validation.end());
  const PackedFormat format = {token_bytes_of(all, options), 0, options.vocabulary};
  const auto packed = [&](const std::vector<fs::path>& files) {
    return std::make_unique<PackedTokens>(files, format, describe(files, format.token_bytes));
  };
  OpenTokens open;
  open.train = packed(train);
  if (!validation.empty()) open.validation = packed(validation);
  return open;
}

}  // namespace

void ByteTokens::read(uint64_t first, std::span<int32_t> tokens) const {
  // Read into the memory of the tokens and widened from the back, each byte before it is written over.
  auto* bytes = reinterpret_cast<uint8_t*>(tokens.data());
  files_.read(first, {bytes, tokens.size()});
  for (size_t i = tokens.size(); i-- > 0;) tokens[i] = bytes[i];
}

std::string ByteTokens::description() const {
  return files_.description() + ", one token per byte";
}

bool are_token_files(const std::vector<fs::path>& paths) {
  const auto count = std::count_if(paths.begin(), paths.end(),
                                   [](const fs::path& path) { return !token_files_at(path).empty(); });
  if (count == 0) return false;
  const auto text = std::find_if(paths.begin(), paths.end(),
                                 [](const fs::path& path) { return token_files_at(path).empty(); });
  if (text != paths.end())
    data::cannot_use(*text, "it is no .bin file of tokens, and others given with it are",
                     "give text alone, or .bin files alone");
  return true;
}

OpenTokens open_tokens(const TokenOptions& options) {
  TERRACE_ASSERT(!options.paths.empty(), "no path to data");
  if (are_token_files(options.paths)) return open_token_files(options);
  TextFiles text(options.paths);
  if (!text.are_plain())
    data::cannot_use(options.paths.front(), "it has JSON lines, and their bytes are not the texts",
                     "take its tokens from tokenize_cached");
  OpenTokens open;
  open.train = std::make_unique<ByteTokens>(std::move(text));
  return open;
}

}  // namespace terrace
