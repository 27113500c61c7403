#include <terrace/optimizer_cpu/products/internal/product_table.h>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/products/products.h>

#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace terrace {

#if defined(__x86_64__)
namespace {

// The system keeps the tiles of a thread only for a process that has asked for it.
bool may_use_tiles() {
  constexpr long kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  constexpr unsigned kBf16OfTiles = 1u << 22, kTiles = 1u << 24;
  unsigned a = 0, b = 0, c = 0, features = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &features) == 0) return false;
  return (features & kBf16OfTiles) != 0 && (features & kTiles) != 0 &&
         syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

}  // namespace
#endif

bool has_instruction([[maybe_unused]] InstructionSet set, ProductType type) {
  if (type == ProductType::fp32) return true;
#if defined(__x86_64__)
  if (set != InstructionSet::avx512) return false;
  if (type == ProductType::bf16) return __builtin_cpu_supports("avx512bf16") != 0;
  static const bool has_tiles = may_use_tiles();
  return has_tiles;
#else
  return false;
#endif
}

namespace kernels {

const ProductKernels& product_kernels_of(InstructionSet set) {
  TERRACE_ASSERT(is_supported(set), "this machine cannot run " + std::string(name_of(set)));
#if defined(__x86_64__)
  if (set == InstructionSet::avx512) return kAvx512Products;
  if (set == InstructionSet::avx2) return kAvx2Products;
#endif
  return kScalarProducts;
}

ProductKernel product_kernel(InstructionSet set, ProductType type) {
  const ProductKernels& kernels = product_kernels_of(set);
  if (type == ProductType::fp32) return kernels.fp32;
#if defined(__x86_64__)
  if (has_instruction(set, type)) return type == ProductType::bf16 ? product_of_pairs : product_of_tiles;
#endif
  return type == ProductType::bf16 ? kernels.bf16 : kernels.bf16_amx;
}

}  // namespace kernels
}  // namespace terrace
