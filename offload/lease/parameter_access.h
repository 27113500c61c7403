// ParameterAccess: how operations reach parameters and gradients, wherever those live between uses. An
// operation opens a Lease for the tensors it needs, computes on the pointers, and ends the lease.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include <terrace/memory/space/tensor.h>

namespace terrace {

// GradientView: the memory for an operation's gradient, with as many elements as the tensor, in its own data
// type.
struct GradientView {
  std::byte* data = nullptr;
  // True when an earlier use of this micro-batch has written here: the operation computes its whole
  // contribution in fp32 and adds it once, value = round(to_float(value) + contribution). If false, the
  // operation overwrites.
  bool accumulate = false;
};

// Uses nest; all calls come from one thread at a time.
class ParameterAccess {
 public:
  virtual ~ParameterAccess() = default;

  // Makes the tensors readable until end_use(), and in a backward use the gradients of trainable tensors
  // writable. `operation` is the key of this use: the same in every step, different for every use within a
  // step. The call may block while bytes arrive; it throws Error when they cannot. Uses may be open around
  // it, with the same tensors among theirs.
  virtual void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) = 0;
  // Ends the use that began last. Destructors call end_use(), so it does not throw failures of its work: the
  // next call throws them. Throws Error(misuse) where no use is open.
  virtual void end_use() = 0;

  // Assigns the following uses to this micro-batch of the step; 0 at first. It matters only where several
  // micro-batches are open together (OffloadOptions::layer_major).
  virtual void select_micro_batch(uint32_t) {}

  // Both addresses are valid between begin_use and end_use, for the tensors named there. They are the same in
  // every use.
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
