#include <terrace/comm/ports/mpi/mpi_plugin.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/comm/messages/message_communicator.h>

#include "comm/rank_worlds.h"
#include "support/expect_error.h"
#include "support/sanitized.h"

namespace terrace::mpi_plugin_test {
namespace {

using testing::expect_error;

// The plug-in that was built with this program.
std::filesystem::path built_plugin() {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  return program.parent_path().parent_path() / "comm" / kMpiPlugin;
}

uint32_t number_in_environment(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr ? static_cast<uint32_t>(std::stoul(text)) : 0;
}

TEST(MpiPlugin, SaysThatItCannotBeLoaded) {
  expect_error(ErrorKind::config, {"cannot load", "libterrace_not_there.so", "No such file", "install MPI"},
               [] { load_mpi("libterrace_not_there.so"); });
}

TEST(MpiPlugin, SaysWhatALibraryLacks) {
  expect_error(ErrorKind::config, {"cannot use", "libc.so.6", "terrace_make_mpi_port", "install MPI"},
               [] { load_mpi("libc.so.6"); });
}

// A rank that a launcher of Open MPI has started. Everything is asked for twice: messages of the second round
// meet what the first has left.
void take_part(Communicator& mine) {
  constexpr uint64_t kPartBytes = 3'000'000;
  const uint32_t rank = mine.rank(), size = mine.size();
  for (uint32_t round = 0; round < 2; ++round) {
    std::vector<std::byte> whole(size * kPartBytes), out(size * 1000, std::byte(rank + round)),
        in(size * 1000);
    std::fill_n(whole.begin() + static_cast<ptrdiff_t>(rank * kPartBytes), kPartBytes, std::byte(rank + 1));
    std::vector<CommPart> to, from;
    for (uint32_t r = 0; r < size; ++r) {
      to.push_back({out.data() + r * 1000, 1000, rank == 0});
      from.push_back({in.data() + r * 1000, 1000});
    }
    Event gathered, exchanged, failed, read;
    gathered.begin(), exchanged.begin(), failed.begin(), read.begin();
    mine.all_gather(Lane::gather, whole, kPartBytes, nullptr, gathered, {"parameters", round, 0});
    mine.all_gather(Lane::gather, whole, kPartBytes, &read, failed, {"parameters", round, 1});
    mine.exchange(Lane::exchange, to, from, nullptr, exchanged, {"gradients", round, 0});
    std::vector<uint32_t> words(size);
    const uint32_t word = rank * 10 + round;
    mine.ballot(Lane::control, std::as_bytes(std::span(&word, 1)), std::as_writable_bytes(std::span(words)));
    read.complete_one(
        rank == 1 ? std::make_exception_ptr(Error(ErrorKind::io, {"cannot read", "a file", "EIO", "look"}))
                  : nullptr);
    gathered.wait(), exchanged.wait();
    expect_error(rank == 1 ? ErrorKind::io : ErrorKind::peer, {"EIO"}, [&] { failed.wait(); });
    for (uint32_t r = 0; r < size; ++r) {
      EXPECT_EQ(words[r], r * 10 + round);
      EXPECT_EQ(whole[(r + 1) * kPartBytes - 1], std::byte(r + 1));
      if (r == rank) continue;
      EXPECT_EQ(from[r].absent, r == 0);
      EXPECT_EQ(in[r * 1000 + 999], r == 0 ? std::byte{0} : std::byte(r + round));
    }
  }
  EXPECT_EQ(mine.counters()[index_of(Lane::gather)],
            (LaneCounters{2, 2 * kPartBytes * (size - 1), 2 * kPartBytes * (size - 1)}));
}

TEST(MpiPlugin, DISABLED_TakesPartAsOneRank) {
  const uint32_t rank = number_in_environment("OMPI_COMM_WORLD_RANK");
  const uint32_t size = number_in_environment("OMPI_COMM_WORLD_SIZE");
  ASSERT_EQ(size, 3u);
  const MakeMessagePort mpi = load_mpi(built_plugin().string());
  {
    MessageCommunicator mine(rank, testing::places_on_one_host(size), mpi);
    take_part(mine);
    EXPECT_NE(mine.host_sentence().find("ranks of this host"), std::string::npos);
  }
  expect_error(ErrorKind::config, {"begins only once"},
               [&] { MessageCommunicator again(rank, testing::places_on_one_host(size), mpi); });
}

TEST(MpiPlugin, CarriesOperationsOfThreeProcesses) {
  if (!std::filesystem::exists(built_plugin())) GTEST_SKIP() << "no MPI was found when Terrace was built";
  if (testing::kSanitized) GTEST_SKIP() << "MPI is not built with the sanitizer";
  if (std::system("mpirun --version 2>/dev/null | grep -q 'Open MPI'") != 0)
    GTEST_SKIP() << "there is no mpirun of Open MPI";
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX -u GTEST_OUTPUT OMPI_ALLOW_RUN_AS_ROOT=1 "
      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 3 '" +
      program + "' --gtest_also_run_disabled_tests --gtest_filter=MpiPlugin.DISABLED_* >&2";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace terrace::mpi_plugin_test
