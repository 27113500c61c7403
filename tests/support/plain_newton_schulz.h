// The step of a whole matrix by the formulas of newton_schulz.h, one after the other and with plain loops:
// what the product is compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/products/newton_schulz.h>

namespace terrace::testing {

using Values = std::vector<float>;  // of bf16

inline float rounded_to_bf16(float value) {
  return to_float(to_bf16(value));
}

inline Values transposed(const Values& values, uint64_t rows, uint64_t columns) {
  Values out(values.size());
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t c = 0; c < columns; ++c) out[c * rows + r] = values[r * columns + c];
  }
  return out;
}

// [rows x columns] = a [rows x depth] * b [depth x columns].
inline Values product_of(const Values& a, const Values& b, uint64_t rows, uint64_t depth, uint64_t columns) {
  Values out(rows * columns);
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t c = 0; c < columns; ++c) {
      float sum = 0;
      for (uint64_t d = 0; d < depth; ++d) sum = std::fma(a[r * depth + d], b[d * columns + c], sum);
      out[r * columns + c] = sum;
    }
  }
  return out;
}

// The formulas of newton_schulz.h, one after the other.
inline Values orthogonalised_plainly(Values u, MatrixShape shape, const OptimizerSettings& settings) {
  const bool tall = shape.rows > shape.columns;
  double squares = 0;
  for (uint64_t r = 0; r < shape.rows; ++r) {
    double row = 0;
    for (uint64_t c = 0; c < shape.columns; ++c) {
      const double value = u[r * shape.columns + c];
      row += value * value;
    }
    squares += row;
  }
  const float norm = rounded_to_bf16(static_cast<float>(std::sqrt(squares)));
  const float divisor = std::max(norm, rounded_to_bf16(static_cast<float>(settings.eps)));
  if (tall) u = transposed(u, shape.rows, shape.columns);
  const uint64_t r = std::min(shape.rows, shape.columns), c = std::max(shape.rows, shape.columns);
  for (float& value : u) value = rounded_to_bf16(value / divisor);
  const auto a = static_cast<float>(settings.muon.a), b = static_cast<float>(settings.muon.b),
             k = static_cast<float>(settings.muon.c);
  for (uint32_t i = 0; i < settings.muon.iterations; ++i) {
    Values gram = product_of(u, transposed(u, r, c), r, c, r);
    for (float& value : gram) value = rounded_to_bf16(value);
    Values update = product_of(gram, gram, r, r, r);
    for (uint64_t e = 0; e < update.size(); ++e) update[e] = rounded_to_bf16(b * gram[e] + k * update[e]);
    const Values next = product_of(update, u, r, r, c);
    for (uint64_t e = 0; e < u.size(); ++e) u[e] = rounded_to_bf16(a * u[e] + next[e]);
  }
  return tall ? transposed(u, r, c) : u;
}

// The same by the product.
inline Values orthogonalised(const Values& u, const MatrixShape& shape, const OptimizerSettings& settings,
                             const NewtonSchulz& product) {
  std::vector<Bf16> matrix;
  for (const float value : u) matrix.push_back(to_bf16(value));
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> work(NewtonSchulz::work_bytes(shape) / sizeof(Line) + 1);
  product.run(shape, settings, matrix.data(), std::as_writable_bytes(std::span(work)));
  Values out;
  for (const Bf16 value : matrix) out.push_back(to_float(value));
  return out;
}

}  // namespace terrace::testing
