// CallOrder: the order in which an Offloader's calls may follow each other. It knows what is open (a step
// with its micro-batches, an evaluation, a use of tensors) and nothing about the work of the calls.
//
// A call out of order throws Error(misuse), which says what is open, and changes nothing: the caller may go
// on with the right call. So an embedding interpreter can let its users make mistakes.
//
//   begin_step  { [select_micro_batch]  { begin_use  end_use | hand_over }  end_micro_batch }
//     update | abandon_step
//   begin_evaluation  { begin_use  end_use }  end_evaluation
//
// Uses nest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/base/error.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/space/tensor.h>

namespace terrace {

class CallOrder {
 public:
  // `micro_batches` is the number per step; with `layer_major` all of a step are open together.
  CallOrder(const FlatSpace& space, uint32_t micro_batches, bool layer_major);

  // --- Open calls ---
  bool nothing_is_open() const { return open_ == Open::nothing; }
  // The open step's current or selected micro-batch; equal to the number of micro-batches when all have
  // ended.
  uint32_t micro_batch() const { return micro_batch_; }
  bool last_micro_batch_is_open() const { return layer_major_ || micro_batch_ + 1 == micro_batches_; }

  // --- Demands; `action` begins the error's message: "cannot commit" ---
  // Demands that nothing is open, or throws Error(cancelled): a failure within a step leaves the step open.
  void require_nothing_open(std::string_view action) const;
  // Demands an open step without an open use.
  void require_step_between_uses(std::string_view action) const;
  // Demands that all micro-batches of the open step have ended.
  void require_whole_step(std::string_view action) const;
  // Demands that a micro-batch of the open step has not ended.
  void require_micro_batch(std::string_view action) const;
  // Demands that the micro-batch may be selected.
  void require_selectable(uint32_t micro_batch) const;
  // Demands that a use of this kind may begin.
  void require_use(std::string_view operation, UseKind kind) const;
  // Demands that the tensor exists.
  void require_tensor(std::string_view action, TensorId tensor) const;
  // Demand that an open use has the tensor; for its gradient that use must go backward and the tensor be
  // trained. `is_leased` says whether there is such a use.
  void require_leased(TensorId tensor, bool is_leased) const;
  void require_gradient(TensorId tensor, bool is_leased_backward) const;
  // Demands a micro-batch that has not ended, and a trained tensor.
  void require_hand_over(TensorId tensor) const;

  // --- Changes of order, once a call was allowed and done ---
  void begin_step() { open_ = Open::step, micro_batch_ = 0; }
  void begin_evaluation() { open_ = Open::evaluation; }
  void end_evaluation();  // demands an open evaluation too
  // The operation of the youngest open use stays until the next of these calls.
  void begin_use(std::string_view operation);
  void end_use(std::string_view youngest);
  void require_use_to_end() const;
  void select_micro_batch(uint32_t micro_batch) { micro_batch_ = micro_batch; }
  void select_last_micro_batch() { micro_batch_ = micro_batches_ - 1; }
  void end_micro_batch() { ++micro_batch_; }  // layer_major: with the last all have ended
  void end_step() { open_ = Open::nothing; }

 private:
  enum class Open : uint8_t { nothing, step, evaluation };
  [[noreturn]] void refuse(std::string_view action, std::string_view subject, std::string_view advice,
                           ErrorKind kind = ErrorKind::misuse) const;
  std::string what_is_open() const;

  const FlatSpace& space_;
  const uint32_t micro_batches_;
  const bool layer_major_;
  Open open_ = Open::nothing;
  uint32_t micro_batch_ = 0;
  uint32_t uses_ = 0;           // that are open
  std::string_view operation_;  // of the youngest
};

}  // namespace terrace
