// Every kind of error, and what a store does after one.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <terrace/capi/errors.h>
#include <terrace/capi/store.h>
#include <terrace_run.h>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::errors_test {
namespace {

using capi::Arguments;
using capi::expect_kind;
using capi::is_well;
using capi::kind_of;
using capi::Training;

TEST(CErrors, AreOfEveryKindWithFourParts) {
  const ScratchFolder folder;
  terrace_store* store = nullptr;
  Arguments config(capi::kOnNvme, folder.path());
  config.options.update_when = 99;
  expect_kind(TERRACE_CONFIG, config.create(&store));
  Arguments capacity(capi::kOnNvme, folder.path());
  capacity.options.host_bytes = 1000;
  expect_kind(TERRACE_CAPACITY, capacity.create(&store));
  Arguments io(capi::kOnNvme, folder / "is not there");
  terrace_error* missing = io.create(&store);
  terrace_error_parts parts_of_it = TERRACE_INIT(terrace_error_parts);
  terrace_error_get(missing, &parts_of_it);
  EXPECT_STRNE(parts_of_it.advice, "");
  expect_kind(TERRACE_IO, missing);
  Training training({}, folder.path(), false);
  folder.write("short", "abc");
  const std::string name = (folder / "short").string();
  std::vector<terrace_file_part> parts(4, TERRACE_INIT(terrace_file_part));
  for (uint32_t t = 0; t < 4; ++t) parts[t].tensor = t, parts[t].path = name.c_str();
  expect_kind(TERRACE_CORRUPT, terrace_fill_files(training.get(), parts.data(), 4));
  const auto stop = [](void*, uint32_t, uint64_t, uint64_t, float*) { return 3; };
  expect_kind(TERRACE_CANCELLED, terrace_fill_with(training.get(), stop, nullptr));
  expect_kind(TERRACE_MISUSE, terrace_begin_step(training.get()));
  training.fill();
  training.step(1);  // none of them has harmed the store
  expect_kind(TERRACE_INTERNAL, c::answer([] { throw std::logic_error("nobody thought of it"); }));
  expect_kind(TERRACE_INTERNAL, c::answer([] { throw 7; }));
  expect_kind(TERRACE_CAPACITY, c::answer([] { throw std::bad_alloc(); }));
  expect_kind(TERRACE_DEVICE_FAILED, c::answer([] {
                c::refuse(ErrorKind::device, "cannot copy", "GPU 0", "it is gone", "restart");
              }));
}

TEST(CErrors, AreThrownAgainAsTheyWere) {
  for (const ErrorKind kind :
       {ErrorKind::config, ErrorKind::capacity, ErrorKind::io, ErrorKind::device, ErrorKind::corrupt,
        ErrorKind::cancelled, ErrorKind::peer, ErrorKind::misuse}) {
    const Error thrown(kind, {"cannot do it", "this", "of a reason", "do that"});
    try {
      c::throw_again(c::answer([&] { throw thrown; }));
      FAIL() << "nothing is thrown";
    } catch (const Error& again) {
      EXPECT_EQ(again.kind(), kind) << again.what();
      EXPECT_STREQ(again.what(), thrown.what());
    }
  }
}

TEST(CErrors, OfAMissingGpuSaySo) {
  const terrace_cuda_options options = TERRACE_INIT(terrace_cuda_options);
  terrace_device* device = nullptr;
  terrace_error* error = terrace_device_cuda(&options, &device);
  terrace_device_free(device);
  if (error == nullptr) GTEST_SKIP() << "this machine has a GPU";
  const uint32_t kind = terrace_error_kind_of(error);
  EXPECT_TRUE(kind == TERRACE_DEVICE_FAILED || kind == TERRACE_CONFIG);
  EXPECT_EQ(device, nullptr);
  expect_kind(kind, error);
}

TEST(CErrors, NameTheLeastBudgetsThatDo) {
  const ScratchFolder folder;
  Arguments arguments(capi::kOnNvme, folder.path());
  arguments.options.host_bytes = 1000;
  terrace_store* store = nullptr;
  terrace_error* error = arguments.create(&store);
  terrace_error_parts parts = TERRACE_INIT(terrace_error_parts);
  terrace_error_get(error, &parts);
  EXPECT_GT(parts.least_host_bytes, 1000u);
  EXPECT_EQ(parts.least_bytes, parts.least_host_bytes);
  EXPECT_EQ(parts.least_device_bytes, 0u);
  EXPECT_NE(std::string(terrace_error_text(error)).find("terrace_options.host_bytes"), std::string::npos)
      << terrace_error_text(error);
  terrace_error_free(error);
  arguments.options.host_bytes = parts.least_bytes - 1;
  EXPECT_EQ(kind_of(arguments.create(&store)), static_cast<uint32_t>(TERRACE_CAPACITY));
  EXPECT_EQ(store, nullptr);
  arguments.options.host_bytes = parts.least_bytes;
  is_well(arguments.create(&store));
  terrace_destroy(store);
}

TEST(CErrors, CallThingsAsTheProgramWants) {
  const ScratchFolder folder;
  Arguments arguments(capi::kOnNvme, folder.path());
  arguments.options.host_bytes = 1000;
  terrace_store* store = nullptr;
  terrace_error* error = arguments.create(&store);
  const auto advice = [&](uint32_t words) {
    terrace_error_parts parts = TERRACE_INIT(terrace_error_parts);
    terrace_error_get_as(error, words, &parts);
    return std::string(parts.advice);
  };
  EXPECT_NE(advice(TERRACE_WORDS_C).find("raise terrace_options.host_bytes"), std::string::npos);
  EXPECT_NE(advice(TERRACE_WORDS_PYTHON).find("raise host_bytes"), std::string::npos);
  EXPECT_NE(advice(TERRACE_WORDS_CONFIGURATION).find("raise terrace.host_memory"), std::string::npos);
  EXPECT_EQ(advice(99), advice(TERRACE_WORDS_C));
  EXPECT_EQ(terrace_error_cause_of(error), static_cast<uint32_t>(TERRACE_CAUSE_OTHER));
  terrace_error_free(error);
  error = terrace_begin_step(nullptr);
  EXPECT_EQ(terrace_error_cause_of(error), static_cast<uint32_t>(TERRACE_CAUSE_NO_STORE));
  terrace_error_parts parts = TERRACE_INIT(terrace_error_parts);
  terrace_error_get_as(error, TERRACE_WORDS_PYTHON, &parts);
  EXPECT_STREQ(parts.what_failed, "Store.begin_step");
  terrace_error_free(error);
  EXPECT_EQ(terrace_error_cause_of(nullptr), static_cast<uint32_t>(TERRACE_CAUSE_OTHER));
}

TEST(CErrors, MayBeAskedOfNothing) {
  EXPECT_EQ(terrace_error_kind_of(nullptr), 0u);
  EXPECT_STREQ(terrace_error_text(nullptr), "");
  terrace_error_parts parts = TERRACE_INIT(terrace_error_parts);
  parts.kind = 5;
  terrace_error_get(nullptr, &parts);
  EXPECT_EQ(parts.kind, 0u);
  EXPECT_STREQ(parts.advice, "");
  terrace_error_get(nullptr, nullptr);
  terrace_error_parts forgotten{};
  terrace_error_get(nullptr, &forgotten);
  terrace_error_free(nullptr);
  terrace_destroy(nullptr);
  terrace_device_free(nullptr);
}

TEST(CErrors, OfTheDrivesStayWithTheStore) {
  const ScratchFolder folder;
  capi::Case c = capi::kOnNvme;
  c.least_host = true;
  Training training(c, folder.path());
  terrace_store* const store = training.get();
  capi::damage_files(folder.path());
  float value = 0;
  terrace_error* first = terrace_read_values(store, 0, TERRACE_MASTER, 0, 1, &value);
  ASSERT_NE(first, nullptr);
  const std::string text = terrace_error_text(first);
  expect_kind(TERRACE_CORRUPT, first);
  uint32_t whole = 0;
  uint64_t lease = 0;
  const uint32_t tensor = 0;
  for (terrace_error* later :
       {terrace_begin_step(store), terrace_begin_evaluation(store), terrace_has_whole_state(store, &whole),
        terrace_lease(store, "k", TERRACE_FORWARD, &tensor, 1, &lease), terrace_end_micro_batch(store)}) {
    ASSERT_NE(later, nullptr);
    EXPECT_EQ(terrace_error_text(later), text);
    expect_kind(TERRACE_CORRUPT, later);
  }
  uint64_t counter = 0;
  is_well(terrace_counters(store, &counter, 1));
}

TEST(CErrors, KeepTwoCallsApart) {
  const ScratchFolder folder;
  Training training({}, folder.path());
  struct Context {
    terrace_store* store;
    std::atomic<uint32_t> kinds;
  } context{training.get(), 0};
  const auto reenter = [](void* given, uint32_t, uint64_t, uint64_t count, float* values) {
    auto* const to = static_cast<Context*>(given);
    to->kinds |= 1u << kind_of(terrace_begin_step(to->store));
    std::fill(values, values + count, 0.5f);
    return 0;
  };
  is_well(terrace_fill_with(training.get(), reenter, &context));
  EXPECT_EQ(context.kinds.load(), 1u << TERRACE_MISUSE);
  std::vector<std::thread> threads;
  std::atomic<uint32_t> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        float value = 0;
        const uint32_t kind = kind_of(terrace_read_values(training.get(), 0, TERRACE_MASTER, 7, 1, &value));
        if (kind == 0 ? value != 0.5f : kind != TERRACE_MISUSE) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
  training.step(1);
}

TEST(CErrors, CloseTheStoreInTheChildOfAFork) {
  const ScratchFolder folder;
  Training training(capi::kOnNvme, folder.path());
  training.step(1);
  const pid_t child = fork();
  if (child == 0) {
    float value = 0;
    const bool refused =
        kind_of(terrace_begin_step(training.get())) == TERRACE_MISUSE &&
        kind_of(terrace_read_values(training.get(), 0, TERRACE_MASTER, 0, 1, &value)) == TERRACE_MISUSE;
    terrace_destroy(training.get());
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  training.step(2);
  EXPECT_FALSE(training.state().empty());
}

TEST(CErrors, OfASmallHostBudgetLeaveTheOneThatThereIs) {
  const ScratchFolder folder;
  Training training(capi::kOnNvme, folder.path());
  uint64_t bytes = 0, least = 0;
  is_well(terrace_host_budget(training.get(), &bytes, &least));
  EXPECT_LT(least, bytes);
  expect_kind(TERRACE_CAPACITY, terrace_set_host_budget(training.get(), least - 1));
  is_well(terrace_set_host_budget(training.get(), least));
  is_well(terrace_host_budget(training.get(), &bytes, &least));
  EXPECT_EQ(bytes, least);
  training.step(1);
}

TEST(CErrors, AreLoggedThroughTheCallback) {
  std::string said;
  const auto take = [](void* context, uint32_t level, const char* line) {
    *static_cast<std::string*>(context) += std::to_string(level) + line;
  };
  c::CallbackLog log(take, &said);
  log.warning("low");
  EXPECT_EQ(said, "1low");
  c::CallbackLog(nullptr, nullptr).error("nobody listens");
}

}  // namespace
}  // namespace terrace::errors_test
