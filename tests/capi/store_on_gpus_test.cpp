// A store over ranks in processes, each on a GPU of the played driver: parameters, and gradients that lie on
// GPUs, go from GPU to GPU by a played NCCL, or through host memory, and no bit depends on that.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "capi/capi_rig.h"
#include "capi/rank_program.h"
#include "capi/store_on_ranks.h"
#include "support/scratch_folder.h"

namespace terrace::store_on_gpus_test {
namespace {

using capi::Arguments;
using capi::bytes_of;
using capi::Case;
using capi::kMicroBatches;
using capi::kSteps;
using capi::kUnexpected;
using capi::RankProgram;
using capi::train_alone;
using capi::Training;
using ::testing::AllOf;
using ::testing::Each;
using testing::ForkedRanks;
using ::testing::HasSubstr;
using testing::RankNotes;

#ifdef TERRACE_PLAYED_CUDA
constexpr const char* kPlayed = TERRACE_PLAYED_CUDA;
#else
constexpr const char* kPlayed = nullptr;
#endif

// Of a process that is a rank; whoever loads one by its name finds it then.
bool load_played(const char* library) {
  return dlopen(fmt::format("{}/{}", kPlayed, library).c_str(), RTLD_NOW) != nullptr;
}

Case on_gpu(const Case& c, const RankProgram& program, uint32_t rank, uint32_t count) {
  Case mine = capi::case_of(c, program, rank, count);
  mine.gpu = static_cast<int>(rank);
  mine.strict = false;  // whose memory is filled beside the step
  return mine;
}

std::string text_of(const Case& c) {
  return fmt::format("parameters {}{}, states {}, gradients {}, update {}", c.parameters,
                     c.divided ? " divided" : "", c.states, c.gradients, c.update_when);
}

// Each way in which parameters come to a GPU, with each mode of the update, and all ways of gradients.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const uint32_t parameters : {TERRACE_DEVICE, TERRACE_CPU, TERRACE_NVME}) {
    for (const uint32_t update : {TERRACE_AFTER_BACKWARD, TERRACE_NEXT_FORWARD, TERRACE_DURING_BACKWARD}) {
      Case c{.parameters = parameters};
      c.states = update == TERRACE_NEXT_FORWARD ? TERRACE_NVME : TERRACE_CPU;
      const bool leased = (update == TERRACE_NEXT_FORWARD) == (parameters == TERRACE_CPU);
      c.gradients = update == TERRACE_DURING_BACKWARD || leased ? TERRACE_LEASED : TERRACE_HANDED_OVER;
      c.update_when = update;
      Case on_device = c;
      on_device.gradients = TERRACE_HANDED_OVER_ON_DEVICE;
      all.insert(all.end(), {c, on_device});
      if (parameters != TERRACE_DEVICE) continue;
      c.divided = on_device.divided = true;
      all.insert(all.end(), {c, on_device});
    }
  }
  return all;
}

Case without_gpu(Case c) {
  if (c.gradients == TERRACE_HANDED_OVER_ON_DEVICE) c.gradients = TERRACE_HANDED_OVER;
  return c;
}

class CStoreOnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kPlayed == nullptr) GTEST_SKIP() << "there is no played driver in this build";
  }
};

int train(RankProgram& program, const Case& c, const std::filesystem::path& folder) {
  {
    Training training(c, folder);
    for (uint64_t step = 1; step <= kSteps; ++step) training.step(step);
    program.note(bytes_of(training.state()));
  }
  return program.end();
}

TEST_F(CStoreOnGpus, HasTheBitsOfOneRankWhateverGoesFromGpuToGpu) {
  for (const Case& c : cases()) {
    const std::string alone = train_alone(without_gpu(c));
    for (const uint32_t count : {2u, 3u}) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", count, text_of(c)));
      const RankNotes notes;
      const ScratchFolder folder;
      const ForkedRanks ranks(count, [&](uint32_t rank) {
        if (!load_played("libcuda.so.1") || !load_played("libnccl.so.2")) return kUnexpected;
        RankProgram program(notes, rank, count, TERRACE_TRANSPORT_NCCL);
        return train(program, on_gpu(c, program, rank, count), folder.path());
      });
      EXPECT_THAT(ranks.ends(), Each(0)) << notes.of(0).substr(0, 500);
      for (uint32_t rank = 0; rank < count; ++rank) EXPECT_TRUE(notes.of(rank) == alone) << rank;
    }
  }
}

TEST_F(CStoreOnGpus, NeedsLessHostMemoryThanWhatPassesThroughIt) {
  const RankNotes notes;
  const ScratchFolder folder;
  struct Way {
    uint32_t transport, gradients;
  };
  for (const Way& way :
       {Way{TERRACE_TRANSPORT_AUTO, TERRACE_LEASED}, Way{TERRACE_TRANSPORT_NCCL, TERRACE_LEASED},
        Way{TERRACE_TRANSPORT_AUTO, TERRACE_HANDED_OVER},
        Way{TERRACE_TRANSPORT_NCCL, TERRACE_HANDED_OVER_ON_DEVICE}}) {
    const ForkedRanks ranks(2, [&](uint32_t rank) {
      if (!load_played("libcuda.so.1")) return kUnexpected;
      RankProgram program(notes, rank, 2, way.transport);
      const Case c{.parameters = TERRACE_CPU, .gradients = way.gradients};
      const Arguments arguments(on_gpu(c, program, rank, 2), folder.path());
      terrace_plan_result plan = TERRACE_INIT(terrace_plan_result);
      program.take(arguments.plan(&plan));
      program.note(std::to_string(plan.host_least_bytes) + " ");
      return program.end();
    });
    EXPECT_THAT(ranks.ends(), Each(0)) << notes.of(0);
  }
  std::istringstream words(notes.of(0));
  // Slots of a chunk of 4096 elements, which is a share too: those in which chunks come together, and the own
  // place among those of each of two landings.
  constexpr uint64_t kStages = 4, kLandings = 2, kWidestBytes = 4;
  for (const char* const gradients : {"leased", "handed over"}) {
    uint64_t by_copies = 0, by_nccl = 0;
    words >> by_copies >> by_nccl;
    EXPECT_EQ(by_copies, by_nccl + (kStages + kLandings) * 4096 * kWidestBytes) << gradients << notes.of(0);
  }
}

// The host would have to read them.
TEST_F(CStoreOnGpus, IsRefusedGradientsThatAreHandedOverOnTheGpuWhereNobodyTakesThemThere) {
  for (const uint32_t count : {1u, 2u}) {
    const RankNotes notes;
    const ScratchFolder folder;
    const ForkedRanks ranks(count, [&](uint32_t rank) {
      if (!load_played("libcuda.so.1")) return kUnexpected;
      RankProgram program(notes, rank, count);
      const Case c{.gradients = TERRACE_HANDED_OVER_ON_DEVICE};
      const Arguments arguments(on_gpu(c, program, rank, count), folder.path());
      terrace_store* store = nullptr;
      terrace_error* const error = arguments.create(&store);
      program.note(terrace_error_text(error));
      capi::expect_kind(TERRACE_CONFIG, error);
      return program.end();
    });
    EXPECT_THAT(ranks.ends(), Each(0));
    EXPECT_THAT(notes.of(0), HasSubstr(count == 1 ? "one rank takes them from the host"
                                                  : "the ranks exchange them on the host"));
  }
}

struct Ends {
  std::vector<int> statuses;
  std::vector<std::string> said;
};

// Where the gradients come from that go from GPU to GPU beside parameters; none do.
enum class Moves : uint8_t { parameters, leased, handed_over };

// Goes backward in a micro-batch.
void make_gradients(RankProgram& program, terrace_store* store, Moves moves) {
  void* work = nullptr;
  uint64_t bytes = 0;
  program.take(terrace_work_memory(store, &work, &bytes));
  for (const uint32_t tensor : {0u, 1u}) {
    if (moves == Moves::handed_over) {
      const auto type = static_cast<uint32_t>(capi::specs()[tensor].type);
      if (!program.take(terrace_hand_over(store, tensor, work, type, 0))) return;
    } else if (moves == Moves::leased) {
      uint64_t lease = 0;
      if (!program.take(terrace_lease(store, "op", TERRACE_BACKWARD, &tensor, 1, &lease))) return;
      program.take(terrace_release(store, lease));
    }
  }
}

// Three ranks train until something is wrong, which `wrong` says (played_libnccl.cpp).
Ends train_until(const std::string& wrong, uint32_t parameters, Moves moves = Moves::parameters) {
  const RankNotes notes;
  const ScratchFolder folder;
  const ForkedRanks ranks(3, [&](uint32_t rank) {
    setenv("TERRACE_PLAYED_NCCL", wrong.c_str(), 1);
    if (!load_played("libcuda.so.1") || !load_played("libnccl.so.2")) return kUnexpected;
    RankProgram program(notes, rank, 3, TERRACE_TRANSPORT_NCCL);
    Case c{.parameters = parameters};
    if (moves == Moves::handed_over) c.gradients = TERRACE_HANDED_OVER_ON_DEVICE;
    const Arguments arguments(on_gpu(c, program, rank, 3), folder.path());
    terrace_store* store = nullptr;
    program.take(arguments.create(&store));
    program.take(terrace_fill_with(
        store, [](void*, uint32_t, uint64_t, uint64_t, float*) { return 0; }, nullptr));
    for (uint64_t step = 1; program.kind() == 0 && step < 100; ++step) {
      program.take(terrace_ranks_step(program.ranks, step, nullptr));
      terrace_optimizer groups[2] = {TERRACE_INIT(terrace_optimizer), TERRACE_INIT(terrace_optimizer)};
      terrace_update_settings settings = TERRACE_INIT(terrace_update_settings);
      settings.groups = groups, settings.group_count = 2, settings.step = step;
      if (!program.take(terrace_begin_step(store))) break;
      for (const uint32_t tensor : {0u, 1u}) {
        uint64_t lease = 0;
        if (!program.take(terrace_lease(store, "op", TERRACE_FORWARD, &tensor, 1, &lease))) break;
        program.take(terrace_release(store, lease));
      }
      for (uint32_t m = 0; m < kMicroBatches / 3; ++m) {
        make_gradients(program, store, moves);
        program.take(terrace_end_micro_batch(store));
      }
      program.take(terrace_update(store, &settings, nullptr));
    }
    program.note(program.failure() + "\n");
    terrace_destroy(store);
    return program.end(5);
  });
  return {ranks.ends(), {notes.of(0), notes.of(1), notes.of(2)}};
}

// The others wait for it on their GPUs, where nobody tells them.
TEST_F(CStoreOnGpus, NamesARankThatIsKilledWhileBytesAreUnderWay) {
  for (const uint32_t parameters : {TERRACE_DEVICE, TERRACE_CPU}) {
    for (const Moves moves : {Moves::parameters, Moves::leased, Moves::handed_over}) {
      const Ends ends = train_until("kill 1 20", parameters, moves);
      EXPECT_EQ(ends.statuses, (std::vector<int>{5, -SIGKILL, 5}));
      for (const uint32_t rank : {0u, 2u}) EXPECT_THAT(ends.said[rank], HasSubstr("rank 1")) << rank;
      EXPECT_THAT(ends.said[0], HasSubstr("died"));
    }
  }
}

TEST_F(CStoreOnGpus, NamesARankWhoseNcclFails) {
  for (const char* const call : {"ncclSend", "ncclRecv", "ncclCommGetAsyncError"}) {
    SCOPED_TRACE(call);
    const Ends ends = train_until(fmt::format("{} 1 20", call), TERRACE_CPU);
    EXPECT_THAT(ends.statuses, Each(5));
    EXPECT_THAT(ends.said[1], AllOf(HasSubstr("rank 1"), HasSubstr(call)));
    for (const uint32_t rank : {0u, 2u}) EXPECT_THAT(ends.said[rank], HasSubstr("rank 1")) << rank;
  }
}

// Parameters that live on the GPU are gathered behind an update; what goes before are gradients.
TEST_F(CStoreOnGpus, NamesARankWhoseNcclFailsWhateverIsUnderWay) {
  for (const Moves moves : {Moves::leased, Moves::handed_over}) {
    for (const uint32_t nth : {1, 5, 9, 13}) {
      SCOPED_TRACE(fmt::format("{} {}", moves == Moves::leased ? "leased" : "handed over", nth));
      const Ends ends = train_until(fmt::format("ncclSend 1 {}", nth), TERRACE_DEVICE, moves);
      EXPECT_THAT(ends.statuses, Each(5));
      for (const uint32_t rank : {0u, 1u, 2u}) EXPECT_THAT(ends.said[rank], HasSubstr("rank 1")) << rank;
    }
  }
}

// All ranks say the same.
void expect_refused(const std::string& reason, const std::vector<const char*>& libraries, bool on_gpus,
                    uint32_t exchange) {
  const RankNotes notes;
  const ScratchFolder folder;
  const ForkedRanks ranks(2, [&](uint32_t rank) {
    for (const char* const library : libraries) {
      if (!load_played(library)) return kUnexpected;
    }
    RankProgram program(notes, rank, 2, TERRACE_TRANSPORT_NCCL);
    Case mine = on_gpu({}, program, rank, 2);
    if (!on_gpus) mine.gpu = -1;
    mine.rank_exchange = exchange;
    const Arguments arguments(mine, folder.path());
    terrace_store* store = nullptr;
    terrace_error* const error = arguments.create(&store);
    program.note(terrace_error_text(error));
    const uint32_t kind = terrace_error_kind_of(error);
    capi::expect_kind(kind, error);
    return kind == TERRACE_CONFIG && program.end() == 0 ? 0 : kUnexpected;
  });
  EXPECT_THAT(ranks.ends(), Each(0));
  for (const uint32_t rank : {0u, 1u}) EXPECT_THAT(notes.of(rank), HasSubstr(reason)) << rank;
}

TEST_F(CStoreOnGpus, IsRefusedOnAllRanksWhereNcclCannotBeUsed) {
  expect_refused("\"terrace_ranks_options.transport nccl\": the device is simulated", {}, false,
                 TERRACE_SYMMETRIC);
  expect_refused("set terrace_options.rank_exchange to symmetric", {"libcuda.so.1", "libnccl.so.2"}, true,
                 TERRACE_PULLED);
  if (dlopen("libnccl.so.2", RTLD_NOW) == nullptr)
    expect_refused("\"rank 0\": cannot load NCCL \"libnccl.so.2\"", {"libcuda.so.1"}, true,
                   TERRACE_SYMMETRIC);
}

}  // namespace
}  // namespace terrace::store_on_gpus_test
