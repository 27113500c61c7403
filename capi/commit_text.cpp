#include <terrace/capi/commit_text.h>

#include <fmt/format.h>

#include <charconv>

#include <terrace/base/record_layout.h>
#include <terrace/capi/limits.h>

namespace terrace::c {
namespace {

constexpr std::string_view kHead = "terrace-c 1 chunk_elements ";

}  // namespace

std::string write_commit_text(uint64_t chunk_elements, std::string_view text) {
  return fmt::format("{}{}\n{}", kHead, chunk_elements, text);
}

CommitText read_commit_text(std::string_view info) {
  const CommitText all_text{0, std::string(info)};
  if (!info.starts_with(kHead)) return all_text;
  const char* const end = info.data() + info.size();
  CommitText found;
  const auto number = std::from_chars(info.data() + kHead.size(), end, found.chunk_elements);
  if (number.ec != std::errc() || number.ptr == end || *number.ptr != '\n') return all_text;
  if (found.chunk_elements % kTileElements != 0 || found.chunk_elements > kMostChunkElements) return all_text;
  found.text.assign(number.ptr + 1, end);
  return found;
}

}  // namespace terrace::c
