#include <terrace/offload/update/matrix_update.h>

#include <terrace/base/error.h>
#include <terrace/base/option.h>

namespace terrace {

MatrixUpdate::MatrixUpdate(const RunContext& run, const GradientRuns& runs, HostArena& arena)
    : run_(run),
      runs_(runs),
      steps_(run, arena),
      tiles_(run.shards, run.plan.record_layout, run.instruction_set, steps_),
      turns_(run.space.chunk_count(), static_cast<uint32_t>(steps_.groups().size())) {
  if (empty()) return;
  if (run.options.states == Placement::none && run.options.hooks.device_arithmetic != nullptr)
    throw Error(ErrorKind::config, {"cannot train matrices by Muon", "with optimizer states in device memory",
                                    "the processor multiplies them, and does not reach that memory",
                                    "set " + Option::states + " to cpu or nvme"});
  for (uint32_t g = 0; g < groups().size(); ++g) {
    for (uint32_t c = groups()[g].first_chunk; c < groups()[g].end_chunk; ++c) turns_[c] = g;
  }
  weights_.resize(run.space.tensor_count());
}

void MatrixUpdate::begin(std::span<const OptimizerSettings> settings) {
  settings_.assign(settings.begin(), settings.end());
  tiles_.begin(weights_);
}

OptimizerStep MatrixUpdate::set_constants(TensorId tensor, uint64_t step, float gradient_scale) {
  const TensorSpec& spec = run_.space.tensor(tensor);
  const MuonSteps steps =
      make_muon_steps(settings_[spec.group], step, gradient_scale, spec.shape[0], spec.shape[1]);
  weights_[index_of(tensor)] = steps.weights;
  return steps.momentum;
}

void MatrixUpdate::make_steps(uint32_t group) {
  steps_.make(groups()[group], [this](TensorId tensor) -> const OptimizerSettings* {
    const bool is_left_out =
        run_.options.unused_gradients == UnusedGradients::skip && !runs_.has_gradient(tensor);
    return is_left_out ? nullptr : &settings_[run_.space.tensor(tensor).group];
  });
}

}  // namespace terrace
