// A dry run decides and counts what a run does, and has neither memory nor files.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <terrace/offload/dry/dry_device.h>

#include "memory/host/os_memory.h"
#include "offload/commits/commit_rig.h"
#include "offload/gradients/spill_rig.h"

namespace terrace::dry_run_test {
namespace {

// Everything that is the same in every run.
std::string counted(const Offloader& offloader) {
  const OffloadCounters c = offloader.report().counters();
  return fmt::format(
      "h2d {} d2h {} parameters {} {} records {} {} gradients {} {} {} restored {} commits {} {} {} fetches "
      "{} {} evictions {}",
      c.h2d_bytes, c.d2h_bytes, c.param_read_bytes, c.param_write_bytes, c.record_read_bytes,
      c.record_write_bytes, c.gradient_read_bytes, c.gradient_write_bytes, c.update_gradient_read_bytes,
      c.restore_read_bytes, c.commit_count, c.commit_write_bytes, c.manifest_bytes, c.fetch_count,
      c.demand_fetch_count, c.eviction_count);
}

std::string ledger_of(const Offloader& offloader) {
  std::string text;
  for (const TierUse& use : offloader.budget().ledger())
    text += fmt::format("{} {}; ", use.purpose, use.bytes);
  return text;
}

void expect_planned_as_run(const CommitCase& c) {
  SCOPED_TRACE(fmt::format("{}, chunks of {}, {}/4 cached, frozen {}, durable {}", text_of(c),
                           c.chunk_elements, c.cached_quarters, c.with_frozen, c.durable));
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  CommitCase planned = c;
  planned.dry = true;
  CommitRig dry(planned, std::filesystem::path("/nowhere/at/all"));
  EXPECT_EQ(dry.device->used_bytes(), rig.device->used_bytes());
  EXPECT_EQ(ledger_of(*dry.offloader), ledger_of(*rig.offloader));
  EXPECT_EQ(dry.offloader->report().tier_file_bytes(), rig.offloader->report().tier_file_bytes());
  for (uint64_t step = 1; step <= 3; ++step) {
    rig.step(step);
    EXPECT_TRUE(dry.step(step).applied);
    EXPECT_EQ(counted(*dry.offloader), counted(*rig.offloader)) << "step " << step;
    if (!c.durable || step == 3) continue;
    for (Offloader* offloader : {rig.offloader.get(), dry.offloader.get()}) {
      offloader->commits().begin(step_info(step));
      offloader->commits().finish();
    }
  }
  rig.offloader->finish_update();
  dry.offloader->finish_update();
  EXPECT_EQ(counted(*dry.offloader), counted(*rig.offloader)) << "at the end";
}

TEST(DryRun, CountsWhatEveryPlacementMoves) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const Placement states : {Placement::none, Placement::cpu, Placement::nvme}) {
      for (const uint32_t accumulation : {1u, 3u}) {
        CommitCase c{.parameters = parameters, .accumulation = accumulation, .durable = false};
        c.states = states;
        c.with_frozen = accumulation == 3;
        c.cached_quarters = accumulation == 1 ? 0 : 3;
        c.chunk_elements = accumulation * kTileElements;
        expect_planned_as_run(c);
        if (states == Placement::none || (accumulation == 3) == (parameters == Placement::cpu)) continue;
        if (accumulation == 3) c.accumulation_type = DataType::bf16;
        c.layout = kCompact;
        expect_planned_as_run(c);
      }
    }
  }
}

TEST(DryRun, CountsWhatIsMovedWheneverUpdatesRun) {
  for (const UpdateMode mode : {UpdateMode::next_forward, UpdateMode::during_backward}) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      for (const Placement states : {Placement::cpu, Placement::nvme}) {
        for (const double clip_norm : {0.0, 0.5}) {
          if (clip_norm == 0 && (mode == UpdateMode::next_forward || states == Placement::cpu)) continue;
          CommitCase c{.parameters = parameters, .durable = false};
          c.states = states;
          c.mode = mode;
          c.clip_norm = clip_norm;
          c.holds_gradients = parameters == Placement::none;
          c.cached_quarters = clip_norm > 0 ? 1 : 3;
          expect_planned_as_run(c);
        }
      }
    }
  }
}

TEST(DryRun, CountsWhatPassesThroughTheDeviceForItsUpdates) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const Placement states : {Placement::cpu, Placement::nvme}) {
      for (const double share : {0.0, 0.5}) {
        CommitCase c{.parameters = parameters, .accumulation = share == 0 ? 1u : 3u, .durable = false};
        c.states = states;
        c.processor_share = share;
        c.chunk_elements = 2 * kTileElements;
        expect_planned_as_run(c);
        c.layout = share == 0 ? kCompact : RecordLayout{};
        c.mode = share == 0 ? UpdateMode::after_backward : UpdateMode::during_backward;
        c.holds_gradients = parameters == Placement::none;
        expect_planned_as_run(c);
      }
    }
  }
}

// Every third way to spill, each in another mode.
TEST(DryRun, CountsSpilledGradients) {
  std::vector<CommitCase> cases = spilling_cases();
  for (size_t i = 0; i < cases.size(); i += 3) {
    CommitCase& c = cases[i];
    const UpdateMode mode = kUpdateModes[i / 3 % 3];
    if (may_run(c, mode)) c.mode = mode;
    c.host_budget = c.accumulation == 1 ? spill_some : spill_all;
    expect_planned_as_run(c);
  }
}

TEST(DryRun, CountsWhatCommitsWrite) {
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    CommitCase c{.parameters = parameters, .with_frozen = parameters == Placement::nvme};
    if (parameters != Placement::cpu) c.layout = kCompact;
    expect_planned_as_run(c);
  }
}

// A model of 64 GiB of state and more, whose folders do not exist.
TEST(DryRun, HasNoMemoryAndNoFiles) {
  std::vector<TensorSpec> specs;
  for (uint32_t layer = 0; layer < 64; ++layer)
    specs.push_back({fmt::format("layer{}", layer), {1 << 14, 1 << 12}, DataType::bf16, true, 0, 1});
  const FlatSpace space(specs, uint64_t{1} << 24);
  UseRecorder recorder;
  const auto run = [&](ParameterAccess& access) {
    for (uint32_t t = 0; t < specs.size(); ++t) {
      const std::vector<TensorId> list = {TensorId{t}};
      const Lease lease(access, fmt::format("{}/forward", t), list, UseKind::forward);
    }
    for (uint32_t t = static_cast<uint32_t>(specs.size()); t-- > 0;) {
      const std::vector<TensorId> list = {TensorId{t}};
      const Lease lease(access, fmt::format("{}/backward", t), list, UseKind::backward);
    }
  };
  run(recorder);
  OffloadOptions options;
  options.dry = true;
  options.parameters = options.states = Placement::nvme;
  options.parameter_paths = options.state_paths = {{"/nowhere/at/all"}};
  options.device_budget_bytes = 8 * kGiB;
  options.host_budget_bytes = 32 * kGiB;
  options.work_bytes = kGiB;
  const uint64_t before = anonymous_bytes();
  DryDevice device(options.device_budget_bytes);
  MemoryLog log;
  Workers workers(1);
  Offloader offloader(space, options, recorder.trace(), device, workers, log);
  offloader.state().initialise([](TensorId, uint64_t, std::span<float>) { FAIL() << "values are computed"; });
  offloader.begin_step();
  run(offloader);
  offloader.end_micro_batch();
  const std::vector<OptimizerSettings> groups(1);
  EXPECT_TRUE(offloader.update({groups, 1, 1.0, 1}).applied);
  EXPECT_LT(anonymous_bytes(), before + 64 * kMiB);
  EXPECT_FALSE(std::filesystem::exists("/nowhere"));
  EXPECT_GT(offloader.report().counters().record_write_bytes, 16 * kGiB);
}

}  // namespace
}  // namespace terrace::dry_run_test
