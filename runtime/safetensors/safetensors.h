// Safetensors files: the format in which Hugging Face keeps weights. A file is eight bytes of length
// (little-endian), a JSON header that names every tensor with its element type, shape and place, and the
// tensors' bytes.
//
// Reading trusts no file: a header is checked as a whole before one tensor is read. Neither reading nor
// writing must ever hold more than a piece of a tensor in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/data_type.h>

namespace terrace {

// The largest header that the reference implementation reads.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Returns the number of elements of a tensor of this shape; 1 without dimensions.
constexpr uint64_t count_elements(std::span<const uint64_t> shape) {
  uint64_t count = 1;
  for (const uint64_t extent : shape) count *= extent;
  return count;
}

// One tensor of a file.
struct SafetensorsTensor {
  std::string name;
  std::string type;             // as the file has it: "F32", "BF16", "I64"
  std::vector<uint64_t> shape;  // row-major; empty for a single number
  uint64_t begin_byte = 0;      // in the file
  uint64_t end_byte = 0;

  // Never overflows in a checked header.
  uint64_t element_count() const { return count_elements(shape); }
  // Returns the type in Terrace, or nothing if Terrace has no such type.
  std::optional<DataType> data_type() const;
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // sorted by name
  std::map<std::string, std::string> metadata;

  const SafetensorsTensor* find(std::string_view name) const;
};

// `head` is the file from its first byte, at least to the end of its header; `file_bytes` is the size of the
// file and `name` its name in errors. Throws Error(corrupt), naming the tensor and the defect, unless every
// tensor is described once and completely and their bytes cover the rest of the file without holes or
// overlaps. It takes a small multiple of the header's length in memory, whatever the header claims.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, uint64_t file_bytes,
                                           std::string_view name);

// An open file. Reading is thread-safe and allocates nothing.
class SafetensorsFile {
 public:
  // Throws Error(io) when the file cannot be read, and as parse_safetensors_header() does.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::filesystem::path& path() const;
  const SafetensorsHeader& header() const;

  // Reads the elements [first_element, first_element + values.size()) of one of this file's tensors, as fp32,
  // which holds every F32, F16 and BF16 number exactly. Throws Error(config) for a tensor of another type and
  // Error(io) when the bytes cannot be read.
  void read(const SafetensorsTensor& tensor, uint64_t first_element, std::span<float> values) const;
  // Reads bytes of a tensor as they are in the file, from the tensor's `first_byte` on.
  void read_raw(const SafetensorsTensor& tensor, uint64_t first_byte, std::span<std::byte> bytes) const;

 private:
  struct OpenFile;
  std::unique_ptr<OpenFile> open_;
};

// A tensor to be written.
struct SafetensorsSpec {
  std::string name;
  DataType type = DataType::fp32;
  std::vector<uint64_t> shape;
};

// Returns the first bytes of a file with these tensors in this order: length and header, a multiple of eight
// bytes.
std::string safetensors_head(std::span<const SafetensorsSpec> tensors,
                             const std::map<std::string, std::string>& metadata);

// Writes a file from its first byte to its last. A file at `path` stays unchanged until finish() returns: the
// bytes go to "<path>.new". The file gets the permissions that the user's umask leaves.
class SafetensorsWriter {
 public:
  // Takes the disk space at once. Throws Error(capacity) when the file system has too little, and Error(io)
  // when the file cannot be made.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> tensors,
                    const std::map<std::string, std::string>& metadata);
  // Removes the bytes of an unfinished writer.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Writes the next elements of the current tensor, rounded to its type. A run never reaches into the next
  // tensor.
  void write(std::span<const float> values);
  // Call when everything is written: returns when the file has its name and is on the drive.
  void finish();

  uint64_t file_bytes() const;

 private:
  struct Output;
  std::unique_ptr<Output> output_;
};

}  // namespace terrace
