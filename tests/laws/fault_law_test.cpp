// Law 3 and law 4 for the disk: whatever a request does wrong, at any moment of a step, becomes an Error that
// names what happened; no byte that is not as it was written reaches a weight, and nothing hangs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/error.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/reference/fault_spec.h>

#include "offload/toy_training.h"
#include "support/fault_engine.h"
#include "support/offloaders.h"
#include "support/sanitized.h"

namespace terrace::fault_law_test {
namespace {

// Which of the offloader's engines goes wrong; the last one is there where updates run beside the step.
enum class Victim : uint32_t { step_engine = 0, reader = 1, update_engine = 2 };

// Returns the Error's kind and text, or nothing when the training ended well.
struct Ending {
  std::optional<ErrorKind> kind;
  std::string text;
  std::vector<std::byte>
      state;  // parameters and records, as a checkpoint reads them, of a training that ended well
  uint64_t requests = 0;
};

using Decorate = std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)>;

// Trains two steps of the toy model with every engine decorated, and reads the state.
// With `halves` the device updates half of the chunks.
Ending train_decorated(const Decorate& decorate, UpdateMode mode = UpdateMode::after_backward,
                       bool halves = false) {
  const std::vector<TensorSpec> specs = toy::tensors(DataType::bf16, false);
  const FlatSpace space(specs, kTileElements);
  const std::vector<TensorUse> uses = toy::trace(specs, 1);
  const ScratchFolder folder;
  OffloadOptions options = toy::least_nvme_options(space, uses, folder.path());
  options.hooks.decorate_engine = decorate;
  if (halves) options.processor_share = 0.5, options.device_budget_bytes = kGiB;
  MemoryLog log;
  Workers workers(1);
  SimulatedDevice device({options.device_budget_bytes});
  Ending ending;
  try {
    Offloader offloader(space, options, uses, device, workers, log);
    toy::initialise(offloader);
    const std::vector<OptimizerSettings> groups = toy::groups();
    offloader.set_update_mode(mode);
    // During backward, gradients are applied as they land where they are not clipped.
    const double clip_norm = mode == UpdateMode::during_backward ? 0 : 1;
    for (uint64_t step = 1; step <= 2; ++step)
      toy::train_step(offloader, specs, 1, {groups, step, clip_norm});
    ending.state = testing::state_of(offloader, space);
  } catch (const Error& error) {
    ending.kind = error.kind();
    ending.text = error.what();
  }
  return ending;
}

Ending train_with(Victim victim, std::vector<io::Fault> faults, UpdateMode mode = UpdateMode::after_backward,
                  bool halves = false) {
  io::FaultPlan plan(std::move(faults));
  uint32_t made = 0;
  Ending ending = train_decorated(
      [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
        if (made++ != static_cast<uint32_t>(victim)) return engine;
        return std::make_unique<io::FaultEngine>(std::move(engine), plan);
      },
      mode, halves);
  ending.requests = plan.transfers();
  return ending;
}

void expect_reported_at_every_index(Victim victim, io::Fault fault, std::vector<ErrorKind> kinds,
                                    const std::string& word, UpdateMode mode = UpdateMode::after_backward,
                                    bool halves = false) {
  const Ending well = train_with(victim, {}, mode, halves);
  ASSERT_FALSE(well.kind) << well.text;
  ASSERT_GT(well.requests, 10u);
  uint64_t seen = 0;
  // Which requests are reads is the threads' doing: after one of the other kind the next has its turn.
  uint64_t stride = 1;
  for (uint64_t index = 0; index < well.requests; index += stride) {
    fault.index = index;
    const Ending ending = train_with(victim, {fault}, mode, halves);
    stride = ending.kind ? testing::kOneIn + index / 40 : 1;
    if (!ending.kind) {
      // The request was of the other kind, or nothing asked for its bytes again: then nothing may have
      // changed.
      EXPECT_EQ(ending.state, well.state) << "request " << index;
      continue;
    }
    ++seen;
    EXPECT_NE(std::find(kinds.begin(), kinds.end(), *ending.kind), kinds.end())
        << index << ": " << ending.text;
    EXPECT_NE(ending.text.find(".tier"), std::string::npos) << index << ": " << ending.text;
    EXPECT_NE(ending.text.find(word), std::string::npos) << index << ": " << ending.text;
    EXPECT_NE(ending.text.find("\n  "), std::string::npos) << "no advice: " << ending.text;
  }
  EXPECT_GT(seen, 5u) << "the faults hit nothing";
}

TEST(FaultLaw, AFailedRequestNamesFileAndReasonAtEveryIndex) {
  io::Fault fault{0, io::FaultKind::fail};
  expect_reported_at_every_index(Victim::step_engine, fault, {ErrorKind::io}, "EIO");
  expect_reported_at_every_index(Victim::reader, fault, {ErrorKind::io}, "EIO");
}

TEST(FaultLaw, AFullDiskIsNamedAtEveryIndex) {
  io::Fault fault{0, io::FaultKind::fail};
  fault.error = ENOSPC;
  expect_reported_at_every_index(Victim::step_engine, fault, {ErrorKind::io, ErrorKind::capacity}, "ENOSPC");
}

TEST(FaultLaw, AnEarlyEndOfFileIsNamedAtEveryIndex) {
  io::Fault fault{0, io::FaultKind::fail};
  fault.error = io::kEndOfFile;
  fault.bytes = 512;
  expect_reported_at_every_index(Victim::reader, fault, {ErrorKind::io, ErrorKind::corrupt}, "end");
}

TEST(FaultLaw, AFlippedBitReachesNeitherAWeightNorACheckpoint) {
  io::Fault fault{0, io::FaultKind::corrupt_read};
  fault.bytes = 77;
  expect_reported_at_every_index(Victim::step_engine, fault, {ErrorKind::corrupt}, "chunk");
  expect_reported_at_every_index(Victim::reader, fault, {ErrorKind::corrupt}, "chunk");
}

TEST(FaultLaw, ATornWriteIsFoundWhenItIsReadAgain) {
  io::Fault fault{0, io::FaultKind::torn_write};
  fault.bytes = 512;
  expect_reported_at_every_index(Victim::step_engine, fault, {ErrorKind::corrupt}, "chunk");
}

// What passes through the device meanwhile is waited for, and goes nowhere.
TEST(FaultLaw, WhatGoesWrongWhileTheDeviceUpdatesHalfIsNamedAtEveryIndex) {
  io::Fault failed{0, io::FaultKind::fail};
  io::Fault flipped{0, io::FaultKind::corrupt_read};
  flipped.bytes = 77;
  const UpdateMode after = UpdateMode::after_backward;
  expect_reported_at_every_index(Victim::step_engine, failed, {ErrorKind::io}, "EIO", after, true);
  expect_reported_at_every_index(Victim::step_engine, flipped, {ErrorKind::corrupt}, "chunk", after, true);
  expect_reported_at_every_index(Victim::update_engine, failed, {ErrorKind::io}, "EIO",
                                 UpdateMode::during_backward, true);
}

// Whatever the step thread does meanwhile, it learns of it, and waits for nothing that will not come.
TEST(FaultLaw, WhatGoesWrongInAnUpdateBesideTheStepIsNamedAtEveryIndex) {
  io::Fault failed{0, io::FaultKind::fail};
  io::Fault flipped{0, io::FaultKind::corrupt_read};
  flipped.bytes = 77;
  for (const UpdateMode mode : {UpdateMode::next_forward, UpdateMode::during_backward}) {
    expect_reported_at_every_index(Victim::update_engine, failed, {ErrorKind::io}, "EIO", mode);
    expect_reported_at_every_index(Victim::update_engine, flipped, {ErrorKind::corrupt}, "chunk", mode);
    expect_reported_at_every_index(Victim::reader, failed, {ErrorKind::io}, "EIO", mode);
  }
}

// Below the engines, as `terrace train --inject` does it: over the whole run, every transfer has its turn.
TEST(FaultLaw, WhatTheSystemMayAskToTryAgainChangesNoBit) {
  const Ending well = train_decorated(nullptr);
  ASSERT_FALSE(well.kind) << well.text;
  for (const std::string spec :
       {"error=EINTR,every=2", "error=EINTR,from=2,every=2", "error=EAGAIN,every=2",
        "error=EAGAIN,from=2,every=2", "short=8KiB,every=2", "short=4KiB,from=2,every=2",
        "short=20KiB,probability=0.5", "error=EAGAIN,probability=0.5,seed=3"}) {
    MemoryLog log;
    io::FaultPlan plan({parse_fault_spec(spec)});
    const Ending ending = train_decorated(engines_with_faults(plan));
    ASSERT_FALSE(ending.kind) << spec << ": " << ending.text;
    EXPECT_TRUE(ending.state == well.state) << spec;
    EXPECT_GT(plan.faults_done(), 50u) << spec;
  }
}

}  // namespace
}  // namespace terrace::fault_law_test
