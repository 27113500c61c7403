// Random inputs of an optimizer's update for the tests: arrays of any type in guarded memory, in both forms
// of the masters, and the settings to run them with.
#pragma once

#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <terrace/base/record_layout.h>
#include <terrace/optimizer_cpu/masters.h>
#include <terrace/optimizer_cpu/optimizer.h>

#include "element_access.h"
#include "support/array_update.h"
#include "support/enum_values.h"
#include "support/sanitized.h"

namespace terrace {

// `count` elements that begin `shift` bytes into their memory, with guards around them.
struct GuardedArray {
  size_t element_bytes, shift, count;
  std::vector<std::byte> bytes;

  GuardedArray(size_t size_of_element, size_t displacement, size_t element_count)
      : element_bytes(size_of_element),
        shift(displacement),
        count(element_count),
        bytes(shift + (count + 1) * element_bytes, kGuard) {}

  std::byte* data() { return bytes.data() + shift; }
  const std::byte* data() const { return bytes.data() + shift; }
  bool guards_are_whole() const {
    for (size_t i = 0; i < shift; ++i) {
      if (bytes[i] != kGuard) return false;
    }
    for (size_t i = shift + count * element_bytes; i < bytes.size(); ++i) {
      if (bytes[i] != kGuard) return false;
    }
    return true;
  }

  static constexpr std::byte kGuard{0x5a};
};

// Where the parameters are written, and the old ones read.
enum class Output : uint8_t {
  apart,           // to memory of their own, whose old content is the old parameters
  over_gradients,  // over the gradients
  beside_old,      // to memory that is neither (compact form only)
};

struct Layout {
  DataType gradient = DataType::fp32;
  DataType parameter = DataType::fp32;
  MomentType moment = MomentType::fp32;  // no codes, which moment_codes_test.cpp has
  MasterForm form = MasterForm::whole;
  Output output = Output::apart;
};

inline std::string name_of(const Layout& l) {
  return std::string(name_of(l.gradient)) + " gradients, " + std::string(name_of(l.parameter)) +
         " parameters" +
         (l.output == Output::over_gradients ? " over them"
          : l.output == Output::apart        ? ""
                                             : " beside old ones") +
         ", " + std::string(name_of(l.moment)) + " moments, " + text_of(RecordLayout{l.form, 0});
}

struct UpdateProblem {
  OptimizerSettings settings;
  Layout layout;
  size_t count;
  RecordLayout record;
  GuardedArray masters, gradients, parameters, old_parameters;
  std::vector<GuardedArray> moments;

  UpdateProblem(const OptimizerSettings& optimizer, const Layout& types, size_t element_count, size_t shift)
      : settings(optimizer),
        layout(types),
        count(element_count),
        record{layout.form, moment_count(settings.kind, settings.momentum), layout.moment},
        masters(master_bytes_of(layout.form), shift, count),
        gradients(bytes_of(layout.gradient), shift, count),
        parameters(bytes_of(layout.parameter), shift, count),
        old_parameters(bytes_of(layout.parameter), shift, count),
        moments(record.moment_count, GuardedArray(bytes_of(layout.moment), shift, count)) {}

  void fill_state(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < count; ++i) {
      set_master(i, normal(random));
      set_moment(0, i,
                 settings.kind == OptimizerKind::adagrad ? std::abs(normal(random)) : 0.1f * normal(random));
      set_moment(1, i, std::abs(0.01f * normal(random)));
    }
  }
  void fill_gradients(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < count; ++i) set_gradient(i, normal(random));
  }
  // Any bit patterns: denormals, infinities and NaN among them; second moments not negative, as they never
  // are.
  void fill_with_any_bits(std::mt19937& random) {
    const auto any = [&] { return std::bit_cast<float>(static_cast<uint32_t>(random())); };
    for (size_t i = 0; i < count; ++i) {
      set_master(i, any());
      set_moment(0, i, settings.kind == OptimizerKind::adagrad ? std::abs(any()) : any());
      set_moment(1, i, std::abs(any()));
      set_gradient(i, any());
    }
  }

  float gradient(size_t i) const { return element(gradients.data(), layout.gradient, i); }
  void set_gradient(size_t i, float value) { set_element(gradients.data(), layout.gradient, i, value); }
  float moment(size_t k, size_t i) const {
    return element(moments[k].data(), number_type_of(layout.moment), i);
  }
  void set_moment(size_t k, size_t i, float value) {
    if (k < moments.size()) set_element(moments[k].data(), number_type_of(layout.moment), i, value);
  }
  // Before an update of the compact form the upper halves are the old parameters, after it the new ones.
  float master(size_t i, bool updated) const {
    if (layout.form == MasterForm::whole) return element(masters.data(), DataType::fp32, i);
    std::byte joined[sizeof(float)];
    join_masters(InstructionSet::scalar, layout.form,
                 (updated ? output() : old()) + i * bytes_of(layout.parameter),
                 masters.data() + i * masters.element_bytes, joined, 1);
    return element(joined, DataType::fp32, 0);
  }
  void set_master(size_t i, float value) {
    if (layout.form == MasterForm::whole) return set_element(masters.data(), DataType::fp32, i, value);
    split_masters(InstructionSet::scalar, layout.form, reinterpret_cast<const std::byte*>(&value),
                  const_cast<std::byte*>(old()) + i * bytes_of(layout.parameter),
                  masters.data() + i * masters.element_bytes, 1);
  }
  float parameter(size_t i) const { return element(output(), layout.parameter, i); }

  const std::byte* old() const {
    return layout.output == Output::apart ? parameters.data() : old_parameters.data();
  }
  const std::byte* output() const {
    return layout.output == Output::over_gradients ? gradients.data() : parameters.data();
  }

  // Of elements [first, first + run); all of them without an argument.
  void update(InstructionSet set, const OptimizerStep& step) { update(set, step, 0, count); }
  void update(InstructionSet set, const OptimizerStep& step, size_t first, size_t run) {
    testing::ArrayRun arrays{
        .layout = record,
        .master = masters.data() + first * masters.element_bytes,
        .gradients = gradients.data() + first * gradients.element_bytes,
        .gradient_type = layout.gradient,
        .parameters = const_cast<std::byte*>(output()) + first * parameters.element_bytes,
        .parameter_type = layout.parameter,
        .old_parameters = old() + first * bytes_of(layout.parameter),
        .element_count = run};
    for (size_t k = 0; k < moments.size(); ++k) {
      arrays.moments[k] = moments[k].data() + first * moments[k].element_bytes;
    }
    testing::update_arrays(set, step, arrays);
  }
  // After an update: what it wrote becomes the old parameters of the next.
  void keep_parameters() {
    if (layout.form == MasterForm::whole || layout.output == Output::apart) return;
    std::copy_n(output(), count * bytes_of(layout.parameter), old_parameters.data());
  }

  // Nothing before or after the arrays was written.
  bool guards_are_whole() const {
    for (const GuardedArray& array : moments) {
      if (!array.guards_are_whole()) return false;
    }
    return masters.guards_are_whole() && gradients.guards_are_whole() && parameters.guards_are_whole() &&
           old_parameters.guards_are_whole();
  }

  std::string name() const;
};

// Calls body(Layout) for every combination that is allowed.
template <typename Body>
void for_every_layout(Body body) {
  // Each call begins where the one before has ended.
  static uint64_t layouts = 0;
  const auto look_at = [&](const Layout& layout) {
    if (layouts++ % testing::kOneIn == 0) body(layout);
  };
  for (const MomentType moment : {MomentType::fp32, MomentType::bf16}) {
    for (const DataType gradient : kEveryType) {
      for (const DataType parameter : kEveryType) {
        look_at(Layout{gradient, parameter, moment, MasterForm::whole, Output::apart});
        if (bytes_of(gradient) != bytes_of(parameter)) continue;
        look_at(Layout{gradient, parameter, moment, MasterForm::whole, Output::over_gradients});
      }
      for (const MasterForm form : {MasterForm::remainder, MasterForm::parameter}) {
        const DataType parameter = master_parameter_type(form);
        for (const Output output : {Output::apart, Output::beside_old, Output::over_gradients}) {
          if (output == Output::over_gradients && bytes_of(gradient) != bytes_of(parameter)) continue;
          look_at(Layout{gradient, parameter, moment, form, output});
        }
      }
    }
  }
}

// Every optimizer with every option, with and without decay.
inline std::vector<OptimizerSettings> every_settings() {
  std::vector<OptimizerSettings> all;
  for (const double weight_decay : {0.0, 0.1}) {
    const OptimizerSettings common{.lr = 2e-3, .beta1 = 0.9, .beta2 = 0.98, .weight_decay = weight_decay};
    const auto add = [&](OptimizerKind kind, auto... change) {
      OptimizerSettings settings = common;
      settings.kind = kind;
      (change(settings), ...);
      all.push_back(settings);
    };
    for (const bool adamw_mode : {false, true}) {
      for (const bool bias_correction : {false, true}) {
        add(OptimizerKind::adam, [&](OptimizerSettings& s) {
          s.adamw_mode = adamw_mode;
          s.bias_correction = bias_correction;
        });
      }
    }
    add(OptimizerKind::adagrad);
    add(OptimizerKind::lion);
    add(OptimizerKind::sgd);
    add(OptimizerKind::sgd, [](OptimizerSettings& s) { s.momentum = 0.9; });
    add(OptimizerKind::sgd, [](OptimizerSettings& s) { s.momentum = 0.9, s.dampening = 0.3; });
    add(OptimizerKind::sgd, [](OptimizerSettings& s) { s.momentum = 0.9, s.nesterov = true; });
  }
  return all;
}

inline std::string name_of(const OptimizerSettings& s) {
  constexpr std::array kNames = {"Adam", "Adagrad", "Lion", "SGD", "Muon"};
  static_assert(kNames.size() == testing::enumerator_count<OptimizerKind>());
  std::string name = kNames[static_cast<size_t>(s.kind)];
  if (s.kind == OptimizerKind::adam) {
    name += std::string(s.adamw_mode ? "W" : "") + (s.bias_correction ? "" : " without bias correction");
  }
  if (s.kind == OptimizerKind::sgd) {
    name += ", momentum " + std::to_string(s.momentum) + ", dampening " + std::to_string(s.dampening) +
            (s.nesterov ? ", nesterov" : "");
  }
  return name + ", weight decay " + std::to_string(s.weight_decay);
}

inline std::string UpdateProblem::name() const {
  return name_of(settings) + ", " + std::to_string(count) + " elements displaced by " +
         std::to_string(masters.shift) + " bytes, " + name_of(layout);
}

}  // namespace terrace
