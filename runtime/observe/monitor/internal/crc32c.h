// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78) with the mask that record files apply to it.
#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

uint32_t crc32c(std::string_view bytes);
// Returns the checksum rotated and shifted, since data may contain checksums of their own.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace terrace
