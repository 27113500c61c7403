// Random Adam inputs for the tests: four arrays in guarded memory, and the settings to run them with.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

inline constexpr DataType kEveryType[] = {DataType::fp32, DataType::bf16, DataType::fp16};

inline float element(const std::byte* from, DataType type, size_t index) {
  if (type == DataType::fp32) {
    float value;
    std::memcpy(&value, from + index * sizeof(value), sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from + index * sizeof(bits), sizeof(bits));
  return type == DataType::bf16 ? to_float(Bf16{bits}) : to_float(Fp16{bits});
}

inline void set_element(std::byte* to, DataType type, size_t index, float value) {
  if (type == DataType::fp32) {
    std::memcpy(to + index * sizeof(value), &value, sizeof(value));
    return;
  }
  const uint16_t bits = type == DataType::bf16 ? to_bf16(value).bits : to_fp16(value).bits;
  std::memcpy(to + index * sizeof(bits), &bits, sizeof(bits));
}

// `value` after a trip through `type`.
inline float rounded(float value, DataType type) {
  std::byte bytes[sizeof(float)];
  set_element(bytes, type, 0, value);
  return element(bytes, type, 0);
}

// The same bits, or both NaN (which NaN is not specified).
inline bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

struct AdamProblem {
  DataType gradient_type;
  DataType parameter_type;
  size_t shift;  // elements by which the arrays are displaced, and bytes for gradients and parameters
  size_t count;
  bool over_gradients;  // write the parameters over the gradients
  std::vector<float> master, exp_avg, exp_avg_sq;
  std::vector<std::byte> gradients, parameters;

  AdamProblem(size_t element_count, DataType gradient, DataType parameter, size_t displacement, bool in_place)
      : gradient_type(gradient),
        parameter_type(parameter),
        shift(displacement),
        count(element_count),
        over_gradients(in_place),
        master(count + shift + 1, kGuard),
        exp_avg(master),
        exp_avg_sq(master),
        gradients((count + 1) * bytes_of(gradient) + shift, std::byte{0x5a}),
        parameters((count + 1) * bytes_of(parameter) + shift, std::byte{0x5a}) {}

  void fill_state(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < count; ++i) {
      master[shift + i] = normal(random);
      exp_avg[shift + i] = 0.1f * normal(random);
      exp_avg_sq[shift + i] = std::abs(0.01f * normal(random));
    }
  }
  void fill_gradients(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < count; ++i) set_gradient(i, normal(random));
  }
  // Any bit patterns: denormals, infinities and NaN among them; exp_avg_sq not negative, as it never is.
  void fill_with_any_bits(std::mt19937& random) {
    for (size_t i = 0; i < count; ++i) {
      master[shift + i] = std::bit_cast<float>(static_cast<uint32_t>(random()));
      exp_avg[shift + i] = std::bit_cast<float>(static_cast<uint32_t>(random()));
      exp_avg_sq[shift + i] = std::abs(std::bit_cast<float>(static_cast<uint32_t>(random())));
      set_gradient(i, std::bit_cast<float>(static_cast<uint32_t>(random())));
    }
  }

  void set_gradient(size_t i, float value) { set_element(gradients.data() + shift, gradient_type, i, value); }
  float gradient(size_t i) const { return element(gradients.data() + shift, gradient_type, i); }
  const std::byte* output() const { return (over_gradients ? gradients : parameters).data() + shift; }
  float parameter(size_t i) const { return element(output(), parameter_type, i); }

  void update(InstructionSet set, const OptimizerStep& step) {
    update_arrays(set, step,
                  {.master = master.data() + shift,
                   .exp_avg = exp_avg.data() + shift,
                   .exp_avg_sq = exp_avg_sq.data() + shift,
                   .gradients = gradients.data() + shift,
                   .gradient_type = gradient_type,
                   .parameters = (over_gradients ? gradients : parameters).data() + shift,
                   .parameter_type = parameter_type,
                   .element_count = count});
  }

  // Nothing before or after the arrays was written.
  bool guards_are_whole() const {
    for (const auto* array : {&master, &exp_avg, &exp_avg_sq}) {
      for (size_t i = 0; i < shift; ++i) {
        if ((*array)[i] != kGuard) return false;
      }
      if (array->back() != kGuard) return false;
    }
    return bytes_are_whole(gradients, gradient_type) && bytes_are_whole(parameters, parameter_type);
  }

  std::string name() const {
    return std::to_string(count) + " elements displaced by " + std::to_string(shift) + ", " +
           std::string(name_of(gradient_type)) + " gradients, " + std::string(name_of(parameter_type)) +
           (over_gradients ? " parameters over them" : " parameters");
  }

 private:
  static constexpr float kGuard = 12345.0f;
  bool bytes_are_whole(const std::vector<std::byte>& bytes, DataType type) const {
    for (size_t i = 0; i < shift; ++i) {
      if (bytes[i] != std::byte{0x5a}) return false;
    }
    for (size_t i = shift + count * bytes_of(type); i < bytes.size(); ++i) {
      if (bytes[i] != std::byte{0x5a}) return false;
    }
    return true;
  }
};

// Calls body(gradient type, parameter type, write over the gradients) for every combination that is allowed.
template <typename Body>
void for_every_layout(Body body) {
  for (const DataType gradient : kEveryType) {
    for (const DataType parameter : kEveryType) {
      body(gradient, parameter, false);
      if (bytes_of(gradient) == bytes_of(parameter)) body(gradient, parameter, true);
    }
  }
}

// Both decay modes, with and without bias correction, with and without decay.
inline std::vector<OptimizerSettings> every_settings() {
  std::vector<OptimizerSettings> all;
  for (const bool adamw_mode : {false, true}) {
    for (const bool bias_correction : {false, true}) {
      for (const double weight_decay : {0.0, 0.1}) {
        all.push_back({.lr = 2e-3,
                       .beta1 = 0.9,
                       .beta2 = 0.98,
                       .eps = 1e-8,
                       .weight_decay = weight_decay,
                       .adamw_mode = adamw_mode,
                       .bias_correction = bias_correction});
      }
    }
  }
  return all;
}

inline std::string name_of(const OptimizerSettings& settings) {
  return std::string(settings.adamw_mode ? "AdamW" : "Adam") +
         (settings.bias_correction ? ", bias correction" : ", no bias correction") + ", weight decay " +
         std::to_string(settings.weight_decay);
}

}  // namespace terrace
