#include <terrace/reference/fault_spec.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace::fault_spec_test {
namespace {

using io::FaultKind;

TEST(FaultSpec, SaysWhereWhatAndWhen) {
  const io::Fault fault = parse_fault_spec("write:error=ENOSPC,at=120,file=records.tier");
  EXPECT_EQ(fault.operation, io::OpKind::write);
  EXPECT_EQ(fault.kind, FaultKind::fail);
  EXPECT_EQ(fault.error, ENOSPC);
  EXPECT_EQ(fault.index, 119u) << "people count from 1";
  EXPECT_EQ(fault.file, "records.tier");

  const io::Fault slow = parse_fault_spec("read:delay=20ms,every=10,from=5,path=/mnt/b,after=1.5s");
  EXPECT_EQ(slow.operation, io::OpKind::read);
  EXPECT_EQ(slow.kind, FaultKind::delay);
  EXPECT_EQ(slow.delay_ns, 20'000'000u);
  EXPECT_EQ(slow.every, 10u);
  EXPECT_EQ(slow.from_index, 4u);
  EXPECT_EQ(slow.path, "/mnt/b");
  EXPECT_EQ(slow.from_ns, 1'500'000'000u);
  EXPECT_EQ(slow.index, io::kEveryIndex);

  const io::Fault limited = parse_fault_spec("path=/mnt/b:rate=200MB/s");
  EXPECT_EQ(limited.kind, FaultKind::rate_limit);
  EXPECT_EQ(limited.bytes_per_second, 200'000'000u);
  EXPECT_FALSE(limited.operation);

  const io::Fault rare = parse_fault_spec("seed=7,probability=1e-4,corrupt");
  EXPECT_EQ(rare.seed, 7u);
  EXPECT_EQ(rare.probability, 1e-4);
  EXPECT_EQ(rare.kind, FaultKind::corrupt_read);
  EXPECT_EQ(rare.bytes, io::kAnyByte);
}

TEST(FaultSpec, KnowsEveryKindOfFault) {
  EXPECT_EQ(parse_fault_spec("corrupt=12").bytes, 12u);
  EXPECT_EQ(parse_fault_spec("short=4KiB").kind, FaultKind::short_transfer);
  EXPECT_EQ(parse_fault_spec("short=4KiB").bytes, 4096u);
  EXPECT_EQ(parse_fault_spec("torn=512").kind, FaultKind::torn_write);
  EXPECT_EQ(parse_fault_spec("torn=512").bytes, 512u);
  EXPECT_EQ(parse_fault_spec("lost").kind, FaultKind::torn_write);
  EXPECT_EQ(parse_fault_spec("lost").bytes, 0u);
  EXPECT_EQ(parse_fault_spec("lost").operation, io::OpKind::write);
  EXPECT_EQ(parse_fault_spec("write:full-after=1GiB").kind, FaultKind::full);
  EXPECT_EQ(parse_fault_spec("write:full-after=1GiB").bytes, kGiB);
  EXPECT_EQ(parse_fault_spec("write:full-after=5MB").bytes, 5'000'000u / 4096 * 4096);
  EXPECT_EQ(parse_fault_spec("error=EINTR").error, EINTR);
  EXPECT_EQ(parse_fault_spec("error=EAGAIN").error, EAGAIN);
  EXPECT_EQ(parse_fault_spec("delay=3us").delay_ns, 3000u);
}

TEST(FaultSpec, IsRefusedWithTheWordThatIsWrong) {
  const auto refusal = [](const char* spec) -> std::string {
    try {
      parse_fault_spec(spec);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      return error.what();
    }
    return "accepted";
  };
  const std::pair<const char*, const char*> kCases[] = {
      {"", "does not say what goes wrong"},
      {"write", "does not say what goes wrong"},
      {"wrote:error=EIO", "no word \"wrote\""},
      {"error=EWHATEVER", "\"EWHATEVER\""},
      {"error", "error has no value"},
      {"error=", "error is empty"},
      {"error=EIO,error=EIO", "error twice"},
      {"error=EIO,delay=1ms", "both error and delay"},
      {"read,write,delay=1ms", "read and write do not go together"},
      {"read:lost", "lost is for writes"},
      {"lost=5", "lost takes no value"},
      {"write:corrupt", "corrupt is for reads"},
      {"delay=20", "\"20\""},
      {"delay=-1ms", "\"-1ms\""},
      {"delay=1e30s", "\"1e30s\""},
      {"at=0,lost", "at is \"0\""},
      {"at=1.5,lost", "at is \"1.5\""},
      {"at=3,every=2,lost", "at and every do not go together"},
      {"probability=2,lost", "probability is \"2\""},
      {"probability=nan,lost", "probability is \"nan\""},
      {"seed=1,lost", "seed has no effect"},
      {"rate=5MB", "rate is \"5MB\""},
      {"rate=0MB/s", "nothing would ever pass"},
      {"rate=5MB/s,every=3", "rate and every do not go together"},
      {"full-after=1GiB,at=3", "full-after and at do not go together"},
      {"short=0", "end of the file"},
      {"short=1000", "whole blocks"},
      {"torn=lots", "lots"},
      {"lost,,at=1", "no word \"\""},
  };
  for (const auto& [spec, word] : kCases) EXPECT_THAT(refusal(spec), ::testing::HasSubstr(word)) << spec;
}

}  // namespace
}  // namespace terrace::fault_spec_test
