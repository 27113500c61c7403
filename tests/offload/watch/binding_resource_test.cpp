#include <terrace/offload/watch/binding_resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace::binding_resource_test {
namespace {

using ::testing::HasSubstr;

// A step of 100 that computes for 60, with a disk that is busy for `disk`.
OffloadCounters computing_60(uint64_t disk) {
  OffloadCounters counted;
  counted.time[TimeCause::compute] = 40;
  counted.time[TimeCause::update] = 15;
  counted.time[TimeCause::overhead] = 5;
  counted.time[TimeCause::read] = 25;
  counted.time[TimeCause::write] = 10;
  counted.time[TimeCause::commit] = 5;
  counted.disk_busy_ns = disk;
  return counted;
}

Resource bound_by(const OffloadCounters& counted) {
  return resource_use(counted).binding;
}

TEST(BindingResource, IsTheOneThatIsBusyForMostOfTheTime) {
  EXPECT_EQ(bound_by(computing_60(59)), Resource::processor);
  EXPECT_EQ(bound_by(computing_60(61)), Resource::disk_reads) << "though it is waited for 35 only";
  OffloadCounters copying = computing_60(61);
  copying.h2d_busy_ns = 80;
  EXPECT_EQ(bound_by(copying), Resource::host_to_device);
  copying.d2h_busy_ns = 90;
  EXPECT_EQ(bound_by(copying), Resource::device_to_host);
}

TEST(BindingResource, IsTheProcessorWhereNothingElseIsBusyForLonger) {
  EXPECT_EQ(bound_by(OffloadCounters{}), Resource::processor);
  EXPECT_EQ(bound_by(computing_60(60)), Resource::processor);
}

TEST(BindingResource, NamesTheDirectionOfTheDiskThatIsWaitedForLonger) {
  OffloadCounters counted = computing_60(90);
  counted.record_write_bytes = 1000;
  EXPECT_EQ(bound_by(counted), Resource::disk_reads);
  counted.time[TimeCause::write] = 30;
  EXPECT_EQ(bound_by(counted), Resource::disk_writes);
  counted.time[TimeCause::read] = 30;
  EXPECT_EQ(bound_by(counted), Resource::disk_writes) << "equal waits, and more bytes are written";
  counted.param_read_bytes = 1001;
  EXPECT_EQ(bound_by(counted), Resource::disk_reads);
}

// The turn on a drive that another process has is waited for while no transfer of ours is under way.
TEST(BindingResource, CountsADiskAsBusyWhileItIsWaitedFor) {
  OffloadCounters counted = computing_60(0);
  counted.time[TimeCause::read] = 70;
  EXPECT_EQ(bound_by(counted), Resource::disk_reads);
}

TEST(BindingResource, IsSaidInOneLineWithTheShareOfEach) {
  const ResourceUse use = resource_use(computing_60(75));
  EXPECT_EQ(use.total_ns, 100u);
  EXPECT_EQ(use.processor_ns, 60u);
  EXPECT_EQ(resource_text(use),
            "bound by disk reads; busy: processor 60.0 %, disk 75.0 %, h2d 0.0 %, d2h 0.0 %");
  EXPECT_THAT(resource_text(resource_use(OffloadCounters{})), HasSubstr("processor 0.0 %"));
}

// How long the processor waits for what a device computes says nothing of either.
TEST(BindingResource, OfAStepBesideADeviceIsWhatIsBusiestOfBoth) {
  OffloadCounters counted;
  counted.time[TimeCause::compute] = 90;
  counted.time[TimeCause::update] = 10;
  counted.h2d_busy_ns = 60;
  const ResourceUse use = resource_use(counted, {90, 10});
  EXPECT_EQ(use.binding, Resource::device_compute);
  EXPECT_EQ(key_of(use.binding), "device_compute");
  EXPECT_EQ(resource_text(use),
            "bound by operations of the device; busy: device 90.0 %, processor 10.0 %, disk 0.0 %, h2d 60.0 "
            "%, d2h 0.0 %");
  EXPECT_EQ(resource_use(counted, {50, 10}).binding, Resource::host_to_device);
  EXPECT_EQ(resource_use(counted, {50, 95}).binding, Resource::processor);
}

}  // namespace
}  // namespace terrace::binding_resource_test
