// UpdateChoice finds the fastest mode of the update from the times of steps that run it after backward.
// Where the processor computes the model, another mode can only save the time in which the update waits for
// the drives while there is something to compute: its arithmetic takes the same cores wherever it runs.
// Beside a device that computes by itself it can save all of the update. The class never changes a number of
// the training.
//
// Let a step have A micro-batches, and let F, B and U be the times of forward, backward and update. W is the
// part of U that another mode can save (above), P the drives' time for the parameters of one forward or
// backward pass, G their time for the gradients that one backward pass spills, and e the embeddings' part of
// the weights:
//   after_backward   F + B + U
//   next_forward     less min(F / A - P, W (1 - e)): forward needs the embeddings before it computes anything
//   during_backward  less min(B / A - P - G, W (1 - e)) if each gradient can be applied as soon as it is
//                    complete; the embeddings' is the last. Else records are only read ahead into M bytes:
//                    less min(B / A - P - G, the wait for the drives, their time for M bytes)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/offload/offloader.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/reference/setup/training_setup.h>

namespace terrace {

// The facts that do not change from step to step.
struct UpdateRules {
  uint32_t accumulation_steps = 1;  // passes through the model; an update runs beside one of them
  bool clips = false;               // the update needs the norm of all gradients
  bool device_computes = false;     // the model, beside the processor
  bool scales_loss = false;         // the update waits for all gradients: an overflow skips the step
  double embedding_part = 0;        // part of the trainable weights, 0 to 1
  uint64_t read_ahead_bytes = 0;
};
UpdateRules update_rules(const TrainConfig& config, const TrainingSetup& setup);

// The times of one step in seconds, and its bytes.
struct UpdateTimes {
  double forward = 0;
  double backward = 0;
  double update = 0;
  double disk_wait = 0;        // part of update
  double update_bytes = 0;     // moved on the drives by the update, both ways
  double parameter_bytes = 0;  // read from the drives by forward and backward
  double gradient_bytes = 0;   // spilled gradients, moved on the drives by backward, both ways
};

// Returns the bytes of a step, without times.
UpdateTimes disk_bytes_of(const OffloadCounters& moved);

struct UpdatePrediction {
  double after_backward = 0;  // seconds per step
  double next_forward = 0;
  double during_backward = 0;
  UpdateMode fastest = UpdateMode::after_backward;
};
// Another mode than after_backward must save 2 % of a step. during_backward, in which a gradient that is not
// finite ends the run, must save 2 % more than next_forward.
UpdatePrediction predict_update(const UpdateTimes& times, const UpdateRules& rules);

// Decides once, after the first steps, and looks at the outcome once.
class UpdateChoice {
 public:
  struct Decision {
    UpdateMode mode;
    std::string reason;  // one line with figures
  };

  explicit UpdateChoice(const UpdateRules& rules) : rules_(rules) {}

  // Steps that run after backward before the decision; the first does not count.
  static constexpr uint32_t kMeasuredSteps = 3;
  // Steps in another mode until it is judged; the first, in which two updates may meet, does not count.
  static constexpr uint32_t kJudgedSteps = 3;

  // Call after each step in which an update was applied. The returned decision holds from the next step on.
  std::optional<Decision> add(uint64_t step, const UpdateTimes& times);
  bool is_done() const { return state_ == State::done; }

 private:
  enum class State : uint8_t { measures, judges, done };

  Decision decide(uint64_t step);
  std::optional<Decision> judge(uint64_t step);

  UpdateRules rules_;
  State state_ = State::measures;
  std::vector<UpdateTimes> seen_;
  UpdateMode mode_ = UpdateMode::after_backward;
  double before_ = 0;  // seconds of a step after backward
};

}  // namespace terrace
