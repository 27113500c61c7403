// `terrace bench`: the group of measurements. It measures nothing itself.
#include <memory>
#include <vector>

#include "command_line.h"

namespace terrace {
namespace {

class Bench final : public Subcommand {
 public:
  explicit Bench(Command& app)
      : command_(app.add_subcommand(name_, "Measure what Terrace makes of this machine")) {
    command_.require_subcommand();
    command_.footer(
        "Examples:\n"
        "  terrace bench io --directory /mnt/nvme --rw read --size 4GiB\n"
        "  terrace bench adam --parameters 128M --threads 1 --threads 2\n"
        "  terrace bench step --nvme-path /mnt/nvme --parameters 400M\n"
        "  terrace bench copy --size 64KiB..64MiB\n");
    members_.push_back(add_bench_io(command_));
    members_.push_back(add_bench_adam(command_));
    members_.push_back(add_bench_step(command_));
    members_.push_back(add_bench_copy(command_));
  }

  const std::string& name() const override { return name_; }

  int run() override {
    const std::string chosen = command_.chosen_subcommand();
    for (const auto& member : members_) {
      if (member->name() == chosen) return member->run();
    }
    return kUsage;
  }

 private:
  const std::string name_ = "bench";
  Command command_;
  std::vector<std::unique_ptr<Subcommand>> members_;
};

}  // namespace

std::unique_ptr<Subcommand> add_bench(Command& app) {
  return std::make_unique<Bench>(app);
}

}  // namespace terrace
