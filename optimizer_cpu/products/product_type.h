// ProductType: the arithmetic of matrix products on the processor (docs/host_compute.md).
#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

// fp32: operands as they are. The others round operands to bf16 and sum in fp32: bf16 in the order of
// AVX512_BF16, bf16_amx in that of AMX. Any processor can do each, with the same bits.
enum class ProductType : uint8_t { fp32, bf16, bf16_amx };
constexpr std::string_view name_of(ProductType type) {
  return type == ProductType::fp32 ? "fp32" : type == ProductType::bf16 ? "bf16" : "bf16_amx";
}

}  // namespace terrace
