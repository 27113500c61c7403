#include <terrace/capi/commit_text.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <span>
#include <vector>

#include <terrace/base/checksum.h>
#include <terrace/base/record_layout.h>
#include <terrace/capi/limits.h>

namespace terrace::c {
namespace {

constexpr std::string_view kFirstHead = "terrace-c 1 chunk_elements ";
constexpr std::string_view kHead = "terrace-c 2 chunk_elements ";

// Takes `word` and the number behind it from the front of the text. Returns whether they are there.
bool take(std::string_view& rest, std::string_view word, uint64_t& number, int base = 10) {
  if (!rest.starts_with(word)) return false;
  rest.remove_prefix(word.size());
  const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), number, base);
  rest.remove_prefix(static_cast<size_t>(read.ptr - rest.data()));
  return read.ec == std::errc();
}

}  // namespace

std::string write_commit_text(const CommitText& text) {
  return fmt::format("{}{} tensors {:016x} number {}\n{}", kHead, text.chunk_elements, text.tensors,
                     text.number, text.text);
}

CommitText read_commit_text(std::string_view info) {
  CommitText all_text{.text = std::string(info)};
  CommitText found;
  std::string_view rest = info;
  const bool has_head = take(rest, kFirstHead, found.chunk_elements) ||
                        (take(rest, kHead, found.chunk_elements) &&
                         take(rest, " tensors ", found.tensors, 16) && take(rest, " number ", found.number));
  if (!has_head || !rest.starts_with('\n')) return all_text;
  if (found.chunk_elements % kTileElements != 0 || found.chunk_elements > kMostChunkElements) return all_text;
  found.text = rest.substr(1);
  return found;
}

uint64_t hash_of_streams(const SpaceLayout& tensors) {
  std::vector<uint64_t> begins;  // of the sections, in the stream that has them
  std::array<uint64_t, 2> ends{};
  for (const Section& section : tensors.sections()) {
    uint64_t& end = ends[section.trainable ? 1 : 0];
    begins.push_back(end);
    end += section.elements;
  }
  std::string text;
  for (uint32_t t = 0; t < tensors.tensor_count(); ++t) {
    const TensorSpec& spec = tensors.tensor(TensorId{t});
    const TensorPlace& place = tensors.place(TensorId{t});
    text += fmt::format("{} {} {} {} {}\n", spec.name, spec.shape, name_of(spec.type), spec.trainable,
                        begins[place.section] + place.first_element);
  }
  return checksum_of(std::as_bytes(std::span(text)));
}

}  // namespace terrace::c
