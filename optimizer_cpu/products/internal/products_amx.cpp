// Products of bf16 by the tiles of AMX, compiled with its instructions.
// Must include nothing that other files share beyond plain types and intrinsics: see product_kernels.h.
#include <terrace/optimizer_cpu/products/internal/product_kernels.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define TERRACE_COMPUTE_LANES 16
#define TERRACE_COMPUTE_FMA

#define TERRACE_TILE_ZERO(tile) _tile_zero(tile)
#define TERRACE_TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define TERRACE_TILE_DOT(tile, a, b) _tile_dpbf16ps(tile, a, b)
#define TERRACE_TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)

namespace terrace::kernels {
namespace {

#include <terrace/optimizer_cpu/products/vectors.inc>

#include <terrace/optimizer_cpu/products/internal/brains.inc>
#include <terrace/optimizer_cpu/products/internal/product.inc>

#include <terrace/optimizer_cpu/products/internal/tile_panels.inc>

// The memory of LDTILECFG: all eight tiles have 16 rows of 64 bytes.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShapes) == 64);

}  // namespace

void product_of_tiles(const KernelProduct& product) {
  const TileShapes shapes;
  _tile_loadconfig(&shapes);
  multiply<TilePanels>(product);
  _tile_release();
}

}  // namespace terrace::kernels
#endif
