#include <terrace/optimizer_cpu/products/newton_schulz.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kAlignmentFloats = kAlignment / sizeof(float);
constexpr uint64_t kTurnedRows = 64;  // rows or columns of a task that transposes
// A symmetric product is computed in so many bands of rows, which have enough for all threads.
constexpr uint64_t kBands = 8;
constexpr uint64_t kLeastBand = 252;

uint64_t room_bytes(uint64_t rows, uint64_t columns) {
  return round_up(rows * columns * sizeof(Bf16), kAlignment);
}

bool is_tall(const MatrixShape& shape) {
  return shape.rows > shape.columns;
}

Operand operand(const Bf16* data, uint64_t stride, bool transposed = false) {
  return {data, stride, DataType::bf16, transposed};
}

}  // namespace

// The matrices of the iteration: X is r x c, and the next X too; G and U are r x r.
struct NewtonSchulz::Rooms {
  uint64_t r, c;
  Bf16 *x, *next, *gram, *update;
};

NewtonSchulz::NewtonSchulz(Workers& workers, InstructionSet set, ProductType type)
    : workers_(workers), products_(workers, set, type) {
  scratch_.stride = Products::workspace_floats();
  packing_.resize(scratch_.stride * workers.thread_count() + kAlignmentFloats);
  const auto address = reinterpret_cast<uintptr_t>(packing_.data());
  scratch_.floats = packing_.data() + (round_up(address, kAlignment) - address) / sizeof(float);
}

uint64_t NewtonSchulz::work_bytes(const MatrixShape& shape) {
  const uint64_t r = std::min(shape.rows, shape.columns);
  return std::max(2 * room_bytes(shape.rows, shape.columns) + 2 * room_bytes(r, r),
                  shape.rows * sizeof(double));  // for the norm
}

NewtonSchulz::Rooms NewtonSchulz::rooms_in(const MatrixShape& shape, std::byte* work) {
  Rooms rooms{std::min(shape.rows, shape.columns), std::max(shape.rows, shape.columns), {}, {}, {}, {}};
  const auto take = [&work](uint64_t rows, uint64_t columns) {
    return reinterpret_cast<Bf16*>(std::exchange(work, work + room_bytes(rows, columns)));
  };
  rooms.x = take(rooms.r, rooms.c);
  rooms.next = take(rooms.r, rooms.c);
  rooms.gram = take(rooms.r, rooms.r);
  rooms.update = take(rooms.r, rooms.r);
  return rooms;
}

void NewtonSchulz::run(const MatrixShape& shape, const OptimizerSettings& settings, Bf16* matrix,
                       std::span<std::byte> work) const {
  TERRACE_ASSERT(work.size() >= work_bytes(shape), "there is memory to multiply in");
  const Bf16 norm = to_bf16(norm_of(shape, matrix, work));
  const Bf16 least = to_bf16(static_cast<float>(settings.eps));
  Rooms rooms = rooms_in(shape, work.data());
  copy_divided(shape, matrix, std::max(to_float(norm), to_float(least)), rooms.x);
  for (uint32_t i = 0; i < settings.muon.iterations; ++i) iterate(settings.muon, rooms);
  copy_back(shape, rooms.x, matrix);
}

void NewtonSchulz::iterate(const MuonSettings& settings, Rooms& rooms) const {
  const auto a = static_cast<float>(settings.a), b = static_cast<float>(settings.b),
             c = static_cast<float>(settings.c);
  const uint64_t r = rooms.r;
  multiply_symmetric({r, r, rooms.c}, operand(rooms.x, rooms.c), operand(rooms.x, rooms.c, true),
                     {0, 1, nullptr, rooms.gram, r});
  multiply_symmetric({r, r, r}, operand(rooms.gram, r), operand(rooms.gram, r),
                     {b, c, rooms.gram, rooms.update, r});
  multiply({r, rooms.c, r}, operand(rooms.update, r), operand(rooms.x, rooms.c),
           {a, 1, rooms.x, rooms.next, rooms.c});
  std::swap(rooms.x, rooms.next);
}

void NewtonSchulz::multiply(const ProductShape& shape, const Operand& a, const Operand& b,
                            const Sum& sum) const {
  products_.multiply_tiles(shape, a, b, scratch_, [&](const ProductTile& tile, const float* values) {
    for (uint64_t row = 0; row < tile.rows; ++row) {
      const uint64_t first = (tile.row + row) * sum.stride + tile.column;
      for (uint64_t i = 0; i < tile.columns; ++i) {
        const float product = sum.of_product * values[row * tile.columns + i];
        sum.to[first + i] =
            to_bf16(sum.from != nullptr ? sum.factor * to_float(sum.from[first + i]) + product : product);
      }
    }
  });
}

// An element and its mirror image are one chain: the factors of each product are the same two numbers. So
// bands of rows are computed up to the diagonal, and the rest is copied.
void NewtonSchulz::multiply_symmetric(const ProductShape& shape, const Operand& a, const Operand& b,
                                      const Sum& sum) const {
  const uint64_t band = std::max(kLeastBand, divide_up(shape.rows, kBands));
  for (uint64_t row = 0; row < shape.rows; row += band) {
    const uint64_t rows = std::min(band, shape.rows - row);
    Operand below = a;
    below.data = static_cast<const Bf16*>(a.data) + row * a.stride;
    Sum part = sum;
    part.to += row * sum.stride;
    if (sum.from != nullptr) part.from += row * sum.stride;
    multiply({rows, row + rows, shape.depth}, below, b, part);
  }
  workers_.parallel_for(divide_up(shape.rows, kTurnedRows), [&](size_t task) {
    const uint64_t begin = task * kTurnedRows, end = std::min(begin + kTurnedRows, shape.rows);
    for (uint64_t column = begin + 1; column < shape.rows; ++column) {
      for (uint64_t row = begin; row < std::min(end, column); ++row)
        sum.to[row * sum.stride + column] = sum.to[column * sum.stride + row];
    }
  });
}

float NewtonSchulz::norm_of(const MatrixShape& shape, const Bf16* matrix, std::span<std::byte> work) const {
  auto* const rows = reinterpret_cast<double*>(work.data());
  workers_.parallel_for(shape.rows, [&](size_t row) {
    double sum = 0;
    for (uint64_t i = 0; i < shape.columns; ++i) {
      const auto value = static_cast<double>(to_float(matrix[row * shape.columns + i]));
      sum += value * value;
    }
    rows[row] = sum;
  });
  double sum = 0;
  for (uint64_t row = 0; row < shape.rows; ++row) sum += rows[row];
  return static_cast<float>(std::sqrt(sum));
}

void NewtonSchulz::copy_divided(const MatrixShape& shape, const Bf16* matrix, float divisor, Bf16* to) const {
  const uint64_t r = std::min(shape.rows, shape.columns), c = std::max(shape.rows, shape.columns);
  workers_.parallel_for(r, [&](size_t row) {
    for (uint64_t i = 0; i < c; ++i) {
      const Bf16 value = is_tall(shape) ? matrix[i * r + row] : matrix[row * c + i];
      to[row * c + i] = to_bf16(to_float(value) / divisor);
    }
  });
}

void NewtonSchulz::copy_back(const MatrixShape& shape, const Bf16* from, Bf16* matrix) const {
  if (!is_tall(shape)) {
    std::copy_n(from, shape.rows * shape.columns, matrix);
    return;
  }
  workers_.parallel_for(divide_up(shape.rows, kTurnedRows), [&](size_t task) {
    const uint64_t begin = task * kTurnedRows, end = std::min(begin + kTurnedRows, shape.rows);
    for (uint64_t row = begin; row < end; ++row) {
      for (uint64_t i = 0; i < shape.columns; ++i)
        matrix[row * shape.columns + i] = from[i * shape.rows + row];
    }
  });
}

}  // namespace terrace
