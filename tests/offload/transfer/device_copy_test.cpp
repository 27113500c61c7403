#include <terrace/offload/transfer/device_copy.h>

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace terrace::device_copy_test {
namespace {

// What the watch says of the wait for the copy, which ends as it is said.
template <typename Wait>
std::string said_of(StepWatch& watch, DeviceCopy& copy, Wait wait) {
  std::string said;
  std::thread device([&] {
    while (!watch.current()) std::this_thread::yield();
    said = watch.describe(*watch.current()).value_or("");
    copy.complete_one();
  });
  wait();
  device.join();
  return said;
}

TEST(DeviceCopy, IsWaitedForByTheNameThatItWasStartedWith) {
  StepWatch watch;
  watch.set_activity("h3");
  DeviceCopy copy;
  copy.begin(to_device_copy("parameters", ChunkId{7}));
  EXPECT_EQ(said_of(watch, copy, [&] { copy.wait(watch); }),
            "h3 waits for parameters of chunk 7 (host -> device)");
  copy.begin(to_host_copy("the norm"));
  EXPECT_EQ(said_of(watch, copy, [&] { copy.wait_done(watch); }), "h3 waits for the norm (device -> host)");
}

TEST(DeviceCopy, HasNoNameOfAnEarlierCopyWhereItIsGivenNone) {
  DeviceCopy copy;
  copy.begin(to_host_copy("gradients", ChunkId{1}));
  copy.complete_one();
  copy.begin();
  EXPECT_EQ(copy.subject().what, "a copy");
  EXPECT_EQ(copy.subject().chunk, std::nullopt);
  copy.complete_one();
}

TEST(DeviceCopy, ThrowsItsFailureWhereItIsWaitedForAndNotWhereItIsLeft) {
  StepWatch watch;
  DeviceCopy copy;
  copy.begin(to_host_copy("gradients"), 2);
  copy.complete_one(std::make_exception_ptr(std::runtime_error("played")));
  copy.complete_one();
  copy.wait_done(watch);
  EXPECT_THROW(copy.wait(watch), std::runtime_error);
}

}  // namespace
}  // namespace terrace::device_copy_test
