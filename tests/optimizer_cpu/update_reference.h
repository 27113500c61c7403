// One element of every optimizer in fp64, as torch.optim and the papers write it, and how far fp32 may be
// from it.
//
// A bound counts the fp32 roundings on the way, those of the constants included, each half a unit in the last
// place of the magnitudes that it applies to, and carries what is uncertain before into what follows.
#pragma once

#include <cmath>
#include <cstdint>

#include <terrace/base/data_type.h>
#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

struct Reference {
  static constexpr double kHalfUlp = 0x1p-24;     // the largest relative error of one fp32 rounding
  static constexpr double kHalfBf16Ulp = 0x1p-8;  // and of one to bf16
  static constexpr double kDenormal = 0x1p-148;   // and the largest absolute ones below the normal numbers
  static constexpr double kBf16Denormal = 0x1p-133;

  double p = 0;
  double moment[2] = {0, 0};
  double p_bound = 0;
  double moment_bound[2] = {0, 0};

  void update(const OptimizerSettings& s, uint64_t step, double gradient_scale, double gradient) {
    g_ = gradient * gradient_scale;
    g_bound_ = 2 * kHalfUlp * std::abs(g_) + kDenormal;
    const bool decoupled = s.kind == OptimizerKind::lion || (s.kind == OptimizerKind::adam && s.adamw_mode);
    if (!decoupled) {
      g_bound_ += 3 * kHalfUlp * (std::abs(g_) + std::abs(s.weight_decay * p));
      g_ += s.weight_decay * p;
    }
    before_ = p;
    decay_ = decoupled ? s.lr * s.weight_decay : 0;
    p *= 1 - decay_;
    switch (s.kind) {
      case OptimizerKind::adam:
        return adam(s, static_cast<double>(step));
      case OptimizerKind::adagrad:
        return adagrad(s);
      case OptimizerKind::lion:
        return lion(s);
      case OptimizerKind::sgd:
        return sgd(s, step == 1);
      case OptimizerKind::muon:
        break;  // muon_test.cpp
    }
  }

  // Of a moment that is stored in `type`.
  double stored_bound(size_t k, DataType type) const {
    if (type == DataType::fp32) return moment_bound[k];
    return moment_bound[k] + kHalfBf16Ulp * (std::abs(moment[k]) + moment_bound[k]) + kBf16Denormal;
  }

 private:
  // moment k = a * moment k + b * g
  void average(size_t k, double a, double b) {
    moment_bound[k] =
        4 * kHalfUlp * (std::abs(a * moment[k]) + std::abs(b * g_)) + std::abs(b) * g_bound_ + kDenormal;
    moment[k] = a * moment[k] + b * g_;
  }
  // moment k = a * moment k + b * g * g
  void average_squares(size_t k, double a, double b) {
    moment_bound[k] =
        5 * kHalfUlp * (a * moment[k] + b * g_ * g_) + b * 2.1 * std::abs(g_) * g_bound_ + kDenormal;
    moment[k] = a * moment[k] + b * g_ * g_;
  }
  void move_by(double move, double move_bound) {
    p -= move;
    p_bound = 3 * kHalfUlp * (std::abs(before_) * (decay_ + 1) + std::abs(move)) + move_bound + kDenormal;
  }
  // The relative error of a square root is half that of its radicand; all of it is counted.
  static double relative_bound(double value, double bound) { return value > 0 ? bound / value : 0; }

  void adam(const OptimizerSettings& s, double t) {
    average(0, s.beta1, 1 - s.beta1);
    average_squares(1, s.beta2, 1 - s.beta2);
    const double correction1 = s.bias_correction ? 1 - std::pow(s.beta1, t) : 1;
    const double correction2 = s.bias_correction ? 1 - std::pow(s.beta2, t) : 1;
    const double denominator = std::sqrt(moment[1]) / std::sqrt(correction2) + s.eps;
    const double move = s.lr / correction1 * moment[0] / denominator;
    move_by(move, 8 * kHalfUlp * std::abs(move) + s.lr / correction1 * moment_bound[0] / denominator +
                      std::abs(move) * relative_bound(moment[1], moment_bound[1]));
  }

  void adagrad(const OptimizerSettings& s) {
    average_squares(0, 1, 1);
    const double denominator = std::sqrt(moment[0]) + s.eps;
    const double move = s.lr * g_ / denominator;
    move_by(move, 6 * kHalfUlp * std::abs(move) + s.lr * g_bound_ / denominator +
                      std::abs(move) * relative_bound(moment[0], moment_bound[0]));
  }

  void lion(const OptimizerSettings& s) {
    const double c = s.beta1 * moment[0] + (1 - s.beta1) * g_;
    const double c_bound = 4 * kHalfUlp * (std::abs(s.beta1 * moment[0]) + std::abs((1 - s.beta1) * g_)) +
                           (1 - s.beta1) * g_bound_;
    // Where fp32 cannot tell the sign, it may be either.
    const bool sign_is_known = std::abs(c) > c_bound;
    move_by(c > 0 ? s.lr : c < 0 ? -s.lr : 0, kHalfUlp * s.lr + (sign_is_known ? 0 : 2 * s.lr));
    average(0, s.beta2, 1 - s.beta2);
  }

  void sgd(const OptimizerSettings& s, bool first) {
    double direction = g_;
    double direction_bound = g_bound_;
    if (s.momentum != 0) {
      average(0, first ? 0 : s.momentum, first ? 1 : 1 - s.dampening);
      direction = moment[0];
      direction_bound = moment_bound[0];
      if (s.nesterov) {
        direction = g_ + s.momentum * moment[0];
        direction_bound = g_bound_ + s.momentum * moment_bound[0] +
                          3 * kHalfUlp * (std::abs(g_) + std::abs(s.momentum * moment[0]));
      }
    }
    move_by(s.lr * direction, s.lr * direction_bound + 2 * kHalfUlp * std::abs(s.lr * direction));
  }

  double g_ = 0, g_bound_ = 0, before_ = 0, decay_ = 0;
};

}  // namespace terrace
