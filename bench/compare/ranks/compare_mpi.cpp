// compare_mpi ROUNDS [MIB [NAME...]]: under mpirun, what ranks exchange for a chunk of bf16 elements, beside
// MPI's own collectives. compare.py runs it, beside gloo. All of these or those named, by turns, so that what
// else the machine does meets all alike:
//
// - `exchange`: every rank gets its part of a gradient from all and adds the parts in order in fp32
// - `reduce_scatter`: MPI_Reduce_scatter_block of the same elements in fp32
// - `gather`: every rank gets the whole chunk
// - `allgather`: MPI_Allgather
// - `exchange_messages`, `gather_messages`: in messages of MPI, instead of out of each other's memory
// - `late`, `allgather_late`: a gather whose last rank comes three seconds late
//
// The first rank prints a line for each and round: its name, the seconds of one, of the slowest rank, and the
// seconds of processor time of one, of all threads of all ranks (of those that are late: of the ranks that
// wait, in the mean).
#include <fmt/format.h>
#include <mpi.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>
#include <terrace/comm/messages/message_communicator.h>
#include <terrace/comm/ports/mpi/mpi_plugin.h>
#include <terrace/memory/host/pages.h>
#include <terrace/optimizer_cpu/gradient.h>

namespace terrace {
namespace {

constexpr int kRepeats = 8;
constexpr auto kLate = std::chrono::seconds(3);

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// The chunk of every rank, and room for what becomes of it.
class Chunk {
 public:
  Chunk(uint64_t bytes, uint32_t rank, uint32_t size)
      : rank_(rank),
        size_(size),
        part_bytes_(bytes / size),
        gradient_(map(bytes)),
        incoming_(map(bytes)),
        whole_(map(bytes)),
        sum_(map(2 * part_bytes_)),
        wide_gradient_(map(2 * bytes)) {
    auto* const wide = reinterpret_cast<float*>(wide_gradient_.memory().data());
    for (uint64_t i = 0; i < bytes / 2; ++i) wide[i] = static_cast<float>(i % 1000 + rank);
    convert_from_float(best_instruction_set(), wide, gradient_.memory().data(), DataType::bf16, bytes / 2);
    for (uint32_t r = 0; r < size; ++r) {
      to_.push_back({gradient_.memory().data() + r * part_bytes_, part_bytes_});
      from_.push_back({incoming_.memory().data() + r * part_bytes_, part_bytes_});
    }
  }

  void gather(Communicator& ranks) {
    Event done;
    done.begin();
    ranks.all_gather(Lane::gather, whole_.memory(), part_bytes_, nullptr, done, {"parameters", 0, 0});
    done.wait();
  }
  void allgather() {
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, whole_.memory().data(), static_cast<int>(part_bytes_), MPI_BYTE,
                  MPI_COMM_WORLD);
  }
  void exchange_and_add(Communicator& ranks) {
    Event done;
    done.begin();
    ranks.exchange(Lane::exchange, to_, from_, nullptr, done, {"gradients", 0, 0});
    done.wait();
    for (uint32_t r = 0; r < size_; ++r)
      accumulate(best_instruction_set(), {.accumulator = sum_.memory().data(),
                                          .gradient = r == rank_ ? to_[r].memory : from_[r].memory,
                                          .gradient_type = DataType::bf16,
                                          .count = part_bytes_ / 2,
                                          .first = r == 0});
  }
  void reduce_scatter() {
    MPI_Reduce_scatter_block(wide_gradient_.memory().data(), sum_.memory().data(),
                             static_cast<int>(part_bytes_ / 2), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }

 private:
  static PageMapping map(uint64_t bytes) { return PageMapping::populated(bytes, true, "a comparison"); }

  const uint32_t rank_;
  const uint32_t size_;
  const uint64_t part_bytes_;
  PageMapping gradient_, incoming_, whole_, sum_, wide_gradient_;
  std::vector<CommPart> to_, from_;
};

struct Used {
  double seconds = 0;
  double processor_seconds = 0;
};

Used time_of(const std::function<void()>& body, int repeats) {
  const double processor_begin = processor_seconds();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) body();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return {seconds.count() / repeats, (processor_seconds() - processor_begin) / repeats};
}

void print(uint32_t rank, const char* name, Used used, double processor_share) {
  std::array<double, 1> most{}, sum{};
  MPI_Reduce(&used.seconds, most.data(), 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  MPI_Reduce(&used.processor_seconds, sum.data(), 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) fmt::print("{} {:.6f} {:.6f}\n", name, most[0], sum[0] * processor_share);
}

void compare(uint32_t rank, uint32_t size, int rounds, uint64_t bytes, std::span<char* const> names) {
  const auto is_wanted = [&](std::string_view name) {
    return names.empty() || std::ranges::find(names, name) != names.end();
  };
  std::vector<RankPlace> places(size);
  for (uint32_t r = 0; r < size; ++r) places[r].rank = r;
  const MakeMessagePort mpi = load_mpi(own_mpi_plugin());
  MessageCommunicator peers(rank, places, mpi), messages(rank, places, mpi, {.read_process = {}});
  Chunk chunk(bytes, rank, size);
  struct Contender {
    const char* name;
    std::function<void()> run;
  };
  const std::vector<Contender> contenders = {
      {"exchange", [&] { chunk.exchange_and_add(peers); }},
      {"exchange_messages", [&] { chunk.exchange_and_add(messages); }},
      {"reduce_scatter", [&] { chunk.reduce_scatter(); }},
      {"gather", [&] { chunk.gather(peers); }},
      {"gather_messages", [&] { chunk.gather(messages); }},
      {"allgather", [&] { chunk.allgather(); }},
  };
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    for (const Contender& contender : contenders) {
      if (!is_wanted(contender.name)) continue;
      MPI_Barrier(MPI_COMM_WORLD);
      const Used used = time_of(contender.run, kRepeats);
      if (round >= 0) print(rank, contender.name, used, 1);
    }
  }
  const std::vector<Contender> waiting = {{"late", [&] { chunk.gather(peers); }},
                                          {"allgather_late", [&] { chunk.allgather(); }}};
  for (const Contender& contender : waiting) {
    if (!is_wanted(contender.name)) continue;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank + 1 == size) std::this_thread::sleep_for(kLate);
    Used used = time_of(contender.run, 1);
    if (rank + 1 == size) used = {};
    print(rank, contender.name, used, 1.0 / (size - 1));
  }
  if (rank == 0) fmt::print("# {}\n", peers.host_sentence());
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const uint64_t bytes = (argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 16) * terrace::kMiB;
  setenv("OMPI_MCA_mpi_yield_when_idle", "1",
         0);  // as Terrace has it: else four ranks on two cores stand still
  int level = 0, rank = 0, size = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);  // the threads of the communicators call, too
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  TERRACE_ASSERT(level >= MPI_THREAD_SERIALIZED && size > 1, "several ranks, and MPI on any thread");
  terrace::compare(static_cast<uint32_t>(rank), static_cast<uint32_t>(size), rounds, bytes,
                   std::span(argv + std::min(argc, 3), argv + argc));
  MPI_Finalize();
}
