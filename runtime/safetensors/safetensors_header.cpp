// The header of a safetensors file: read and checked, and written.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/text/json_cursor.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/runtime/safetensors/safetensors.h>

namespace terrace {
namespace {

constexpr size_t kLengthBytes = sizeof(uint64_t);
constexpr const char* kMetadataKey = "__metadata__";
// No tensor of a model has so many; a list of more would only be there to take memory.
constexpr size_t kMostDimensions = 16;
constexpr size_t kLongestTypeName = 15;
constexpr uint64_t kLargestNumber = std::numeric_limits<uint64_t>::max();

constexpr const char* kWhatFailed = "cannot use the safetensors file";
constexpr JsonCursorErrors kErrors = {
    .kind = ErrorKind::corrupt,
    .what_failed = kWhatFailed,
    .place = "its header is wrong at byte",
    .advice = "it is damaged, or no safetensors file: fetch it again from where it came",
    .bytes_before = kLengthBytes};

struct KnownType {
  std::string_view name;
  uint32_t bits;
};
// Of these the size of a tensor is known, and compared with its bytes.
constexpr std::array kKnownTypes = {
    KnownType{"F32", 32},    KnownType{"BF16", 16},   KnownType{"F16", 16},    KnownType{"F64", 64},
    KnownType{"I64", 64},    KnownType{"U64", 64},    KnownType{"C64", 64},    KnownType{"I32", 32},
    KnownType{"U32", 32},    KnownType{"I16", 16},    KnownType{"U16", 16},    KnownType{"I8", 8},
    KnownType{"U8", 8},      KnownType{"BOOL", 8},    KnownType{"F8_E4M3", 8}, KnownType{"F8_E5M2", 8},
    KnownType{"F8_E8M0", 8}, KnownType{"F6_E2M3", 6}, KnownType{"F6_E3M2", 6}, KnownType{"F4", 4},
};

std::string_view safetensors_name(DataType type) {
  return type == DataType::fp32 ? "F32" : type == DataType::bf16 ? "BF16" : "F16";
}

[[noreturn]] void refuse_file(std::string_view name, const std::string& reason) {
  throw Error(ErrorKind::corrupt,
              {kWhatFailed, std::string(name), reason,
               "it is damaged, or was not fetched to its end: fetch it again from where it came"});
}

// Reads one header; see parse_safetensors_header(). The cursor makes no tree: a hundred megabytes of empty
// lists must not become gigabytes. Sizes and offsets go through no double.
class HeaderCheck {
 public:
  HeaderCheck(std::string_view text, uint64_t data_begin, uint64_t file_bytes, std::string_view file)
      : cursor_(text, file, kErrors),
        data_begin_(data_begin),
        data_bytes_(file_bytes - data_begin),
        file_(file) {}

  SafetensorsHeader read() {
    bool has_metadata = false;
    cursor_.object([&](std::string& key) {
      if (key != kMetadataKey) return read_tensor(std::move(key));
      if (std::exchange(has_metadata, true)) cursor_.fail("there is a second __metadata__");
      read_metadata();
    });
    cursor_.end();
    require_full_cover();
    require_unique_names();
    return std::move(header_);
  }

 private:
  void read_metadata() {
    cursor_.object([&](std::string& key) {
      if (!header_.metadata.emplace(key, cursor_.text()).second)
        cursor_.fail(fmt::format("{} of __metadata__ is there twice", json_quoted(key, 80)));
    });
  }

  void read_tensor(std::string name) {
    SafetensorsTensor tensor;
    tensor.name = std::move(name);
    bool has_type = false;
    bool has_shape = false;
    bool has_place = false;
    cursor_.object([&](std::string& key) {
      if (key == "dtype" && !std::exchange(has_type, true)) {
        tensor.type = cursor_.text();
      } else if (key == "shape" && !std::exchange(has_shape, true)) {
        read_shape(tensor);
      } else if (key == "data_offsets" && !std::exchange(has_place, true)) {
        read_place(tensor);
      } else {
        cursor_.fail(fmt::format("tensor {} has {}, which is not known or there twice",
                                 json_quoted(tensor.name, 200), json_quoted(key, 80)));
      }
    });
    if (!has_type || !has_shape || !has_place)
      refuse(tensor, fmt::format("it has no {}", !has_type    ? "dtype"
                                                 : !has_shape ? "shape"
                                                              : "data_offsets"));
    if (tensor.type.empty() || tensor.type.size() > kLongestTypeName) refuse(tensor, "its dtype is no name");
    require_size(tensor);
    header_.tensors.push_back(std::move(tensor));
  }

  void read_shape(SafetensorsTensor& tensor) {
    cursor_.list([&] {
      if (tensor.shape.size() == kMostDimensions)
        refuse(tensor, fmt::format("it has more than {} dimensions", kMostDimensions));
      tensor.shape.push_back(cursor_.whole_number(kLargestNumber));
    });
  }

  void read_place(SafetensorsTensor& tensor) {
    std::array<uint64_t, 2> offsets{};
    size_t count = 0;
    cursor_.list([&] {
      if (count == offsets.size()) refuse(tensor, "its data_offsets are more than two numbers");
      offsets[count++] = cursor_.whole_number(kLargestNumber);
    });
    if (count != offsets.size()) refuse(tensor, "its data_offsets are not two numbers");
    if (offsets[0] > offsets[1])
      refuse(tensor, fmt::format("its bytes end at {}, before they begin at {}", offsets[1], offsets[0]));
    if (offsets[1] > data_bytes_) {
      refuse(tensor, fmt::format("its bytes end at {} and the file holds {} of all tensors", offsets[1],
                                 data_bytes_));
    }
    tensor.begin_byte = data_begin_ + offsets[0];
    tensor.end_byte = data_begin_ + offsets[1];
  }

  // The product of the shape must not wrap around for a type whose size is not known either.
  void require_size(const SafetensorsTensor& tensor) const {
    bool empty = false;
    uint64_t elements = 1;
    bool overflows = false;
    for (const uint64_t extent : tensor.shape) {
      empty = empty || extent == 0;
      overflows = overflows || __builtin_mul_overflow(elements, extent, &elements);
    }
    if (empty) elements = 0;
    if (overflows && !empty) refuse(tensor, "its shape has more elements than 64 bits count");
    const auto known = std::find_if(kKnownTypes.begin(), kKnownTypes.end(),
                                    [&](const KnownType& type) { return type.name == tensor.type; });
    if (known == kKnownTypes.end()) return;
    uint64_t bits = 0;
    if (__builtin_mul_overflow(elements, uint64_t{known->bits}, &bits) || bits % 8 != 0)
      refuse(tensor, "its shape makes no whole number of bytes");
    const uint64_t bytes = tensor.end_byte - tensor.begin_byte;
    if (bits / 8 != bytes) {
      refuse(tensor, fmt::format("its shape {} of {} takes {} bytes, and it has {}", fmt_shape(tensor.shape),
                                 tensor.type, bits / 8, bytes));
    }
  }

  static std::string fmt_shape(const std::vector<uint64_t>& shape) {
    std::string text;
    for (const uint64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
    return "[" + text + "]";
  }

  void require_full_cover() {
    std::vector<SafetensorsTensor>& tensors = header_.tensors;
    std::sort(tensors.begin(), tensors.end(), [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
      return std::pair(a.begin_byte, a.end_byte) < std::pair(b.begin_byte, b.end_byte);
    });
    uint64_t end = data_begin_;
    for (const SafetensorsTensor& tensor : tensors) {
      if (tensor.begin_byte < end) refuse(tensor, "its bytes overlap those of another tensor");
      if (tensor.begin_byte > end)
        refuse(tensor, fmt::format("{} bytes before it belong to no tensor", tensor.begin_byte - end));
      end = tensor.end_byte;
    }
    if (const uint64_t left = data_begin_ + data_bytes_ - end; left > 0)
      refuse_file(file_, fmt::format("its last {} bytes belong to no tensor", left));
  }

  void require_unique_names() {
    std::vector<SafetensorsTensor>& tensors = header_.tensors;
    const auto by_name = [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
      return a.name < b.name;
    };
    std::sort(tensors.begin(), tensors.end(), by_name);
    const auto twice = std::adjacent_find(
        tensors.begin(), tensors.end(),
        [](const SafetensorsTensor& a, const SafetensorsTensor& b) { return a.name == b.name; });
    if (twice != tensors.end()) refuse(*twice, "it is there twice");
  }

  [[noreturn]] void refuse(const SafetensorsTensor& tensor, const std::string& reason) const {
    refuse_file(file_, fmt::format("tensor {}: {}", json_quoted(tensor.name, 200), reason));
  }

  JsonCursor cursor_;
  uint64_t data_begin_;
  uint64_t data_bytes_;
  std::string_view file_;
  SafetensorsHeader header_;
};

}  // namespace

std::optional<DataType> SafetensorsTensor::data_type() const {
  for (const DataType candidate : {DataType::fp32, DataType::bf16, DataType::fp16}) {
    if (type == safetensors_name(candidate)) return candidate;
  }
  return std::nullopt;
}

const SafetensorsTensor* SafetensorsHeader::find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const SafetensorsTensor& tensor, std::string_view n) { return tensor.name < n; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, uint64_t file_bytes,
                                           std::string_view name) {
  if (file_bytes < kLengthBytes || head.size() < kLengthBytes)
    refuse_file(name, fmt::format("its {} bytes are too few for the length of a header", file_bytes));
  uint64_t length = 0;
  for (size_t byte = 0; byte < kLengthBytes; ++byte)
    length |= std::to_integer<uint64_t>(head[byte]) << (8 * byte);
  if (length > kMaxSafetensorsHeaderBytes) {
    refuse_file(name, fmt::format("its header claims {} bytes, and {} are the most a header has", length,
                                  kMaxSafetensorsHeaderBytes));
  }
  if (length > file_bytes - kLengthBytes || length > head.size() - kLengthBytes) {
    refuse_file(name, fmt::format("its header claims {} bytes, and {} follow", length,
                                  std::min<uint64_t>(file_bytes, head.size()) - kLengthBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes, length);
  if (!text.starts_with('{')) refuse_file(name, "its header does not begin with a brace");
  return HeaderCheck(text, kLengthBytes + length, file_bytes, name).read();
}

std::string safetensors_head(std::span<const SafetensorsSpec> tensors,
                             const std::map<std::string, std::string>& metadata) {
  JsonWriter json({.dense = true});
  json.begin_object();
  if (!metadata.empty()) {
    json.begin_object(kMetadataKey);
    for (const auto& [key, value] : metadata) json.member(key, value);
    json.end();
  }
  uint64_t offset = 0;
  for (const SafetensorsSpec& tensor : tensors) {
    const uint64_t end = offset + count_elements(tensor.shape) * bytes_of(tensor.type);
    json.begin_object(tensor.name).member("dtype", safetensors_name(tensor.type));
    json.list("shape", tensor.shape).list("data_offsets", {offset, end}).end();
    offset = end;
  }
  std::string text = json.end().take();
  // So that the first tensor, and every one whose predecessors are aligned, begins at a multiple of eight.
  text.resize(round_up(text.size(), kLengthBytes), ' ');
  TERRACE_ASSERT(text.size() <= kMaxSafetensorsHeaderBytes, "so many tensors do not fit one header");
  std::string head(kLengthBytes, '\0');
  for (size_t byte = 0; byte < kLengthBytes; ++byte)
    head[byte] = static_cast<char>(uint64_t{text.size()} >> (8 * byte) & 0xff);
  return head + text;
}

}  // namespace terrace
