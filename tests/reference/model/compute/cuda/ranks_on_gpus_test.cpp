// Ranks on GPUs without a GPU: every rank has a fake GPU of its own. Whatever they exchange passes through
// host memory, but for parameters and gradients that a fake NCCL moves from GPU to GPU, and all that is
// computed with lies in memory of a GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/runtime/ranks/nccl_exchange.h>

#include "comm/nccl/fake_nccl.h"
#include "comm/thread_world.h"
#include "played_gpu.h"
#include "reference/trainer_rig.h"
#include "support/rank_threads.h"
#include "support/sanitized.h"

namespace terrace::trainer_tests::ranks_on_gpus_test {
namespace {

constexpr uint32_t kMostRanks = 3;
constexpr uint64_t kSteps = 2;

// Looks at every address that is computed with.
class CheckedArithmetic final : public DeviceArithmetic {
 public:
  CheckedArithmetic(DeviceArithmetic& inner, const FakeCudaDriver& driver) : inner_(inner), driver_(driver) {}

  void update_tiles(const OptimizerStep& step, const TileRun& tiles) override {
    require(tiles.record, 1);
    require(tiles.gradients, tiles.element_count * bytes_of(tiles.gradient_type));
    require(tiles.parameters, tiles.element_count * bytes_of(tiles.parameter_type));
    inner_.update_tiles(step, tiles);
  }
  void accumulate(const Accumulation& part) override {
    require(part.accumulator, part.count * bytes_of(part.accumulator_type));
    require(part.gradient, part.count * bytes_of(part.gradient_type));
    inner_.accumulate(part);
  }
  void set_zero(std::byte* elements, DataType type, uint64_t count) override {
    require(elements, count * bytes_of(type));
    inner_.set_zero(elements, type, count);
  }
  void sums_of_squares(const std::byte* gradient, DataType type, uint64_t count,
                       std::span<double> sums) override {
    require(gradient, count * bytes_of(type));
    require(sums.data(), sums.size_bytes());
    inner_.sums_of_squares(gradient, type, count, sums);
  }

 private:
  void require(const void* memory, uint64_t bytes) const {
    TERRACE_ASSERT(driver_.has_all(memory, bytes), "a GPU computes with memory that it does not have");
  }

  DeviceArithmetic& inner_;
  const FakeCudaDriver& driver_;
};

class CheckedComputing final : public Computing {
 public:
  CheckedComputing(std::unique_ptr<Computing> inner, const FakeCudaDriver& driver)
      : inner_(std::move(inner)), arithmetic_(*inner_->arithmetic(), driver) {}
  Device& device() override { return inner_->device(); }
  const Ops& ops() const override { return inner_->ops(); }
  void wait() override { inner_->wait(); }
  DeviceArithmetic* arithmetic() override { return &arithmetic_; }

 private:
  const std::unique_ptr<Computing> inner_;
  CheckedArithmetic arithmetic_;
};

class CheckedGpu final : public ComputeDevice {
 public:
  CheckedGpu(const CudaGpu& gpu, const FakeCudaDriver& driver)
      : inner_(make_cuda_compute(gpu, {.library = nullptr, .workspace_bytes = 64 * kKiB})), driver_(driver) {}
  ComputeFacts facts() const override { return inner_->facts(); }
  std::unique_ptr<Ops> make_dry_ops(Workers& workers) const override { return inner_->make_dry_ops(workers); }
  std::unique_ptr<Computing> begin(uint64_t budget_bytes, bool strict, Workers& workers) const override {
    return std::make_unique<CheckedComputing>(inner_->begin(budget_bytes, strict, workers), driver_);
  }

 private:
  const std::unique_ptr<ComputeDevice> inner_;
  const FakeCudaDriver& driver_;
};

// A GPU for each rank.
struct PlayedGpus {
  PlayedGpus() : played({.driver = {.gpu_count = kMostRanks}}) {
    for (uint32_t g = 0; g < kMostRanks; ++g) {
      gpus.push_back(std::make_unique<CudaGpu>(FakeCudaDriver::table(), static_cast<int>(g), played.log,
                                               FakeCuFile::table()));
      computes.push_back(std::make_unique<CheckedGpu>(*gpus.back(), played.driver));
    }
  }

  PlayedGpu played;
  std::vector<std::unique_ptr<CudaGpu>> gpus;
  std::vector<std::unique_ptr<ComputeDevice>> computes;
};

// Looks at every address that ranks send from and receive at.
class OnHostOnly final : public Communicator {
 public:
  OnHostOnly(Communicator& inner, const FakeCudaDriver& driver)
      : Communicator(inner.rank(), {inner.places().begin(), inner.places().end()}),
        inner_(inner),
        driver_(driver) {}

  void all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes, const Event* after, Event& done,
                  const CommNote& note) override {
    require(whole.data(), whole.size());
    inner_.all_gather(lane, whole, part_bytes, after, done, note);
  }
  void exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                       std::span<CommPart> from, const Event* after, Event& done,
                       const CommNote& note) override {
    for (const CommPart& part : to) require(part.memory, part.bytes);
    for (const CommPart& part : from) require(part.memory, part.bytes);
    inner_.exchange_within(group, lane, to, from, after, done, note);
  }
  void ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) override {
    inner_.ballot(lane, mine, all);
  }
  void leave(std::string why) override { inner_.leave(std::move(why)); }
  CommCounters counters() const override { return inner_.counters(); }

 private:
  void require(const void* memory, uint64_t bytes) const {
    TERRACE_ASSERT(bytes == 0 || !driver_.has_some(memory, bytes), "the host reads memory of a GPU");
  }

  Communicator& inner_;
  const FakeCudaDriver& driver_;
};

// The fake NCCL on streams of the fake driver: what it was asked for is over when its bytes have moved.
struct PlayedNccl {
  explicit PlayedNccl(FakeCudaDriver& driver) {
    library.set_streams([&driver](void* stream) {
      const auto is_over = std::make_shared<std::atomic<bool>>(false);
      driver.run_kernel(static_cast<CUstream>(stream), [is_over] {
        while (!*is_over) std::this_thread::sleep_for(std::chrono::microseconds(20));
      });
      return [is_over] { *is_over = true; };
    });
  }
  testing::FakeNccl library;
};

// A rank whose parameters and gradients go from GPU to GPU, and everything else as `inner` moves it.
struct NcclRank {
  NcclRank(Communicator& inner, Log& log)
      : gpu([&inner, &log] {
          return std::make_unique<const CudaGpu>(FakeCudaDriver::table(), static_cast<int>(inner.rank()), log,
                                                 FakeCuFile::table());
        }),
        communicator(inner, gpu,
                     [this] {
                       gpu.open();
                       return testing::FakeNccl::table();
                     },
                     {.lanes = {Lane::gather, Lane::exchange}}) {}
  CudaNcclGpu gpu;
  NcclCommunicator communicator;
};

enum class Way : uint8_t { host, nccl };

// Where things are.
struct Scene {
  std::string parameters;  // empty: on the device; divided: there, in shares
  std::string states;      // none, cpu, nvme
  bool is_tight = true;
  std::string ratio = "1";
  bool reads_past_host = false;
};

std::string text_of(const Scene& scene) {
  return fmt::format("parameters {}, states {}{}{}, ratio {}", scene.parameters, scene.states,
                     scene.is_tight ? ", tight" : "", scene.reads_past_host ? ", read past the host" : "",
                     scene.ratio);
}

RunOptions options_in(const Scene& scene, uint32_t ranks, const ComputeDevice& compute, const fs::path& nvme,
                      Way way = Way::host) {
  RunOptions run;
  run.layers = 1;
  run.precision = "true";
  run.chunk_elements = "16384";
  run.compute = &compute;
  if (scene.parameters != "divided") run.parameters = scene.parameters;
  run.durable = "false";
  run.ratio = scene.ratio;
  run.reads_past_host = scene.reads_past_host;
  if (scene.states == "nvme" || scene.parameters == "nvme") run.nvme = nvme;
  // The numbers of a step stay the same: 4 micro-batches over all ranks.
  run.accumulation = "auto";
  run.more = {{"train_batch_size", "8", "a test"}, {"train_micro_batch_size_per_gpu", "2", "a test"}};
  if (scene.states != "nvme")
    run.more.push_back({"zero_optimization.offload_optimizer.device", scene.states, "a test"});
  if (ranks > 1) run.more.push_back({"terrace.ranks", std::to_string(ranks), "a test"});
  if (way == Way::nccl) run.more.push_back({"terrace.communicator", "nccl", "a test"});
  if (scene.parameters == "divided") run.more.push_back({"zero_optimization.stage", "3", "a test"});
  if (scene.is_tight)
    run.device_memory = std::to_string(plan_training(options_of(run)).plan.memory.device_minimum_bytes);
  if (scene.reads_past_host) run.host_memory = least_host_memory(run);
  return run;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::byte> state;  // of the first rank: master weights and moments
  uint64_t h2d_bytes = 0, d2h_bytes = 0, gather_in_bytes = 0, exchange_in_bytes = 0, host_bytes = 0;
};

Outcome train(const RunOptions& options) {
  TrainerRun run(options);
  Outcome outcome;
  for (uint64_t s = 0; s < kSteps; ++s) {
    const StepReport report = run.trainer->step();
    outcome.losses.push_back(report.loss);
    outcome.norms.push_back(report.gradient_norm);
    outcome.h2d_bytes += report.moved.h2d_bytes;
    outcome.d2h_bytes += report.moved.d2h_bytes;
    outcome.gather_in_bytes += report.moved.gather_in_bytes;
    outcome.exchange_in_bytes += report.moved.exchange_in_bytes;
  }
  outcome.host_bytes = run.trainer->offloader().plan().host_bytes;
  outcome.state = run.state();
  return outcome;
}

class RanksOnGpus : public ::testing::Test {
 protected:
  std::vector<Outcome> train_on(uint32_t ranks, const Scene& scene, Way way = Way::host) {
    const ScratchFolder folder;
    if (ranks == 1) return {train(options_in(scene, 1, *gpus_.computes[0], folder.path()))};
    PlayedNccl nccl(gpus_.played.driver);
    ThreadWorld world({.ranks = ranks});
    std::vector<Outcome> outcomes(ranks);
    for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& rank) {
           OnHostOnly checked(rank, gpus_.played.driver);
           std::optional<NcclRank> by_nccl;
           if (way == Way::nccl) by_nccl.emplace(checked, gpus_.played.log);
           RunOptions run = options_in(scene, ranks, *gpus_.computes[rank.rank()], folder.path(), way);
           run.communicator = by_nccl ? &by_nccl->communicator : static_cast<Communicator*>(&checked);
           outcomes[rank.rank()] = train(run);
         }))
      EXPECT_EQ(failure, "");
    EXPECT_EQ(nccl.library.calls("ncclSend") > 0, way == Way::nccl);
    return outcomes;
  }
  void expect_one_result(const std::vector<Scene>& scenes, Way way = Way::host) {
    const Outcome expected = train_on(1, {.parameters = "", .states = "none", .is_tight = false}).front();
    const uint32_t most = testing::kSanitized ? 2 : kMostRanks;  // the emulator is slow enough without
    for (const Scene& scene : testing::thinned(scenes)) {
      for (uint32_t ranks = 2; ranks <= most; ++ranks) {
        SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, text_of(scene)));
        const std::vector<Outcome> outcomes = train_on(ranks, scene, way);
        for (const Outcome& outcome : outcomes) {
          EXPECT_EQ(outcome.losses, expected.losses);
          EXPECT_EQ(outcome.norms, expected.norms);
        }
        EXPECT_TRUE(outcomes.front().state == expected.state) << "master weights or moments";
      }
    }
  }

  PlayedGpus gpus_;
};

// Stages 0 to 2: whole parameters on every GPU.
TEST_F(RanksOnGpus, HaveTheBitsOfOneWithParametersOnTheGpu) {
  expect_one_result({{"", "none"}, {"", "cpu"}, {"", "nvme"}});
}

// Stage 3: a chunk comes together on each GPU when it is needed.
TEST_F(RanksOnGpus, HaveTheBitsOfOneWithDividedParameters) {
  expect_one_result({{"cpu", "none"}, {"cpu", "cpu"}, {"cpu", "nvme"}, {"nvme", "nvme"}});
}

// Shares lie on each GPU, and copies within it bring them to the slots in which chunks come together.
TEST_F(RanksOnGpus, HaveTheBitsOfOneWithParametersDividedOnTheGpu) {
  expect_one_result({{"divided", "none"},
                     {"divided", "cpu"},
                     {"divided", "nvme"},
                     {"divided", "cpu", false},
                     {"divided", "cpu", true, "0.5"}});
  EXPECT_GT(gpus_.played.driver.calls("cuMemcpyDtoDAsync"), 0u);
}

TEST_F(RanksOnGpus, HaveTheBitsOfOneWithRoomToFetchAhead) {
  expect_one_result({{"cpu", "cpu", false}, {"nvme", "nvme", false}, {"cpu", "none", false}});
}

// Half of what rests below the GPU is updated there, and parameters are read there past the host.
TEST_F(RanksOnGpus, HaveTheBitsOfOneWhereTheGpuUpdatesOrReads) {
  expect_one_result(
      {{"cpu", "cpu", true, "0.5"}, {"", "nvme", true, "0.5"}, {"nvme", "nvme", true, "1", true}});
}

TEST_F(RanksOnGpus, HaveTheBitsOfOneWhereParametersGoFromGpuToGpu) {
  expect_one_result({{"", "none"},
                     {"", "cpu"},
                     {"cpu", "cpu"},
                     {"nvme", "nvme", false},
                     {"cpu", "none", false},
                     {"divided", "none"},
                     {"divided", "cpu", false}},
                    Way::nccl);
  expect_one_result({{"cpu", "cpu", true, "0.5"},
                     {"", "nvme", true, "0.5"},
                     {"divided", "cpu", true, "0.5"},
                     {"nvme", "nvme", true, "1", true}},
                    Way::nccl);
}

// Of a chunk the own share is all that crosses the link, and no slot on the host is for the others'. Of
// gradients a rank copies as much on the average, and not what it sends.
TEST_F(RanksOnGpus, CopyLessWhereParametersGoFromGpuToGpu) {
  for (const Scene& scene :
       std::vector<Scene>{{"", "cpu", false}, {"cpu", "cpu", false}, {"divided", "cpu", false}}) {
    SCOPED_TRACE(text_of(scene));
    const std::vector<Outcome> by_copies = train_on(2, scene), by_nccl = train_on(2, scene, Way::nccl);
    const uint64_t copied = by_copies[0].d2h_bytes + by_copies[1].d2h_bytes;
    const uint64_t copied_by_nccl = by_nccl[0].d2h_bytes + by_nccl[1].d2h_bytes;
    EXPECT_LE(copied_by_nccl, copied);
    EXPECT_EQ(copied_by_nccl == copied, scene.parameters == "cpu");
    for (uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_GT(by_nccl[rank].gather_in_bytes, 0u);
      EXPECT_EQ(by_nccl[rank].exchange_in_bytes, by_copies[rank].exchange_in_bytes);
      EXPECT_EQ(by_nccl[rank].gather_in_bytes, by_copies[rank].gather_in_bytes);
      EXPECT_EQ(by_nccl[rank].h2d_bytes + by_nccl[rank].gather_in_bytes, by_copies[rank].h2d_bytes);
      EXPECT_LT(by_nccl[rank].host_bytes, by_copies[rank].host_bytes);
    }
  }
}

// With states on the GPU no byte of a gradient leaves it: what is copied are the new parameters.
TEST_F(RanksOnGpus, CopyNoGradientThatIsAddedOnTheGpu) {
  const Scene scene{"", "none", false};
  const std::vector<Outcome> by_copies = train_on(2, scene), by_nccl = train_on(2, scene, Way::nccl);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_GT(by_nccl[rank].exchange_in_bytes, 0u);
    EXPECT_EQ(by_nccl[rank].d2h_bytes, 0u);
    EXPECT_EQ(by_nccl[rank].h2d_bytes, 0u);
    EXPECT_GT(by_copies[rank].d2h_bytes, by_nccl[rank].exchange_in_bytes);
  }
}

// The rank whose GPU cannot say how far NCCL is says so, and no other waits for it.
TEST_F(RanksOnGpus, EndTogetherWhereNcclFails) {
  struct Wrong {
    const char* call;
    bool is_drivers;
    Scene scene;
  };
  // Parameters that live on the GPU are gathered behind the update: what goes before are gradients.
  for (const Wrong& wrong :
       {Wrong{"ncclSend", false, {"cpu", "cpu", false}}, Wrong{"ncclGroupEnd", false, {"cpu", "cpu", false}},
        Wrong{"cuStreamQuery", true, {"cpu", "cpu", false}}, Wrong{"ncclSend", false, {"", "cpu", false}},
        Wrong{"ncclRecv", false, {"", "none", false}}}) {
    SCOPED_TRACE(fmt::format("{}, {}", wrong.call, text_of(wrong.scene)));
    const ScratchFolder folder;
    PlayedNccl nccl(gpus_.played.driver);
    ThreadWorld world({.ranks = 2});
    const std::vector<std::string> failures = testing::on_every_rank(world, [&](Communicator& rank) {
      NcclRank by_nccl(rank, gpus_.played.log);
      RunOptions run = options_in(wrong.scene, 2, *gpus_.computes[rank.rank()], folder.path(), Way::nccl);
      run.communicator = &by_nccl.communicator;
      TrainerRun trained(run);
      trained.trainer->step();
      if (rank.rank() == 0 && wrong.is_drivers)
        gpus_.played.driver.fail(wrong.call, 3, CUDA_ERROR_LAUNCH_FAILED);
      if (rank.rank() == 0 && !wrong.is_drivers) nccl.library.fail(wrong.call, 0, 1, 2);
      trained.trainer->step();
      trained.trainer->step();
    });
    for (const std::string& failure : failures) EXPECT_NE(failure, "");
    EXPECT_NE((failures[0] + failures[1]).find(wrong.call), std::string::npos) << failures[0] << "\n"
                                                                               << failures[1];
  }
}

// The rank whose copy failed says so, and no other waits for it.
TEST_F(RanksOnGpus, EndTogetherWhereACopyFails) {
  for (const char* const call : {"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"}) {
    const ScratchFolder folder;
    ThreadWorld world({.ranks = 2});
    const std::vector<std::string> failures = testing::on_every_rank(world, [&](Communicator& rank) {
      RunOptions run = options_in({"cpu", "cpu", false}, 2, *gpus_.computes[rank.rank()], folder.path());
      run.communicator = &rank;
      TrainerRun trained(run);
      trained.trainer->step();
      if (rank.rank() == 0) gpus_.played.driver.fail(call, 3, CUDA_ERROR_LAUNCH_FAILED);
      trained.trainer->step();
      trained.trainer->step();
    });
    for (const std::string& failure : failures) EXPECT_NE(failure, "");
    EXPECT_NE((failures[0] + failures[1]).find(call), std::string::npos) << failures[0] << "\n"
                                                                         << failures[1];
  }
}

}  // namespace
}  // namespace terrace::trainer_tests::ranks_on_gpus_test
