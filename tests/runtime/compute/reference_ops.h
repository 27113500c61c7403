// The operations of a transformer in double precision, as plainly as they can be written, and derivatives by
// finite differences: what the fast operations are compared with.
#pragma once

#include <gtest/gtest.h>

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

inline Values layer_norm(const Values& x, const Values& gamma, const Values& beta) {
  const uint64_t width = gamma.size();
  Values y(x.size());
  for (uint64_t row = 0; row < x.size() / width; ++row) {
    double mean = 0, variance = 0;
    for (uint64_t j = 0; j < width; ++j) mean += x[row * width + j] / static_cast<double>(width);
    for (uint64_t j = 0; j < width; ++j) {
      variance += (x[row * width + j] - mean) * (x[row * width + j] - mean) / static_cast<double>(width);
    }
    for (uint64_t j = 0; j < width; ++j) {
      y[row * width + j] = (x[row * width + j] - mean) / std::sqrt(variance + 1e-5) * gamma[j] + beta[j];
    }
  }
  return y;
}

inline Values linear(const Values& x, const Values& weight, const Values& bias) {
  const uint64_t outputs = bias.size(), inputs = weight.size() / outputs, rows = x.size() / inputs;
  Values y(rows * outputs);
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t j = 0; j < outputs; ++j) y[row * outputs + j] = bias[j];
    for (uint64_t i = 0; i < inputs; ++i) {
      for (uint64_t j = 0; j < outputs; ++j)
        y[row * outputs + j] += x[row * inputs + i] * weight[i * outputs + j];
    }
  }
  return y;
}

inline Values attention(const Values& qkv, uint64_t sequence, uint64_t heads, uint64_t width) {
  const uint64_t tokens = qkv.size() / (3 * width), size = width / heads;
  Values y(tokens * width);
  for (uint64_t token = 0; token < tokens; ++token) {
    const uint64_t first = token / sequence * sequence;
    for (uint64_t head = 0; head < heads; ++head) {
      Values weights;
      double sum = 0;
      for (uint64_t other = first; other <= token; ++other) {
        double score = 0;
        for (uint64_t j = head * size; j < (head + 1) * size; ++j) {
          score += qkv[token * 3 * width + j] * qkv[other * 3 * width + width + j];
        }
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(size))));
        sum += weights.back();
      }
      for (uint64_t other = first; other <= token; ++other) {
        for (uint64_t j = head * size; j < (head + 1) * size; ++j) {
          y[token * width + j] += weights[other - first] / sum * qkv[other * 3 * width + 2 * width + j];
        }
      }
    }
  }
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
  const uint64_t width = x.size() / targets.size(), vocabulary = weight.size() / width;
  double loss = 0;
  for (uint64_t row = 0; row < targets.size(); ++row) {
    double sum = 0, target_logit = 0;
    for (uint64_t id = 0; id < vocabulary; ++id) {
      double logit = 0;
      for (uint64_t j = 0; j < width; ++j) logit += x[row * width + j] * weight[id * width + j];
      sum += std::exp(logit);
      if (id == static_cast<uint64_t>(targets[row])) target_logit = logit;
    }
    loss += std::log(sum) - target_logit;
  }
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
