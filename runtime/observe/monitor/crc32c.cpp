#include <array>

#include <terrace/runtime/observe/monitor/internal/crc32c.h>

namespace terrace {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;
constexpr uint32_t kMaskDelta = 0xa282ead8u;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t value = ~0u;
  for (const char c : bytes) value = (value >> 8) ^ kTable[(value ^ static_cast<uint8_t>(c)) & 0xff];
  return ~value;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t value = crc32c(bytes);
  return ((value >> 15) | (value << 17)) + kMaskDelta;
}

}  // namespace terrace
