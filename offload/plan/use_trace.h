// TensorUse and UseRecorder: the uses of one training step in terms of tensors. They are known before the
// first step when the model can be run dry.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/space/schedule.h>
#include <terrace/offload/lease/parameter_access.h>

namespace terrace {

struct TensorUse {
  std::string operation;
  UseKind kind = UseKind::forward;
  std::vector<TensorId> tensors;
  uint32_t micro_batch = 0;
};

// UseRecorder records uses; its addresses are null. A model run dry on it yields the model's trace.
class UseRecorder final : public ParameterAccess {
 public:
  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override;
  void end_use() override {}
  void select_micro_batch(uint32_t micro_batch) override { micro_batch_ = micro_batch; }
  const std::byte* parameter(TensorId) const override { return nullptr; }
  GradientView gradient(TensorId) override { return {}; }

  std::span<const TensorUse> trace() const { return trace_; }
  std::vector<TensorUse> take_trace() { return std::move(trace_); }

 private:
  std::vector<TensorUse> trace_;
  uint32_t micro_batch_ = 0;
};

// The chunks that hold any of the tensors, ascending, each once. Reuses `chunks`' memory.
void collect_chunks(const SpaceLayout& space, std::span<const TensorId> tensors,
                    std::vector<ChunkId>& chunks);

// By chunk: true if an update changes it.
std::vector<bool> renewed_chunks(const FlatSpace& space);

// The schedule of a trace. Gradients occupy slots until they are complete, or to the step's end where they
// `stay`.
enum class CompleteGradients : uint8_t { leave, stay };
Schedule schedule_of(const FlatSpace& space, std::span<const TensorUse> trace, CompleteGradients complete);

// The most chunk slots (parameters and gradients together) that the device must hold at one moment of the
// trace: the parameters of the use in progress plus every gradient that is not yet complete.
// `resident_parameters` and `resident_gradients` say which roles never leave the device.
struct SlotDemand {
  uint32_t slots = 0;
  std::string operation;  // the operation with the peak
};
SlotDemand minimum_slots(const SpaceLayout& space, std::span<const TensorUse> trace, bool resident_parameters,
                         bool resident_gradients);

}  // namespace terrace
