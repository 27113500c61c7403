#include <terrace/offload/state/call_order.h>

#include <fmt/format.h>

#include <terrace/base/error.h>

namespace terrace {

CallOrder::CallOrder(const FlatSpace& space, uint32_t micro_batches, bool layer_major)
    : space_(space), micro_batches_(micro_batches), layer_major_(layer_major) {}

std::string CallOrder::what_is_open() const {
  if (uses_ > 0) return fmt::format("{} holds its lease", operation_);
  if (open_ == Open::nothing) return "neither a step nor an evaluation is open";
  if (open_ == Open::evaluation) return "an evaluation is open";
  if (layer_major_ && micro_batch_ < micro_batches_)
    return fmt::format("a step is open, with its {} micro-batches", micro_batches_);
  if (micro_batch_ < micro_batches_)
    return fmt::format("a step is open, in micro-batch {} of {}", micro_batch_ + 1, micro_batches_);
  return fmt::format("a step is open, and its {} micro-batches have ended", micro_batches_);
}

void CallOrder::refuse(std::string_view action, std::string_view subject, std::string_view advice,
                       ErrorKind kind) const {
  throw Error(kind, {std::string(action), std::string(subject), what_is_open(), std::string(advice)});
}

void CallOrder::require_nothing_open(std::string_view action) const {
  if (open_ != Open::nothing)
    refuse(action, "the state in memory",
           "end it first; after a failure resume from the last commit or checkpoint", ErrorKind::cancelled);
}

void CallOrder::require_step_between_uses(std::string_view action) const {
  if (open_ != Open::step || uses_ > 0) refuse(action, "", "call it within a step, between two uses");
}

void CallOrder::require_micro_batch(std::string_view action) const {
  require_step_between_uses(action);
  if (micro_batch_ >= micro_batches_) refuse(action, "", "update or abandon the step");
}

void CallOrder::require_whole_step(std::string_view action) const {
  require_step_between_uses(action);
  if (micro_batch_ < micro_batches_)
    refuse(action, "", "end every micro-batch of the step before its update");
}

void CallOrder::require_use(std::string_view operation, UseKind kind) const {
  constexpr std::string_view kCannot = "cannot lease tensors to";
  if (kind == UseKind::inference && open_ != Open::evaluation)
    refuse(kCannot, operation, "uses for inference belong between begin_evaluation() and end_evaluation()");
  if (kind != UseKind::inference && (open_ != Open::step || micro_batch_ >= micro_batches_))
    refuse(kCannot, operation, "uses of training belong into a micro-batch of a step");
}

void CallOrder::require_tensor(std::string_view action, TensorId tensor) const {
  if (index_of(tensor) < space_.tensor_count()) return;
  throw Error(ErrorKind::misuse,
              {std::string(action), fmt::format("tensor {}", index_of(tensor)),
               fmt::format("there are {}", space_.tensor_count()), "count tensors from 0"});
}

void CallOrder::require_leased(TensorId tensor, bool is_leased) const {
  constexpr std::string_view kCannot = "cannot read the parameters of";
  require_tensor(kCannot, tensor);
  if (!is_leased) refuse(kCannot, space_.tensor(tensor).name, "name the tensor in a lease");
}

void CallOrder::require_gradient(TensorId tensor, bool is_leased_backward) const {
  constexpr std::string_view kCannot = "cannot add to the gradient of";
  require_tensor(kCannot, tensor);
  const TensorSpec& spec = space_.tensor(tensor);
  if (!is_leased_backward) refuse(kCannot, spec.name, "name the tensor in a lease that goes backward");
  if (!spec.trainable) refuse(kCannot, spec.name, "the tensor is frozen and has no gradient");
}

void CallOrder::require_hand_over(TensorId tensor) const {
  constexpr std::string_view kCannot = "cannot take the gradient of";
  require_tensor(kCannot, tensor);
  const TensorSpec& spec = space_.tensor(tensor);
  if (!spec.trainable) refuse(kCannot, spec.name, "the tensor is frozen and has no gradient");
  if (open_ != Open::step || micro_batch_ >= micro_batches_)
    refuse(kCannot, spec.name, "hand it over in a micro-batch of a step");
}

void CallOrder::end_evaluation() {
  if (open_ != Open::evaluation || uses_ > 0)
    refuse("cannot end the evaluation", "", "begin one, and end its leases");
  open_ = Open::nothing;
}

void CallOrder::begin_use(std::string_view operation) {
  operation_ = operation;
  ++uses_;
}

void CallOrder::require_use_to_end() const {
  if (uses_ == 0) refuse("cannot end a lease", "", "begin one first");
}

void CallOrder::end_use(std::string_view youngest) {
  operation_ = youngest;
  --uses_;
}

void CallOrder::require_selectable(uint32_t micro_batch) const {
  const bool is_open = open_ == Open::step && uses_ == 0 && micro_batch_ < micro_batches_;
  if (is_open && layer_major_ && micro_batch < micro_batches_) return;
  refuse(fmt::format("cannot select micro-batch {} of {}", micro_batch, micro_batches_), "",
         "micro-batches are selected where all of a step are open together, between uses and by their number "
         "from 0");
}

}  // namespace terrace
