// The one table of optimizers, by the names that a user chooses them by. What lists optimizers reads it: the
// schema of the configuration, the flags, the store for C, the optimizers for torch. A row's place is the
// number of terrace_optimizer_kind in terrace.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

// In the order of the rows.
enum class OptimizerType : uint8_t { adamw, adam, adagrad, lion, sgd, muon };

struct OptimizerRow {
  std::string_view word;  // in C, in Python and on the command line: "adamw"
  std::string_view key;   // optimizer.type of a configuration: "AdamW"
  OptimizerKind kind;     // whose formula it has
  // As torch calls the moments, first and second, in saved states; moment_count() says how many there are.
  std::array<std::string_view, 2> moments;
  bool counts_steps;  // torch's state has a "step"
  // Which settings the formula has, beside the learning rate, the weight decay and MuonSettings. A momentum
  // is one without which no moment is kept.
  bool has_betas, has_eps, has_momentum, has_bias_correction;
  bool decays_apart;  // weight decay shrinks the weights, and is no part of the gradient
  // What a configuration has where it says nothing.
  double lr = 1e-3, beta2 = 0.999, eps = 1e-8;
};

// clang-format off
inline constexpr auto kOptimizers = std::to_array<OptimizerRow>({
    {"adamw", "AdamW", OptimizerKind::adam, {"exp_avg", "exp_avg_sq"}, true, true, true, false, true, true},
    {"adam", "Adam", OptimizerKind::adam, {"exp_avg", "exp_avg_sq"}, true, true, true, false, true, false},
    {"adagrad", "Adagrad", OptimizerKind::adagrad, {"sum", ""}, true, false, true, false, false, false, 1e-2, 0.999, 1e-10},
    {"lion", "Lion", OptimizerKind::lion, {"exp_avg", ""}, false, true, false, false, false, true, 1e-3, 0.99},
    {"sgd", "SGD", OptimizerKind::sgd, {"momentum_buffer", ""}, false, false, false, true, false, false},
    {"muon", "Muon", OptimizerKind::muon, {"momentum_buffer", ""}, false, false, true, false, false, true, 0.02, 0.999, 1e-7},
});
// clang-format on

constexpr const OptimizerRow& row_of(OptimizerType type) {
  return kOptimizers[static_cast<size_t>(type)];
}

// Null where there is none of this word.
constexpr const OptimizerRow* optimizer_of_word(std::string_view word) {
  const auto* const found = std::ranges::find(kOptimizers, word, &OptimizerRow::word);
  return found == kOptimizers.end() ? nullptr : &*found;
}

}  // namespace terrace
