// OffloadHooks: observers of an offloader, and replacements for parts of it. None of them changes a result.
// All of them outlive the offloader; each may be null.
#pragma once

#include <functional>
#include <memory>

#include <terrace/aio/engine.h>
#include <terrace/base/clock.h>

namespace terrace {

class Communicator;
class DecisionLog;

namespace io {
class FileEvents;
}
class StepEvents;
class DeviceArithmetic;

struct OffloadHooks {
  // Wraps every engine the offloader makes (faults, tracing) but the device's own file reader. The
  // constructor makes them in this order: the step thread's engine; the reader's, where parameters are on
  // nvme; the committer's, where commits are kept; the reader's, where only gradients or activations need it.
  // The engine of the updates is made when a mode other than after_backward is first set, and one more with
  // every PinnedCommit.
  std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)> decorate_engine;
  // Receives every change of a drive but the engines' writes, for simulated power cuts.
  io::FileEvents* file_events = nullptr;
  // `decisions` receives every decision about device slots.
  DecisionLog* decisions = nullptr;
  // The clock of the step's time account and of the observed rates of paths; null: the steady clock.
  const Clock* clock = nullptr;
  // Computes on gradients and records in device memory where the host cannot reach it; null: the workers
  // compute. Its sums use the work memory between two micro-batches.
  DeviceArithmetic* device_arithmetic = nullptr;
  // How this rank reaches the others; needed where OffloadOptions::ranks is above 1 and the run is not dry.
  Communicator* communicator = nullptr;
  // Where this run and others each train a part of one model: the ranks of all parts, those of `communicator`
  // among them. The norm is that of the model, and all parts update or skip together; null: there is one
  // part. It has the bits of a run that has the model whole where no tile of that holds elements of two
  // parts.
  Communicator* model_ranks = nullptr;
  // Records the events of steps. The training program tells it where steps begin and end.
  StepEvents* step_events = nullptr;
};

}  // namespace terrace
