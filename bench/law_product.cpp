// Law 1 over the full product of its factors: millions of small trainings, each compared bit for bit with
// plain vectors. law_product [FIRST [COUNT [STRIDE]]] runs a part of the product, every STRIDE-th combination
// of it; law_product ranks [FIRST [COUNT [STRIDE]]] a part of a list in which every triple of levels of
// several ranks occurs. The exit code is 1 when any differs. A stride that is prime to every number of levels
// reaches all of them soon.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "laws/placement_law.h"
#include "support/scratch_folder.h"

int main(int argc, char** argv) {
  namespace laws = terrace::laws;
  std::vector<laws::Combination> over_ranks;
  if (argc > 1 && std::string_view(argv[1]) == "ranks") {
    over_ranks = laws::covering_array_over_ranks(laws::Strength::triples);
    --argc, ++argv;
  }
  const uint64_t size = over_ranks.empty() ? laws::full_product_size() : over_ranks.size();
  const uint64_t first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const uint64_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : size;
  const uint64_t stride = std::max<uint64_t>(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1, 1);
  const terrace::ScratchFolder folder;
  laws::PlacementLaw law(folder.path());
  const auto start = std::chrono::steady_clock::now();
  uint64_t failures = 0;
  uint64_t runs = 0;
  for (uint64_t index = first; index < size && runs < count; index += stride, ++runs) {
    const laws::Combination combination =
        over_ranks.empty() ? laws::product_element(index) : over_ranks[index];
    std::string problem;
    try {
      problem = difference(law.reference(combination), law.train(combination));
    } catch (const std::exception& error) {
      problem = error.what();
    }
    if (problem.empty()) continue;
    ++failures;
    std::printf("combination %llu (%s): %s\n", static_cast<unsigned long long>(index),
                laws::describe(combination).c_str(), problem.c_str());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%llu of %llu combinations, %llu differ, %.0f s\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(size), static_cast<unsigned long long>(failures),
              seconds.count());
  return failures == 0 ? 0 : 1;
}
