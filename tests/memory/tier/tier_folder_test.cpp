#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <tuple>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/units.h>
#include <terrace/memory/tier/tier_folder.h>

#include "support/scratch_folder.h"

namespace terrace::tier_folder_test {
namespace {

namespace fs = std::filesystem;

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorKind::cancelled, {});
}

mode_t mode_of(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
}

// The contents of a tier file.
std::string marked(const std::string& content) {
  const auto mark = TierFolder::mark();
  return content + std::string(reinterpret_cast<const char*>(mark.data()), mark.size());
}

// A process that holds the folder until it is told to end. It never returns into the test.
class OtherJob {
 public:
  OtherJob(const std::string& path, bool dies_with_files) {
    int ready[2], stop[2];
    if (pipe(ready) != 0 || pipe(stop) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      close(stop[1]);
      MemoryLog log;
      {
        const auto folder = std::make_unique<TierFolder>(path, log);
        std::ofstream(folder->file_path("records")) << marked(std::string(5000, 'r'));
        char byte = 'x';
        if (write(ready[1], &byte, 1) != 1 || read(stop[0], &byte, 1) < 0) _exit(1);
        if (dies_with_files) _exit(0);
      }
      _exit(0);
    }
    close(stop[0]);
    stop_ = stop[1];
    char byte;
    if (read(ready[0], &byte, 1) != 1) throw std::runtime_error("the other job did not start");
    close(ready[0]);
    close(ready[1]);
  }
  ~OtherJob() { end(); }
  void end() {
    if (pid_ == 0) return;
    close(stop_);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int stop_ = -1;
};

TEST(TierFolder, IsMadePrivateAndRemovedAgain) {
  const ScratchFolder place;
  MemoryLog log;
  const std::string path = place / "terrace-tier";
  {
    const TierFolder folder(place.path(), log);
    EXPECT_EQ(folder.path(), path);
    EXPECT_EQ(mode_of(path), 0700u);
    EXPECT_EQ(mode_of(path + "/lock"), 0600u);
    std::ifstream lock(path + "/lock");
    const std::string text{std::istreambuf_iterator<char>(lock), {}};
    EXPECT_EQ(text.rfind("pid " + std::to_string(getpid()) + "\nhost ", 0), 0u) << text;
    EXPECT_NE(text.find("\nstarted 20"), std::string::npos) << text;
    EXPECT_EQ(folder.file_path("records"), path + "/records.tier");
    std::ofstream(folder.file_path("records")) << marked("x");
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::is_empty(place.path()));
  EXPECT_TRUE(log.lines().empty());
}

TEST(TierFolder, TakesAwayThePermissionsOfOthers) {
  const ScratchFolder place;
  MemoryLog log;
  fs::create_directory(place / "terrace-tier");
  ASSERT_EQ(chmod((place / "terrace-tier").c_str(), 0755), 0);
  const TierFolder folder(place / "", log);  // a slash at the end changes nothing
  EXPECT_EQ(mode_of(folder.path()), 0700u);
  EXPECT_EQ(folder.path(), place / "terrace-tier");
}

TEST(TierFolder, SaysWhatIsWrongWithThePath) {
  const ScratchFolder place;
  MemoryLog log;
  const Error missing = error_of([&] { TierFolder(place / "no/where", log); });
  EXPECT_EQ(missing.kind(), ErrorKind::io);
  EXPECT_EQ(missing.parts().subject.in(Door::cpp), place / "no/where");
  EXPECT_NE(missing.parts().reason.find("ENOENT"), std::string::npos);
  EXPECT_NE(missing.parts().advice.in(Door::cpp).find("create"), std::string::npos);

  place.write("file", "x");
  EXPECT_NE(error_of([&] { TierFolder(place / "file", log); }).parts().reason.find("ENOTDIR"),
            std::string::npos);

  place.write("other/target", "x");
  fs::create_directory_symlink(place / "other", place / "terrace-tier");
  EXPECT_EQ(error_of([&] { TierFolder(place.path(), log); }).parts().reason, "it is not a folder");
  EXPECT_TRUE(fs::exists(place / "other/target"));
}

TEST(TierFolder, SaysWhenItMayNotWriteToThePath) {
  if (access("/proc", F_OK) != 0) GTEST_SKIP() << "there is no /proc";
  MemoryLog log;
  const Error error =
      error_of([&] { TierFolder("/proc", log); });  // nobody can make a folder there, root neither
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_EQ(error.parts().subject, "/proc/terrace-tier");
}

TEST(TierFolder, BelongsToOneJobAtATimeAndNamesIt) {
  const ScratchFolder place;
  MemoryLog log;
  OtherJob other(place.path(), false);
  const Error error = error_of([&] { TierFolder(place.path(), log); });
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_NE(error.parts().reason.find("pid " + std::to_string(other.pid())), std::string::npos)
      << error.what();
  EXPECT_TRUE(error.parts().advice.names(Option::nvme_path)) << error.what();
  EXPECT_EQ(fs::file_size(place / "terrace-tier/records.tier"),
            5000u + TierFolder::kMarkBytes);  // untouched
  other.end();
  EXPECT_FALSE(fs::exists(place / "terrace-tier"));
  const TierFolder folder(place.path(), log);
}

TEST(TierFolder, IsTakenWithinOneProcessTooAndSaysSo) {
  const ScratchFolder place;
  MemoryLog log;
  const TierFolder folder(place.path(), log);
  const Error error = error_of([&] { TierFolder(place.path(), log); });
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_EQ(error.parts().subject.in(Door::cpp), place / "terrace-tier");
  EXPECT_EQ(error.parts().reason, "this process is using it already");
  EXPECT_TRUE(error.parts().advice.names(Option::tier_name)) << error.what();
  EXPECT_EQ(error.parts().cause, ErrorCause::folder_in_use);
}

// In another container a process may have the number of this one, and the forked child of a job has its
// files.
TEST(TierFolder, TakesNoOtherJobForThisProcess) {
  const ScratchFolder place;
  MemoryLog log;
  OtherJob other(place.path(), false);
  const fs::path lock = place / "terrace-tier/lock";
  std::ofstream(lock) << "pid " << getpid() << "\nhost a\n";
  EXPECT_EQ(error_of([&] { TierFolder(place.path(), log); }).parts().reason,
            "another job (pid " + std::to_string(getpid()) + ", host a) is using it");
  other.end();
  const TierFolder folder(place.path(), log);
  const pid_t child = fork();
  if (child == 0) {
    const Error error = error_of([&] { TierFolder(place.path(), log); });
    _exit(error.parts().reason.starts_with("another job (pid " + std::to_string(getppid())) ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(TierFolder, RemovesWhatADeadJobLeftOnlyWhenItIsAskedTo) {
  const ScratchFolder place;
  MemoryLog log;
  OtherJob dead(place.path(), true);
  dead.end();
  const std::string left = place / "terrace-tier/records.tier";
  TierFolder folder(place.path(), log);
  EXPECT_TRUE(fs::exists(left));
  const TierFolder::Removed removed = folder.remove_files();
  EXPECT_EQ(removed.files, 1u);
  EXPECT_EQ(removed.bytes, 5000 + TierFolder::kMarkBytes);
  EXPECT_FALSE(fs::exists(left));
}

TEST(TierFolder, LeavesItsFilesWhereTheyAreKeptAndUnlocksThem) {
  const ScratchFolder place;
  MemoryLog log;
  const std::string file = place / "terrace-tier/records.tier";
  {
    TierFolder folder(place.path(), log);
    std::ofstream(file) << marked("x");
    folder.keep_files(true);
  }
  EXPECT_TRUE(fs::exists(file));
  { const TierFolder folder(place.path(), log); }  // nobody has it, and this one keeps nothing
  EXPECT_FALSE(fs::exists(file));
}

TEST(TierFolder, NeverTouchesWhatIsNotItsOwn) {
  const ScratchFolder place;
  MemoryLog log;
  const std::vector<std::string> foreign = {"notes.txt", "Records.tier", "records.tier.bak", ".tier",
                                            "my-file.tier"};
  for (const std::string& name : foreign) place.write("terrace-tier/" + name, "precious");
  place.write("terrace-tier/folder.tier/inside", "precious");
  fs::create_symlink(place / "terrace-tier/notes.txt", place / "terrace-tier/link.tier");
  place.write("terrace-tier/params.tier", marked("left by a dead job"));
  { const TierFolder folder(place.path(), log); }
  for (const std::string& name : foreign) EXPECT_TRUE(fs::exists(place / ("terrace-tier/" + name))) << name;
  EXPECT_TRUE(fs::exists(place / "terrace-tier/folder.tier/inside"));
  EXPECT_TRUE(fs::is_symlink(place / "terrace-tier/link.tier"));
  EXPECT_FALSE(fs::exists(place / "terrace-tier/params.tier"));
  EXPECT_FALSE(fs::exists(place / "terrace-tier/lock"));
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_NE(log.lines()[0].text.find("stays: it holds files that are not Terrace's"), std::string::npos);
}

TEST(TierFolder, LeavesAUsersFileWithTheNameOfATierFileAlone) {
  const ScratchFolder place;
  const std::string almost = marked("text");
  const std::vector<std::pair<std::string, std::string>> foreign = {
      {"records.tier", "precious"},
      {"params.tier", std::string(100'000, 'p')},
      {"longer.tier", almost + "\n"},
      {"changed.tier", almost.substr(0, almost.size() - 1) + "x"},
      {"space", "the final frontier"},
      {"commit-0000000000000007.manifest", "my notes"},
      {"epoch-0000000000000007.manifest", "my older notes"},
      {"commit-0000000000000007.manifest.new", "and more"},
  };
  for (const auto& [name, text] : foreign) place.write("terrace-tier/" + name, text);
  place.write("terrace-tier/empty.tier", "");  // of a job that died at once
  MemoryLog log;
  { const TierFolder folder(place.path(), log); }
  for (const auto& [name, text] : foreign) {
    const std::string path = place / ("terrace-tier/" + name);
    ASSERT_TRUE(fs::exists(path)) << name;
    EXPECT_EQ(fs::file_size(path), text.size()) << name;
    const auto names_it = [&name = name](const MemoryLog::Line& line) {
      return line.level == LogLevel::warning && line.text.find(name + " has the name") != std::string::npos;
    };
    const std::vector<MemoryLog::Line> lines = log.lines();
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(), names_it), 1) << name;
  }
  EXPECT_FALSE(fs::exists(place / "terrace-tier/empty.tier"));
}

// Opening a pipe would wait for its other end.
TEST(TierFolder, TakesNoForeignFileForItsLock) {
  const ScratchFolder folder;
  MemoryLog log;
  const fs::path lock = folder / "terrace-tier/lock";
  const auto refuse = [&] {
    const Error refused = error_of([&] { const TierFolder refused_folder(folder.path(), log); });
    EXPECT_EQ(refused.parts().subject, lock.string());
    EXPECT_FALSE(refused.parts().advice.empty());
  };
  fs::create_directories(lock.parent_path());
  std::ofstream(lock) << "my passwords";
  refuse();
  EXPECT_EQ(fs::file_size(lock), 12u);
  fs::remove(lock);
  ASSERT_EQ(mkfifo(lock.c_str(), 0600), 0);
  refuse();
  fs::remove(lock);
  fs::create_directory(lock);
  refuse();
}

// A power cut may leave zeros; among files of a tier any text will do, since it means nothing.
TEST(TierFolder, TakesItsLockWhateverBecameOfTheText) {
  const ScratchFolder folder;
  MemoryLog log;
  const fs::path lock = folder / "terrace-tier/lock";
  fs::create_directories(lock.parent_path());
  std::ofstream(lock) << std::string(46, '\0');
  { const TierFolder taken(folder.path(), log); }
  fs::create_directories(lock.parent_path());
  std::ofstream(lock) << "any text";
  std::ofstream(lock.parent_path() / "records.tier") << "a file of the user's";
  EXPECT_THROW(TierFolder(folder.path(), log), Error);
  const std::span<const std::byte> mark = TierFolder::mark();
  std::ofstream(lock.parent_path() / "records.tier", std::ios::binary)
      .write(reinterpret_cast<const char*>(mark.data()), static_cast<std::streamsize>(mark.size()));
  const TierFolder taken(folder.path(), log);
}

// The mark of a file aside is written first and has lost its last sectors, and the file its end.
TEST(TierFolder, KnowsAFileAsideByAMarkThatIsTorn) {
  const std::string_view mark(reinterpret_cast<const char*>(TierFolder::mark().data()),
                              TierFolder::kMarkBytes);
  const std::string slot(2 * TierFolder::kMarkBytes, 'x');
  for (const auto& [name, content, is_ours] :
       {std::tuple("records.tier.new", slot + std::string(mark.substr(0, 2048)), true),
        std::tuple("records.tier.new", slot + std::string(mark), true),
        std::tuple("records.tier.new", slot, false), std::tuple("records.tier", slot, false),
        std::tuple("records.tier", slot + std::string(mark.substr(0, 2048)), false)}) {
    SCOPED_TRACE(fmt::format("{} of {} bytes", name, content.size()));
    const ScratchFolder folder;
    MemoryLog log;
    const fs::path lock = folder / "terrace-tier/lock";
    fs::create_directories(lock.parent_path());
    std::ofstream(lock) << "any text";
    std::ofstream(lock.parent_path() / name) << content;
    if (is_ours) {
      EXPECT_NO_THROW(TierFolder(folder.path(), log));
    } else {
      EXPECT_THROW(TierFolder(folder.path(), log), Error);
    }
  }
}

TEST(TierFolder, IsLeftAloneByAForkedChild) {
  const ScratchFolder place;
  MemoryLog log;
  auto folder = std::make_unique<TierFolder>(place.path(), log);
  const pid_t child = fork();
  if (child == 0) {
    folder.reset();
    _exit(0);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fs::exists(folder->path() + "/lock"));
  EXPECT_THROW(TierFolder(place.path(), log), Error);  // still locked
}

// Jobs that start and end at the same moments: each either gets the folder whole, or is told who has it.
void let_jobs_come_and_go(const ScratchFolder& place) {
  std::vector<pid_t> children;
  for (int c = 0; c < 4; ++c) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    MemoryLog log;
    int held = 0;
    for (int round = 0; round < 3000 && held < 50; ++round) {
      try {
        const TierFolder folder(place.path(), log);
        ++held;
        // Only the holder may be here: the file must not exist, and must still be ours afterwards.
        const std::string file = place / "held";
        if (mkdir(file.c_str(), 0700) != 0) _exit(10);
        if (access((folder.path() + "/lock").c_str(), F_OK) != 0) _exit(11);
        if (rmdir(file.c_str()) != 0) _exit(12);
      } catch (const Error& error) {
        if (error.parts().reason.find("is using it") == std::string::npos) {
          std::fprintf(stderr, "%s\n", error.what());
          _exit(13);
        }
        usleep(100);
      }
    }
    _exit(held > 0 ? 0 : 14);
  }
  for (const pid_t child : children) {
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
}

TEST(TierFolder, IsNeverHeldTwiceHoweverJobsComeAndGo) {
  const ScratchFolder place;
  let_jobs_come_and_go(place);
  EXPECT_TRUE(fs::is_empty(place.path()));
}

// Then it is only the lock that comes and goes.
TEST(TierFolder, IsNeverHeldTwiceWhereAForeignFileKeepsItsFolder) {
  const ScratchFolder place;
  place.write("terrace-tier/notes.txt", "precious");
  let_jobs_come_and_go(place);
  EXPECT_FALSE(fs::exists(place / "terrace-tier/lock"));
}

TEST(TierFolder, SaysWhenTheDiskIsTooSmall) {
  const ScratchFolder place;
  MemoryLog log;
  const TierFolder folder(place.path(), log);
  EXPECT_GT(folder.free_bytes(), 0u);
  folder.require_free(0, "nothing");
  constexpr uint64_t kTooMuch = uint64_t{1} << 60;
  const Error error = error_of([&] { folder.require_free(kTooMuch, "the optimizer states"); });
  EXPECT_EQ(error.kind(), ErrorKind::capacity);
  EXPECT_NE(error.parts().what_failed.in(Door::cpp).find("the optimizer states"), std::string::npos);
  EXPECT_NE(error.parts().reason.find("1152921504606846976 bytes"), std::string::npos) << error.what();
  EXPECT_NE(error.parts().reason.find("are free"), std::string::npos);
  EXPECT_FALSE(error.parts().advice.empty());
}

TEST(TierFolder, CountsTheFreeSpaceOfASmallFileSystem) {
  const ScratchFolder place;
  if (mount("none", place.path().c_str(), "tmpfs", 0, "size=4m") != 0)
    GTEST_SKIP() << "mounting a tmpfs needs root";
  {
    MemoryLog log;
    const TierFolder folder(place.path(), log);
    EXPECT_LE(folder.free_bytes(), 4 * kMiB);
    EXPECT_GT(folder.free_bytes(), 3 * kMiB);
    folder.require_free(3 * kMiB, "a file");
    EXPECT_EQ(error_of([&] { folder.require_free(5 * kMiB, "a file"); }).kind(), ErrorKind::capacity);
  }
  EXPECT_EQ(umount(place.path().c_str()), 0);
}

TEST(TierFolderDeathTest, RefusesNamesItWouldNotRecogniseAgain) {
  const ScratchFolder place;
  for (const char* name : {"", "../records", "Records", "a.b"}) {
    EXPECT_DEATH(
        {
          MemoryLog log;
          TierFolder(place.path(), log).file_path(name);
        },
        "is no name for a tier file");
  }
}

}  // namespace
}  // namespace terrace::tier_folder_test
