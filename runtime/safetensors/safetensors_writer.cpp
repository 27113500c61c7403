// Writing a safetensors file from its first byte to its last.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include <terrace/aio/aside_file.h>
#include <terrace/base/assert.h>
#include <terrace/base/units.h>
#include <terrace/runtime/safetensors/internal/elements.h>
#include <terrace/runtime/safetensors/safetensors.h>

namespace terrace {
namespace {

constexpr uint64_t kBufferBytes = kMiB;

}  // namespace

struct SafetensorsWriter::Output {
  std::filesystem::path path;
  std::vector<SafetensorsSpec> tensors;
  std::optional<io::AsideFile> file;
  std::vector<std::byte> buffer;
  size_t filled = 0;    // of buffer
  uint64_t offset = 0;  // in the file, of buffer
  uint64_t bytes = 0;   // of the whole file
  size_t current = 0;   // tensor
  uint64_t left = 0;    // elements of it

  void skip_complete();
  void append(std::span<const std::byte> more);
  void flush();
};

// Goes to the next tensor that still wants elements.
void SafetensorsWriter::Output::skip_complete() {
  while (left == 0 && current + 1 < tensors.size()) left = count_elements(tensors[++current].shape);
}

void SafetensorsWriter::Output::append(std::span<const std::byte> more) {
  while (!more.empty()) {
    const size_t count = std::min(more.size(), buffer.size() - filled);
    std::memcpy(buffer.data() + filled, more.data(), count);
    filled += count;
    more = more.subspan(count);
    if (filled == buffer.size()) flush();
  }
}

void SafetensorsWriter::Output::flush() {
  file->write(offset, std::span(buffer).first(filled));
  offset += filled;
  filled = 0;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : output_(std::make_unique<Output>()) {
  Output& p = *output_;
  p.path = path;
  p.tensors = std::move(tensors);
  const std::string head = safetensors_head(p.tensors, metadata);
  p.bytes = head.size();
  for (const SafetensorsSpec& tensor : p.tensors)
    p.bytes += count_elements(tensor.shape) * bytes_of(tensor.type);
  p.buffer.resize(std::min(kBufferBytes, p.bytes));
  // Weights are made to be given away.
  p.file.emplace(path, io::AsideOptions{.suffix = ".new",
                                        .for_the_user = true,
                                        .what = "the weights",
                                        .advice = "the folder must exist and be writable",
                                        .events = nullptr});
  p.file->file().preallocate(p.bytes);
  p.append(std::as_bytes(std::span(head)));
  if (!p.tensors.empty()) p.left = count_elements(p.tensors.front().shape);
}

SafetensorsWriter::~SafetensorsWriter() = default;

uint64_t SafetensorsWriter::file_bytes() const {
  return output_->bytes;
}

void SafetensorsWriter::write(std::span<const float> values) {
  Output& p = *output_;
  if (values.empty()) return;
  p.skip_complete();
  TERRACE_ASSERT(values.size() <= p.left,
                 fmt::format("{} elements are more than {} takes", values.size(),
                             p.tensors.empty() ? "the file" : p.tensors[p.current].name));
  p.left -= values.size();
  weights::for_each_narrow_run(p.tensors[p.current].type, values,
                               [&](std::span<const std::byte> bytes) { p.append(bytes); });
}

void SafetensorsWriter::finish() {
  Output& p = *output_;
  p.skip_complete();
  p.flush();
  TERRACE_ASSERT(p.left == 0 && p.offset == p.bytes,
                 fmt::format("{} got {} of {} bytes", p.path.string(), p.offset, p.bytes));
  p.file->publish();
}

}  // namespace terrace
