// What comes of aio.use_gds on a device that can, or cannot.
#include <gtest/gtest.h>

#include <terrace/runtime/train/setup/run_plan.h>

#include "support/expect_error.h"

namespace terrace {
namespace {

class Gpu final : public ComputeDevice {
 public:
  explicit Gpu(std::string reason) : reason_(std::move(reason)) {}
  ComputeFacts facts() const override { return {}; }
  std::unique_ptr<Ops> make_dry_ops(Workers&) const override { return nullptr; }
  std::unique_ptr<Computing> begin(uint64_t, bool, Workers&) const override { return nullptr; }
  std::string why_no_file_reads(std::span<const std::filesystem::path> folders) const override {
    EXPECT_EQ(folders.size(), 1u);
    return reason_;
  }

 private:
  const std::string reason_;
};

TrainConfig wanting(FileReads reads) {
  TrainConfig config;
  config.placement.parameters = Placement::nvme;
  config.placement.parameter_paths = {"/mnt/nvme"};
  config.aio.file_reads = reads;
  return config;
}

// Whether the plan has the device read by itself.
bool settled(FileReads wanted, const ComputeDevice* device, Log& log) {
  TrainConfig config = wanting(wanted);
  settle_file_reads(config, device, log);
  EXPECT_NE(config.aio.file_reads, FileReads::automatic);
  return offload_options(config, {}).reads_past_host;
}

TEST(FileReads, AreTheDevicesWhereItCan) {
  MemoryLog log;
  const Gpu gpu("");
  EXPECT_TRUE(settled(FileReads::on, &gpu, log));
  EXPECT_TRUE(settled(FileReads::automatic, &gpu, log));
  EXPECT_FALSE(settled(FileReads::off, &gpu, log));
  EXPECT_TRUE(log.lines().empty());
}

TEST(FileReads, GoThroughHostMemoryWithOneWarningWhereTheyMayAndHaveTo) {
  MemoryLog log;
  const Gpu gpu("cannot load cuFile");
  EXPECT_FALSE(settled(FileReads::automatic, &gpu, log));
  EXPECT_FALSE(settled(FileReads::automatic, &gpu, log));
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_NE(log.lines()[0].text.find("aio.use_gds is auto"), std::string::npos);
  EXPECT_NE(log.lines()[0].text.find("cannot load cuFile"), std::string::npos);
  EXPECT_FALSE(settled(FileReads::automatic, nullptr, log));  // on the simulated device
}

TEST(FileReads, AreAnErrorWhereTheyAreWantedAndCannotBe) {
  MemoryLog log;
  const Gpu gpu("cannot load cuFile");
  testing::expect_error(ErrorKind::config, {"aio.use_gds", "cannot load cuFile"},
                        [&] { settled(FileReads::on, &gpu, log); });
  testing::expect_error(ErrorKind::config, {"aio.use_gds", "only a GPU"},
                        [&] { settled(FileReads::on, nullptr, log); });
}

}  // namespace
}  // namespace terrace
