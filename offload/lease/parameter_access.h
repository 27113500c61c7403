// ParameterAccess: how operations reach parameters and gradients, wherever those live between uses.
// An operation opens a Lease for the tensors it needs, computes on the pointers, and lets the lease go.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include <terrace/memory/space/tensor.h>

namespace terrace {

// Where an operation writes a gradient: as many elements as the tensor, in the tensor's own data type.
struct GradientView {
  std::byte* data = nullptr;
  // True when an earlier use of this micro-batch has written here: the operation computes its whole
  // contribution in fp32 and adds it once, value = round(to_float(value) + contribution). False: it
  // overwrites.
  bool accumulate = false;
};

// One use at a time, all calls from one thread.
class ParameterAccess {
 public:
  virtual ~ParameterAccess() = default;

  // Makes the tensors readable until end_use(); for backward uses of trainable tensors also their gradients
  // writable. `operation` is the key of this use: the same in every step, different for every use within a
  // step. May block while bytes arrive; throws Error when they cannot.
  virtual void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) = 0;
  // Throws nothing of what it does, since destructors call it: the next call reports that. Error(misuse)
  // where no use is open.
  virtual void end_use() = 0;

  // The uses that follow belong to this micro-batch of the step; 0 at first. Only where several are open
  // together (OffloadOptions::layer_major) does it matter.
  virtual void select_micro_batch(uint32_t) {}

  // Valid between begin_use and end_use for the tensors named there. The address of a parameter is the same
  // in every use.
  virtual const std::byte* parameter(TensorId tensor) const = 0;
  virtual GradientView gradient(TensorId tensor) = 0;
};

class Lease {
 public:
  Lease(ParameterAccess& access, std::string_view operation, std::span<const TensorId> tensors, UseKind kind)
      : access_(access) {
    access_.begin_use(operation, tensors, kind);
  }
  ~Lease() { access_.end_use(); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  template <typename T>
  const T* parameter(TensorId tensor) const {
    return reinterpret_cast<const T*>(access_.parameter(tensor));
  }
  GradientView gradient(TensorId tensor) const { return access_.gradient(tensor); }

 private:
  ParameterAccess& access_;
};

}  // namespace terrace
