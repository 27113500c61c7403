// `terrace bench`: the group of measurements. It measures nothing itself.
#include <memory>
#include <vector>

#include "command_line.h"

namespace terrace {
namespace {

class Bench final : public Subcommand {
 public:
  explicit Bench(Command& app) : Subcommand(app, "bench", "Measure what Terrace makes of this machine") {
    command_.require_subcommand();
    command_.footer(
        "Examples:\n"
        "  terrace bench io --directory /mnt/nvme --rw read --size 4GiB\n"
        "  terrace bench step --nvme-path /mnt/nvme --parameters 400M\n"
        "  terrace bench copy --size 64KiB..64MiB\n");
    members_.push_back(add_bench_io(command_));
    members_.push_back(add_bench_step(command_));
    members_.push_back(add_bench_copy(command_));
  }

  int run() override { return run_chosen(command_, members_); }

 private:
  std::vector<std::unique_ptr<Subcommand>> members_;
};

}  // namespace

std::unique_ptr<Subcommand> add_bench(Command& app) {
  return std::make_unique<Bench>(app);
}

}  // namespace terrace
