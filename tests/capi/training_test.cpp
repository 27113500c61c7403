// A training through terrace.h is the training through the Offloader, bit for bit.
#include <gtest/gtest.h>
#include <terrace_run.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::training_test {
namespace {

using capi::Case;
using capi::is_well;
using capi::Training;

constexpr uint64_t kSteps = 4;

std::vector<float> trained(const Case& c, uint64_t steps = kSteps) {
  const ScratchFolder folder;
  Training training(c, folder.path());
  for (uint64_t step = 1; step <= steps; ++step) training.step(step);
  return training.state();
}

std::vector<float> trained_through_offloader(const Case& c) {
  const ScratchFolder folder;
  return capi::train_through_offloader(c, folder.path(), kSteps);
}

TEST(CTraining, HasTheBitsOfTheOffloader) {
  for (const uint32_t placement : {TERRACE_DEVICE, TERRACE_CPU, TERRACE_NVME}) {
    for (const uint32_t gradients : {TERRACE_LEASED, TERRACE_HANDED_OVER}) {
      for (const uint32_t accumulation : {1u, 3u}) {
        const Case c = {.parameters = placement,
                        .states = placement,
                        .gradients = gradients,
                        .accumulation = accumulation};
        SCOPED_TRACE(::testing::Message() << placement << " " << gradients << " " << accumulation);
        const std::vector<float> expected = trained_through_offloader(c);
        EXPECT_EQ(trained(c), expected);
      }
    }
  }
}

TEST(CTraining, HasTheSameBitsWhateverIsAnnouncedAndChosen) {
  const std::vector<float> expected = trained({});
  for (const uint32_t when : {TERRACE_AFTER_BACKWARD, TERRACE_NEXT_FORWARD, TERRACE_DURING_BACKWARD}) {
    Case c = capi::kOnNvme;
    c.update_when = when;
    c.announced = true;
    c.chunk_elements = 0;
    EXPECT_EQ(trained(c), expected) << when;
  }
}

TEST(CTraining, LeavesTensorsInTheProgramAndChangesNoBit) {
  const ScratchFolder folder;
  for (const uint32_t placement : {TERRACE_CPU, TERRACE_NVME}) {
    Case c = {.parameters = placement, .states = placement, .gradients = TERRACE_HANDED_OVER};
    const std::vector<float> expected = trained(c);
    c.callers = true;
    Training training(c, folder.path());
    for (uint64_t step = 1; step <= kSteps; ++step) {
      training.step(step);
      if (step == 2) training.move_tensors();
    }
    EXPECT_EQ(training.state(), expected) << placement;
  }
}

TEST(CTraining, NeedsNoDeviceWhereAllParametersAreThePrograms) {
  float weights[3] = {1, 2, 3};
  const uint64_t shape[1] = {3};
  terrace_tensor tensor = TERRACE_INIT(terrace_tensor);
  tensor.name = "w";
  tensor.shape = shape;
  tensor.rank = 1;
  terrace_options options = TERRACE_INIT(terrace_options);
  options.parameters = options.states = TERRACE_CPU;
  options.host_bytes = 4 << 20;
  options.gradients = TERRACE_HANDED_OVER;
  terrace_store* store = nullptr;
  capi::expect_kind(TERRACE_MISUSE, terrace_create(nullptr, &tensor, 1, &options, nullptr, 0, &store));
  tensor.address = weights;
  ASSERT_TRUE(is_well(terrace_create(nullptr, &tensor, 1, &options, nullptr, 0, &store)));
  terrace_array values = TERRACE_INIT(terrace_array);
  values.data = weights;
  is_well(terrace_fill_arrays(store, &values, 1));
  is_well(terrace_begin_step(store));
  const float gradient[3] = {1, -1, 0};
  is_well(terrace_hand_over(store, 0, gradient, TERRACE_FP32, 0));
  is_well(terrace_end_micro_batch(store));
  terrace_optimizer group = TERRACE_INIT(terrace_optimizer);
  group.lr = 0.5;
  terrace_update_settings settings = TERRACE_INIT(terrace_update_settings);
  settings.groups = &group;
  settings.group_count = 1;
  settings.step = 1;
  is_well(terrace_update(store, &settings, nullptr));
  EXPECT_FLOAT_EQ(weights[0], 0.5f);
  EXPECT_FLOAT_EQ(weights[1], 2.5f);
  EXPECT_EQ(weights[2], 3.0f);
  terrace_destroy(store);
}

TEST(CTraining, ChangesWhenUpdatesRun) {
  const ScratchFolder folder;
  Training training(capi::kOnNvme, folder.path());
  uint32_t when = 99;
  for (const uint32_t wanted : {TERRACE_NEXT_FORWARD, TERRACE_DURING_BACKWARD, TERRACE_AFTER_BACKWARD}) {
    is_well(terrace_set_update_when(training.get(), wanted));
    is_well(terrace_get_update_when(training.get(), &when));
    EXPECT_EQ(when, wanted);
    training.step(wanted + 1);
    is_well(terrace_finish_update(training.get()));
    uint32_t pending = 1;
    is_well(terrace_update_pending(training.get(), &pending));
    EXPECT_EQ(pending, 0u);
  }
}

TEST(CTraining, GoesOnAfterACommitThatFailed) {
  const ScratchFolder folder;
  Case c = capi::kOnNvme;
  c.durable = 1;
  const std::vector<float> expected = trained(c);
  Training training(c, folder.path());
  const std::filesystem::path tier = std::filesystem::directory_iterator(folder.path())->path();
  uint64_t number = 0;
  // Where the file of a commit is to be.
  const auto place_of = [&](char commit) {
    return tier / ("commit-000000000000000" + std::string(1, commit) + ".manifest.new");
  };
  training.step(1);
  is_well(terrace_begin_commit(training.get(), "first", 0));
  is_well(terrace_finish_commit(training.get(), &number));
  for (const char commit : {'2', '3'}) std::filesystem::create_directory(place_of(commit));
  training.step(2);
  is_well(terrace_begin_commit(training.get(), "second", 0));
  capi::expect_kind(TERRACE_IO, terrace_finish_commit(training.get(), &number));
  training.step(3);
  is_well(terrace_begin_commit(training.get(), "third", 0));
  uint32_t in_progress = 1;
  while (in_progress != 0) is_well(terrace_commit_in_progress(training.get(), &in_progress));
  capi::expect_kind(TERRACE_IO, terrace_begin_step(training.get()));  // is told of once
  is_well(terrace_last_commit(training.get(), &number));
  EXPECT_EQ(number, 1u);
  training.step(4);
  EXPECT_EQ(training.state(), expected);
  is_well(terrace_begin_commit(training.get(), "fourth", 0));
  is_well(terrace_finish_commit(training.get(), &number));
  EXPECT_EQ(number, 4u);
}

TEST(CTraining, GoesOnFromItsCommit) {
  const ScratchFolder folder;
  Case c = capi::kOnNvme;
  c.durable = 1;
  c.chunk_elements = 8192;
  std::vector<float> expected = trained(c);
  {
    Training training(c, folder.path());
    training.step(1);
    training.step(2);
    is_well(terrace_begin_commit(training.get(), "two steps\nof four", 0));
    uint64_t number = 0;
    is_well(terrace_finish_commit(training.get(), &number));
    EXPECT_EQ(number, 1u);
    training.step(3);  // is lost
  }
  c.resume = 1;
  c.chunk_elements = 0;  // found in the commit
  Training training(c, folder.path());
  const char* text = nullptr;
  is_well(terrace_taken_up_text(training.get(), &text));
  EXPECT_STREQ(text, "two steps\nof four");
  terrace_plan_result plan = TERRACE_INIT(terrace_plan_result);
  is_well(terrace_plan_of(training.get(), &plan));
  EXPECT_EQ(plan.chunk_elements, 8192u);
  training.step(3);
  training.step(4);
  std::vector<float> state = training.state();
  expected.erase(expected.end() - kSteps, expected.end() - kSteps + 2);  // norms before the commit
  EXPECT_EQ(state, expected);
  is_well(terrace_keep_tier(training.get(), 0));
  training.end();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(CTraining, GivesUpAStep) {
  const ScratchFolder folder;
  Training training({}, folder.path());
  training.step(1);
  const std::vector<float> before = training.state();
  is_well(terrace_begin_step(training.get()));
  training.micro_batch(2, 0);
  is_well(terrace_abandon_step(training.get()));
  EXPECT_EQ(training.state(), before);
}

TEST(CTraining, SkipsTensorsWithoutAGradientAndCountsSteps) {
  const ScratchFolder folder;
  Case c;
  c.unused = TERRACE_UNUSED_SKIP;
  c.gradients = TERRACE_HANDED_OVER;
  Training training(c, folder.path());
  terrace_store* const store = training.get();
  training.step(1);
  is_well(terrace_begin_step(store));
  const std::vector<float> gradient(capi::specs()[3].element_count(), 0.5f);
  is_well(terrace_hand_over(store, 3, gradient.data(), TERRACE_FP32, 0));
  is_well(terrace_end_micro_batch(store));
  training.end_step(0);  // the number of the step has no meaning
  uint64_t steps[4] = {9, 9, 9, 9};
  is_well(terrace_tensor_steps(store, steps, 4));
  EXPECT_EQ(std::vector<uint64_t>(steps, steps + 4), (std::vector<uint64_t>{1, 1, 0, 2}));
  steps[0] = 7;
  is_well(terrace_set_tensor_steps(store, steps, 4));
  steps[0] = 0;
  is_well(terrace_tensor_steps(store, steps, 4));
  EXPECT_EQ(steps[0], 7u);
}

// The number that limbs are, up to the last bits.
double value_of(const uint64_t* limbs) {
  double value = 0;
  for (int i = TERRACE_SQUARES_LIMBS; i-- > 0;)
    value += std::ldexp(static_cast<double>(limbs[i]), 32 * i - 320);
  return value;
}

// A tensor of `values` alone in a store of the program's memory, with its gradient of a step handed over.
terrace_store* with_gradient(std::vector<float>& values, const float* gradient) {
  const uint64_t shape[1] = {values.size()};
  terrace_tensor tensor = TERRACE_INIT(terrace_tensor);
  tensor.name = "w";
  tensor.shape = shape;
  tensor.rank = 1;
  tensor.address = values.data();
  terrace_options options = TERRACE_INIT(terrace_options);
  options.parameters = options.states = TERRACE_CPU;
  options.host_bytes = 4 << 20;
  options.gradients = TERRACE_HANDED_OVER;
  terrace_store* store = nullptr;
  is_well(terrace_create(nullptr, &tensor, 1, &options, nullptr, 0, &store));
  terrace_array array = TERRACE_INIT(terrace_array);
  array.data = values.data();
  is_well(terrace_fill_arrays(store, &array, 1));
  is_well(terrace_begin_step(store));
  is_well(terrace_hand_over(store, 0, gradient, TERRACE_FP32, 0));
  is_well(terrace_end_micro_batch(store));
  return store;
}

TEST(CTraining, SquaresOfTwoStoresAddUpToThoseOfOneLimbByLimb) {
  constexpr size_t kFirst = 8192, kAll = 10000;  // parts meet at a multiple of 4096 elements
  std::vector<float> gradient(kAll);
  for (size_t i = 0; i < kAll; ++i) gradient[i] = std::ldexp(1.0f + 0.001f * static_cast<float>(i), i % 60);
  std::vector<float> all(kAll), first(kFirst), second(kAll - kFirst);
  terrace_store* stores[] = {with_gradient(all, gradient.data()), with_gradient(first, gradient.data()),
                             with_gradient(second, gradient.data() + kFirst)};
  uint64_t limbs[3][TERRACE_SQUARES_LIMBS];
  double not_finite[3] = {1, 1, 1};
  for (int i = 0; i < 3; ++i)
    is_well(terrace_gradient_squares(stores[i], limbs[i], TERRACE_SQUARES_LIMBS, &not_finite[i]));
  uint64_t carried = 0;
  for (int i = 0; i < TERRACE_SQUARES_LIMBS; ++i) {
    const uint64_t sum = limbs[1][i] + limbs[2][i] + carried;
    EXPECT_EQ(sum & 0xffffffff, limbs[0][i]) << i;
    carried = sum >> 32;
  }
  terrace_optimizer group = TERRACE_INIT(terrace_optimizer);
  terrace_update_settings settings = TERRACE_INIT(terrace_update_settings);
  settings.groups = &group;
  settings.group_count = 1;
  settings.step = 1;
  terrace_update_result result = TERRACE_INIT(terrace_update_result);
  is_well(terrace_update(stores[0], &settings, &result));
  EXPECT_NEAR(std::sqrt(value_of(limbs[0])) / result.gradient_norm, 1, 1e-15);
  for (terrace_store* store : stores) terrace_destroy(store);
  for (const double one : not_finite) EXPECT_EQ(one, 0);
}

TEST(CTraining, SquaresOfAGradientThatIsNotFiniteSaySo) {
  std::vector<float> values(3);
  const float gradient[3] = {1, INFINITY, 2};
  terrace_store* const store = with_gradient(values, gradient);
  uint64_t limbs[TERRACE_SQUARES_LIMBS];
  double not_finite = 0;
  is_well(terrace_gradient_squares(store, limbs, TERRACE_SQUARES_LIMBS, &not_finite));
  EXPECT_TRUE(std::isinf(not_finite));
  terrace_destroy(store);
}

}  // namespace
}  // namespace terrace::training_test
