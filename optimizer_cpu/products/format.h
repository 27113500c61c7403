// Format: the type of elements, for files that are compiled with wider instructions than the rest of the
// program. It names nothing but plain types, so that they may include it (internal/product_kernels.h).
#pragma once

#include <cstdint>

namespace terrace::kernels {

enum class Format : uint8_t { fp32, bf16, fp16 };

}  // namespace terrace::kernels
