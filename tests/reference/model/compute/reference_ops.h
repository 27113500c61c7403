// The operations of a transformer in double precision, as plainly as they can be written, and derivatives by
// finite differences: what the fast operations are compared with.
#pragma once

#include <gtest/gtest.h>

// Eigen's own vectors do not compile with GCC where nothing is optimised and headers are precompiled.
#define EIGEN_DONT_VECTORIZE
#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <string>
#include <vector>

namespace terrace::testing::reference {

using Values = std::vector<double>;

inline Values widened(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

inline Values embedding(const std::vector<int32_t>& tokens, const Values& token_table,
                        const Values& position_table, uint64_t sequence, uint64_t width) {
  Values y(tokens.size() * width);
  for (uint64_t row = 0; row < tokens.size(); ++row) {
    for (uint64_t j = 0; j < width; ++j) {
      y[row * width + j] = token_table[static_cast<uint64_t>(tokens[row]) * width + j] +
                           position_table[row % sequence * width + j];
    }
  }
  return y;
}

inline Values layer_norm(const Values& x, const Values& gamma, const Values& beta, double epsilon = 1e-5) {
  const uint64_t width = gamma.size();
  Values y(x.size());
  for (uint64_t row = 0; row < x.size() / width; ++row) {
    double mean = 0, variance = 0;
    for (uint64_t j = 0; j < width; ++j) mean += x[row * width + j] / static_cast<double>(width);
    for (uint64_t j = 0; j < width; ++j) {
      variance += (x[row * width + j] - mean) * (x[row * width + j] - mean) / static_cast<double>(width);
    }
    for (uint64_t j = 0; j < width; ++j) {
      y[row * width + j] = (x[row * width + j] - mean) / std::sqrt(variance + epsilon) * gamma[j] + beta[j];
    }
  }
  return y;
}

inline Values rms_norm(const Values& x, const Values& gamma, double epsilon) {
  const uint64_t width = gamma.size();
  Values y(x.size());
  for (uint64_t row = 0; row < x.size() / width; ++row) {
    double squares = 0;
    for (uint64_t j = 0; j < width; ++j) squares += x[row * width + j] * x[row * width + j];
    const double root = std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (uint64_t j = 0; j < width; ++j) y[row * width + j] = x[row * width + j] / root * gamma[j];
  }
  return y;
}

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Values as the matrix of so many rows that they hold, row by row.
inline Eigen::Map<const Matrix> matrix_of(const Values& values, uint64_t rows) {
  return {values.data(), static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(values.size() / rows)};
}
inline Values values_of(const Matrix& matrix) {
  return {matrix.data(), matrix.data() + matrix.size()};
}

// `weight` is [inputs, outputs].
inline Values linear(const Values& x, const Values& weight, const Values& bias) {
  const uint64_t inputs = weight.size() / bias.size();
  return values_of((matrix_of(x, x.size() / inputs) * matrix_of(weight, inputs)).rowwise() +
                   matrix_of(bias, 1).row(0));
}

inline Values transposed(const Values& matrix, uint64_t rows) {
  return values_of(matrix_of(matrix, rows).transpose());
}

// `weight` is [outputs, inputs]; an empty bias is none.
inline Values linear_of_rows(const Values& x, const Values& weight, uint64_t outputs, const Values& bias) {
  return linear(x, transposed(weight, outputs), bias.empty() ? Values(outputs) : bias);
}

// heads / key_value_heads consecutive query heads share keys and values.
inline Values attention(const Values& queries, const Values& keys, const Values& values, uint64_t sequence,
                        uint64_t heads, uint64_t key_value_heads, uint64_t size) {
  const uint64_t tokens = queries.size() / (heads * size);
  Values y(queries.size());
  for (uint64_t token = 0; token < tokens; ++token) {
    const uint64_t first = token / sequence * sequence;
    for (uint64_t head = 0; head < heads; ++head) {
      const uint64_t shared = head / (heads / key_value_heads);
      const auto key_value = [&](uint64_t other) { return (other * key_value_heads + shared) * size; };
      const uint64_t query = (token * heads + head) * size;
      Values weights;
      double sum = 0;
      for (uint64_t other = first; other <= token; ++other) {
        double score = 0;
        for (uint64_t j = 0; j < size; ++j) score += queries[query + j] * keys[key_value(other) + j];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(size))));
        sum += weights.back();
      }
      for (uint64_t other = first; other <= token; ++other) {
        for (uint64_t j = 0; j < size; ++j)
          y[query + j] += weights[other - first] / sum * values[key_value(other) + j];
      }
    }
  }
  return y;
}

// A row of qkv is [queries | keys | values].
inline Values attention(const Values& qkv, uint64_t sequence, uint64_t heads, uint64_t width) {
  const uint64_t tokens = qkv.size() / (3 * width);
  Values parts[3] = {Values(tokens * width), Values(tokens * width), Values(tokens * width)};
  for (uint64_t token = 0; token < tokens; ++token) {
    for (uint64_t j = 0; j < 3 * width; ++j)
      parts[j / width][token * width + j % width] = qkv[token * 3 * width + j];
  }
  return attention(parts[0], parts[1], parts[2], sequence, heads, heads, width / heads);
}

// Turns the pairs (i, i + size / 2) of every head by position * frequencies[i].
inline Values rotated(const Values& x, uint64_t sequence, uint64_t size, const Values& frequencies,
                      uint64_t heads, double factor = 1.0) {
  Values y(x.size());
  for (uint64_t head = 0; head < x.size() / size; ++head) {
    const double position = static_cast<double>(head / heads % sequence);
    for (uint64_t i = 0; i < size / 2; ++i) {
      const uint64_t a = head * size + i, b = a + size / 2;
      const double cosine = std::cos(position * frequencies[i]) * factor;
      const double sine = std::sin(position * frequencies[i]) * factor;
      y[a] = x[a] * cosine - x[b] * sine;
      y[b] = x[b] * cosine + x[a] * sine;
    }
  }
  return y;
}

inline Values swiglu(const Values& gate, const Values& up) {
  Values y(gate.size());
  for (size_t i = 0; i < gate.size(); ++i) y[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  return y;
}

inline Values gelu(const Values& x) {
  Values y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = 0.5 * x[i] *
           (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
  }
  return y;
}

inline double cross_entropy(const Values& x, const Values& weight, const std::vector<int32_t>& targets) {
  const uint64_t width = x.size() / targets.size();
  const Matrix logits = matrix_of(x, targets.size()) * matrix_of(weight, weight.size() / width).transpose();
  double loss = 0;
  for (Eigen::Index row = 0; row < logits.rows(); ++row)
    loss += std::log(logits.row(row).array().exp().sum()) - logits(row, targets[static_cast<size_t>(row)]);
  return loss / static_cast<double>(targets.size());
}

inline double dot(const Values& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Compares a gradient with central differences of `loss` with respect to `values`, at `samples` elements
// spread evenly (all of them when there are fewer). loss() reads `values`.
inline void expect_gradient(const std::vector<float>& gradient, Values& values,
                            const std::function<double()>& loss, double tolerance, const std::string& what,
                            size_t samples = 40) {
  ASSERT_EQ(gradient.size(), values.size()) << what;
  const double h = 1e-5;
  for (size_t k = 0; k < std::min(samples, values.size()); ++k) {
    const size_t i = values.size() <= samples ? k : k * (values.size() - 1) / (samples - 1);
    const double before = values[i];
    values[i] = before + h;
    const double above = loss();
    values[i] = before - h;
    const double below = loss();
    values[i] = before;
    const double expected = (above - below) / (2 * h);
    ASSERT_NEAR(gradient[i], expected, tolerance * (1e-2 + std::abs(expected))) << what << " at " << i;
  }
}

}  // namespace terrace::testing::reference
