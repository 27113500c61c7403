// OperationTimes: how long each operation of a model takes here, from running one layer and the two ends of
// it for real, at their real shapes, on memory of its own, on the host or on a device. Where that would take
// long, or much memory of the device, fewer tokens are computed and the times drawn out in proportion. On a
// device everything that was asked for is over when a time begins and when it ends: it is that of the
// operation, and not that of queueing it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <terrace/base/workers.h>
#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/model/transformer/model.h>
#include <terrace/runtime/train/planning/trial_memory.h>

namespace terrace {

struct OperationTime {
  double leased_seconds = 0;  // with its tensors
  double after_seconds = 0;   // and until the next one asks for its own
};

class OperationTimes {
 public:
  // Of micro-batches of `micro_batch` sequences of `model`. `wanted_seconds` is for how long to measure,
  // about. Throws Error(capacity) where place.device_bytes are too few for the least that can be tried.
  OperationTimes(const Model& model, uint32_t micro_batch, Workers& workers, const TrialPlace& place = {},
                 double wanted_seconds = 1.0);

  // `operation` is the key of a use ("mb0/h.3.mlp.fc/forward"), whose tensors have so many elements.
  OperationTime of(std::string_view operation, uint64_t elements) const;
  // What was run: "1 layer, 1 x 256 tokens, 3 times".
  const std::string& description() const { return description_; }

 private:
  struct Measured {
    double leased_seconds = 0;
    double seconds_per_element = 0;  // of these
    double after_seconds = 0;
  };
  class Timer;
  // Without the micro-batch and the numbers of layer and part.
  static std::string kind_of(std::string_view operation);

  double vocabulary_part_ = 1;  // of the whole vocabulary, was measured
  std::map<std::string, Measured> times_;
  std::string description_;
};

}  // namespace terrace
