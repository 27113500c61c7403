// Reading the tensors of a safetensors file.
#include <fmt/format.h>

#include <array>
#include <string_view>

#include <terrace/aio/file.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/safetensors/internal/elements.h>
#include <terrace/runtime/safetensors/safetensors.h>

namespace terrace {
namespace {

constexpr std::string_view kLeaveFile =
    "the weights are read while the run uses them: leave the file as it is";

// Only as much as the file has, and no more than a header may have.
SafetensorsHeader read_header(const io::File& file) {
  const uint64_t file_bytes = file.size_bytes();
  std::array<std::byte, sizeof(uint64_t)> first{};
  uint64_t length = 0;
  if (file_bytes >= first.size()) {
    io::read_exactly(file, 0, first, kLeaveFile);
    for (size_t byte = 0; byte < first.size(); ++byte)
      length |= std::to_integer<uint64_t>(first[byte]) << (8 * byte);
  }
  const bool usable = length <= kMaxSafetensorsHeaderBytes && length + first.size() <= file_bytes;
  std::vector<std::byte> head(std::min<uint64_t>(file_bytes, first.size() + (usable ? length : 0)));
  io::read_exactly(file, 0, head, kLeaveFile);
  return parse_safetensors_header(head, file_bytes, file.path().string());
}

}  // namespace

struct SafetensorsFile::OpenFile {
  io::File file;
  SafetensorsHeader header;
};

// Model folders of download caches hold links.
SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) {
  io::File file = io::File::open(path, {.access = io::FileAccess::read, .no_follow = false});
  SafetensorsHeader header = read_header(file);
  open_ = std::make_unique<OpenFile>(OpenFile{std::move(file), std::move(header)});
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::filesystem::path& SafetensorsFile::path() const {
  return open_->file.path();
}
const SafetensorsHeader& SafetensorsFile::header() const {
  return open_->header;
}

void SafetensorsFile::read_raw(const SafetensorsTensor& tensor, uint64_t first_byte,
                               std::span<std::byte> bytes) const {
  const uint64_t size = tensor.end_byte - tensor.begin_byte;
  TERRACE_ASSERT(first_byte <= size && bytes.size() <= size - first_byte,
                 fmt::format("{} bytes from {} are not in {}", bytes.size(), first_byte, tensor.name));
  io::read_exactly(open_->file, tensor.begin_byte + first_byte, bytes, kLeaveFile);
}

void SafetensorsFile::read(const SafetensorsTensor& tensor, uint64_t first_element,
                           std::span<float> values) const {
  const std::optional<DataType> type = tensor.data_type();
  if (!type) {
    throw Error(ErrorKind::config,
                {fmt::format("cannot use tensor {} of", json_quoted(tensor.name, 200)), path().string(),
                 fmt::format("its elements are {}", tensor.type),
                 "Terrace reads F32, F16 and BF16: quantised weights must be converted first"});
  }
  const std::span<std::byte> bytes = weights::narrow_part(*type, values);
  read_raw(tensor, first_element * bytes_of(*type), bytes);
  if (*type == DataType::bf16) weights::widen_in_place<Bf16>(values);
  if (*type == DataType::fp16) weights::widen_in_place<Fp16>(values);
}

}  // namespace terrace
