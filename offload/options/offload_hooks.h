// OffloadHooks: who watches an offloader, or takes the place of a part of it. None of them changes a result.
// All of them outlive the offloader; what is null is not there.
#pragma once

#include <functional>
#include <memory>

#include <terrace/aio/engine.h>
#include <terrace/base/clock.h>

namespace terrace {

class DecisionLog;
class DecisionSource;

namespace io {
class FileEvents;
}
class StepEvents;
class DeviceArithmetic;

struct OffloadHooks {
  // Wraps every engine the offloader makes (faults, tracing): first the step thread's, then that of the
  // parameter reads where parameters are on nvme, then that of the commits where there are any, then that of
  // gradients on their way to nvme where it is not that of the parameter reads; that of the updates when a
  // mode other than after_backward is first set, and one for every PinnedEpoch when it is made.
  std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)> decorate_engine;
  // Told of every change of the disk but the engines' writes. For simulated power cuts.
  io::FileEvents* file_events = nullptr;
  // Told of every decision about device slots, and a source of those to be made.
  DecisionLog* decisions = nullptr;
  DecisionSource* replay = nullptr;
  // By which the step's time is charged and the rates of paths are observed; null: the steady one.
  const Clock* clock = nullptr;
  // Computes with what rests in device memory where the host cannot reach that; null: the workers do. Its
  // sums take the work memory between two micro-batches.
  DeviceArithmetic* device_arithmetic = nullptr;
  // Records what happens in steps. Whoever trains tells it
  // where steps begin and end.
  StepEvents* step_events = nullptr;
};

}  // namespace terrace
