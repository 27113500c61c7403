// The header of a safetensors file. The length in its first eight bytes is what most mutations break, so
// every input is also tried as the JSON that a right length is put before; the file is taken to be as large
// as the last tensor says, or as the input.
#include <terrace/runtime/safetensors/safetensors.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "fuzz_input.h"

namespace {

void parse(std::string_view head, uint64_t file_bytes) {
  using namespace terrace;
  SafetensorsHeader header;
  const bool accepted = fuzz::accepts({ErrorKind::corrupt, ErrorKind::config}, [&] {
    header = parse_safetensors_header(std::as_bytes(std::span(head)), file_bytes, "model.safetensors");
  });
  if (!accepted) return;
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return a.begin_byte < b.begin_byte || (a.begin_byte == b.begin_byte && a.end_byte < b.end_byte);
  });
  uint64_t covered = header.tensors.empty() ? file_bytes : header.tensors.front().begin_byte;
  for (const SafetensorsTensor& tensor : header.tensors) {
    fuzz::require(tensor.begin_byte == covered && tensor.end_byte >= covered, "tensors lie side by side");
    covered = tensor.end_byte;
    if (const auto type = tensor.data_type()) {
      fuzz::require(tensor.element_count() * bytes_of(*type) == tensor.end_byte - tensor.begin_byte,
                    "a tensor has the bytes of its elements");
    }
  }
  fuzz::require(covered == file_bytes, "tensors reach to the end of the file");
}

// The largest number in the text: the end of the last tensor, in a header that says the truth.
uint64_t largest_number(std::string_view text) {
  uint64_t largest = 0;
  uint64_t number = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    number = digit && number < UINT64_MAX / 20 ? number * 10 + static_cast<uint64_t>(c - '0') : 0;
    largest = std::max(largest, number);
  }
  return largest;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = terrace::fuzz::as_text(data, size);
  parse(text, size);
  const uint64_t length = size;
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  file += text;
  parse(file, file.size() + largest_number(text));
  return 0;
}
