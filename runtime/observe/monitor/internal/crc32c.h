// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78) and the mask that record files put over it.
#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

uint32_t crc32c(std::string_view bytes);
// Rotated and shifted, so that a checksum of data that contains checksums is no accident.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace terrace
