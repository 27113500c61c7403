// A machine in a folder whose only process is in the memory cgroup /job/step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "support/scratch_folder.h"

namespace terrace {

class FakeCgroup {
 public:
  FakeCgroup() {
    std::filesystem::create_directories(root() / kFolder);
    scratch_.write("proc/self/cgroup", "0::/job/step\n");
  }
  const std::filesystem::path& root() const { return scratch_.path(); }
  // A file of its own cgroup.
  void write(const std::string& name, const std::string& text) const {
    scratch_.write(kFolder / name, text + "\n");
  }
  // Of `current` bytes, so many are pages of files.
  void set(uint64_t limit, uint64_t current, uint64_t file_pages, double stalled_percent) const {
    write("memory.max", std::to_string(limit));
    write("memory.high", "max");
    write("memory.current", std::to_string(current));
    write("memory.stat", "anon 1\nfile 2\ninactive_file " + std::to_string(file_pages / 2) +
                             "\nactive_file " + std::to_string(file_pages - file_pages / 2));
    write("memory.pressure", "some avg10=99.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=" +
                                 std::to_string(stalled_percent) + " avg60=0.00 avg300=0.00 total=1");
  }

 private:
  static inline const std::filesystem::path kFolder = "sys/fs/cgroup/job/step";

  ScratchFolder scratch_;
};

}  // namespace terrace
