// OperationTimes: the time of each operation of a model on this machine. It runs one layer and the two ends
// of the model for real, at their real shapes, on memory of its own, on the host or on a device. If that
// would take long, or much memory of the device, it computes fewer tokens and scales the times up. On a
// device nothing is queued when a time begins and when it ends: the time is that of the operation and not of
// queueing it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <terrace/base/workers.h>
#include <terrace/reference/model/transformer/model.h>
#include <terrace/reference/planning/trial_memory.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

struct OperationTime {
  double leased_seconds = 0;  // while it holds its tensors
  double after_seconds = 0;   // from then until the next operation asks for its tensors
};

class OperationTimes {
 public:
  // Measures micro-batches of `micro_batch` sequences of `model` for about `wanted_seconds`. Throws
  // Error(capacity) when place.device_bytes are too few for the smallest trial.
  OperationTimes(const Model& model, uint32_t micro_batch, Workers& workers, const TrialPlace& place = {},
                 double wanted_seconds = 1.0);
  // Takes a rate for given: so many multiplications and additions in a second, two for each element and token
  // of a micro-batch, and four backward. `origin` says in one word where the rate is from.
  OperationTimes(uint64_t tokens, double flops, std::string_view origin = "given");

  // `operation` is the key of a use ("mb0/h.3.mlp.fc/forward"), whose tensors have `elements` elements.
  OperationTime of(std::string_view operation, uint64_t elements) const;
  // Makes every time that was measured so many times as long.
  void slow_down(double factor);
  // Describes the trial: "one layer and 512 of 50257 words, 1 x 256 tokens, 3 times, measured now".
  const std::string& description() const { return description_; }

 private:
  struct Measured {
    double leased_seconds = 0;
    double seconds_per_element = 0;  // leased_seconds per element of the tensors
    double after_seconds = 0;
  };
  class Timer;
  // Returns the key without the micro-batch and the numbers of layer and part.
  static std::string kind_of(std::string_view operation);

  double element_seconds_ = 0;  // of a given rate, forward; 0: times are measured
  double vocabulary_part_ = 1;  // the measured part of the vocabulary
  std::map<std::string, Measured> times_;
  std::string description_;
};

}  // namespace terrace
