// TensorUse: the uses of one training step in terms of tensors. They are known before the first step when the
// model can be run dry (UseRecorder), or when its modules are known (trace_of_units).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/space/schedule.h>
#include <terrace/offload/lease/parameter_access.h>
#include <terrace/offload/options/offload_options.h>

namespace terrace {

struct TensorUse {
  std::string operation;
  UseKind kind = UseKind::forward;
  std::vector<TensorId> tensors;
  uint32_t micro_batch = 0;
  uint32_t encloses = 0;  // how many of the uses behind it begin before it ends
};

// UseRecorder records uses; its addresses are null. A model run dry on it yields the model's trace.
class UseRecorder final : public ParameterAccess {
 public:
  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override;
  void end_use() override;
  void select_micro_batch(uint32_t micro_batch) override { micro_batch_ = micro_batch; }
  const std::byte* parameter(TensorId) const override { return nullptr; }
  GradientView gradient(TensorId) override { return {}; }

  std::span<const TensorUse> trace() const { return trace_; }
  std::vector<TensorUse> take_trace() { return std::move(trace_); }

 private:
  std::vector<TensorUse> trace_;
  std::vector<size_t> open_;  // in trace_
  uint32_t micro_batch_ = 0;
};

// TensorUnit: tensors that one operation uses together, forward and backward; a module of a model.
struct TensorUnit {
  std::string key;
  std::vector<TensorId> tensors;
};

// The trace of a step in which every micro-batch goes forward through all units and then backward through all
// of them in reverse. The operations are "<key>/forward" and "<key>/backward", in every micro-batch. With
// `layer_major` all micro-batches go through a unit before they go on to the next.
std::vector<TensorUse> trace_of_units(std::span<const TensorUnit> units, uint32_t micro_batches,
                                      bool layer_major = false);

// The chunks that hold any of the tensors, ascending, each once. Reuses `chunks`' memory.
void collect_chunks(const SpaceLayout& space, std::span<const TensorId> tensors,
                    std::vector<ChunkId>& chunks);

// By chunk: true if an update changes it.
std::vector<bool> renewed_chunks(const FlatSpace& space);

// How long the gradients that leases begin occupy slots: until they are complete, or to the step's end.
// elsewhere: leases begin none (GradientOrigin::handed_over, borrowed).
enum class LeasedGradients : uint8_t { leave, stay, elsewhere };
LeasedGradients leased_gradients(const OffloadOptions& options);

// The schedule of a trace.
Schedule schedule_of(const FlatSpace& space, std::span<const TensorUse> trace, LeasedGradients gradients);

// The most chunk slots (parameters and gradients together) that the device must hold at one moment of the
// trace: the parameters of the open uses plus every gradient that is not yet complete.
// `resident_parameters` and `resident_gradients` say which roles never leave the device; leases begin no
// gradients where these are `elsewhere`.
struct SlotDemand {
  uint32_t slots = 0;
  std::string operation;  // the operation with the peak
};
SlotDemand minimum_slots(const SpaceLayout& space, std::span<const TensorUse> trace, bool resident_parameters,
                         bool resident_gradients, LeasedGradients gradients = LeasedGradients::leave);
// The same for a step of which nothing is known: of one tensor the parameters and the gradient. No step that
// trains all tensors needs less. `operation` is the name of the tensor with the peak.
SlotDemand least_slots(const SpaceLayout& space, bool resident_parameters, bool resident_gradients,
                       LeasedGradients gradients = LeasedGradients::leave);

}  // namespace terrace
