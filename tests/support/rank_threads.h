// Ranks as threads of a test.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <terrace/comm/operations/communicator.h>

namespace terrace::testing {

// Places of ranks that are on several hosts, in name.
inline std::vector<RankPlace> places_on(const HostLayout& hosts) {
  std::vector<RankPlace> places;
  for (uint32_t r = 0; r < hosts.ranks; ++r)
    places.push_back({r, hosts.host_of(r), hosts.place_on_host(r), "host", 1});
  return places;
}

// Runs `body` on every rank of a ThreadWorld or RankWorld at once, each on a thread of its own, and returns
// what they failed with, by rank; empty: with nothing. A rank that fails leaves the run, so that the others
// do not wait for it.
template <class World>
std::vector<std::string> on_every_rank(World& world, const std::function<void(Communicator& rank)>& body) {
  std::vector<std::string> failures(world.size());
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < world.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        body(world.rank(r));
      } catch (const std::exception& error) {
        failures[r] = error.what();
        world.lose(r, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

}  // namespace terrace::testing
