// The instructions of AMX as Intel's manual (volume 2, TDPBF16PS) describes them, one element after the
// other. Compiled with AVX-512, so it must include nothing that other files share beyond plain types and
// intrinsics.
#include "emulated_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TERRACE_COMPUTE_LANES 16
#define TERRACE_COMPUTE_FMA

#define TERRACE_TILE_ZERO(tile) tile_zero(tile)
#define TERRACE_TILE_LOAD(tile, from, stride) tile_load(tile, from, stride)
#define TERRACE_TILE_DOT(tile, a, b) tile_dot(tile, a, b)
#define TERRACE_TILE_STORE(tile, to, stride) tile_store(tile, to, stride)

namespace terrace {
namespace testing {
namespace {

constexpr uint64_t kTileRows = 16, kTileWords = 16;

thread_local uint32_t tiles[8][kTileRows][kTileWords];

void tile_zero(int tile) {
  for (auto& row : tiles[tile]) {
    for (uint32_t& word : row) word = 0;
  }
}
void tile_load(int tile, const void* from, uint64_t stride_bytes) {
  for (uint64_t row = 0; row < kTileRows; ++row)
    __builtin_memcpy(tiles[tile][row], static_cast<const char*>(from) + row * stride_bytes, 64);
}
void tile_store(int tile, void* to, uint64_t stride_bytes) {
  for (uint64_t row = 0; row < kTileRows; ++row)
    __builtin_memcpy(static_cast<char*>(to) + row * stride_bytes, tiles[tile][row], 64);
}

float even_of(uint32_t pair) {
  return __builtin_bit_cast(float, pair << 16);
}
float odd_of(uint32_t pair) {
  return __builtin_bit_cast(float, pair & 0xffff0000u);
}

void tile_dot(int tile, int a, int b) {
  for (uint64_t m = 0; m < kTileRows; ++m) {
    for (uint64_t n = 0; n < kTileWords; ++n) {
      float even = 0.0f, odd = 0.0f;
      for (uint64_t k = 0; k < kTileWords; ++k) {
        even = __builtin_fmaf(even_of(tiles[a][m][k]), even_of(tiles[b][k][n]), even);
        odd = __builtin_fmaf(odd_of(tiles[a][m][k]), odd_of(tiles[b][k][n]), odd);
      }
      const float sum = __builtin_bit_cast(float, tiles[tile][m][n]) + (even + odd);
      tiles[tile][m][n] = __builtin_bit_cast(uint32_t, sum);
    }
  }
}

}  // namespace
}  // namespace testing

namespace kernels {
namespace {

using testing::tile_dot;
using testing::tile_load;
using testing::tile_store;
using testing::tile_zero;

#include <terrace/optimizer_cpu/products/vectors.inc>

#include <terrace/optimizer_cpu/products/internal/brains.inc>
#include <terrace/optimizer_cpu/products/internal/product.inc>

#include <terrace/optimizer_cpu/products/internal/tile_panels.inc>

}  // namespace
}  // namespace kernels

// The instructions consult no mode of the processor: denormal numbers are zeros to them.
void testing::product_of_emulated_tiles(const kernels::KernelProduct& product) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  kernels::multiply<kernels::TilePanels>(product);
  _mm_setcsr(before);
}

}  // namespace terrace
#endif
