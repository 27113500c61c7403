#include <terrace/base/text/text_file.h>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "support/scratch_folder.h"

namespace terrace::text_file_test {
namespace {

std::string read(const std::filesystem::path& path, size_t most_bytes = 64) {
  return text_of_file(path, most_bytes, [](const Reason& reason) {
    throw Error(ErrorKind::config, {"cannot read the file", "", reason, ""});
  });
}

std::string problem(const std::filesystem::path& path, size_t most_bytes = 64) {
  try {
    return "read: " + read(path, most_bytes);
  } catch (const Error& error) {
    return error.parts().reason;
  }
}

TEST(TextFile, IsReadAsAWholeOrNotAtAll) {
  const ScratchFolder folder;
  folder.write("text", "four");
  folder.write("empty", "");
  EXPECT_EQ(read(folder / "text", 4), "four");
  EXPECT_EQ(read(folder / "empty"), "");
  EXPECT_EQ(problem(folder / "text", 3), "it is larger than 3 B");
  EXPECT_EQ(problem(folder / "missing"), "No such file or directory (ENOENT)");
  EXPECT_EQ(problem(folder.path()), "Is a directory (EISDIR)");
  EXPECT_EQ(problem("/dev/zero"), "it is larger than 64 B");
}

TEST(TextFile, MayBeAPipeThatSomebodyWritesTo) {
  const ScratchFolder folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] {
    std::ofstream out(pipe);
    out << "in ";
    out.flush();
    out << "pieces";
  });
  EXPECT_EQ(read(pipe), "in pieces");
  writer.join();
  EXPECT_EQ(problem(pipe),
            "it is a pipe, and nothing came out of it (of several ranks that read a pipe, one gets all)");
}

}  // namespace
}  // namespace terrace::text_file_test
