// CostFlow: the cheapest flow through a graph whose edges all lead from a lower to a higher node. It takes
// successive shortest paths with potentials (Dijkstra), several paths at a time; costs may be negative. All
// numbers are integers, so the result is exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace terrace::sim {

class CostFlow {
 public:
  explicit CostFlow(uint32_t node_count);

  // Adds an edge with from < to and returns its number.
  uint32_t add_edge(uint32_t from, uint32_t to, int64_t capacity, int64_t cost);
  // Sets how much begins at the node (positive) or ends there (negative). The supplies add up to 0.
  void set_supply(uint32_t node, int64_t units);

  // Finds the flow. Returns false when the supplies cannot reach their ends. It may be called once.
  bool solve();
  int64_t flow_of(uint32_t edge) const { return edges_[size_t{edge} * 2 + 1].room; }

 private:
  // An edge and its reverse lie beside each other.
  struct Edge {
    uint32_t to;
    int64_t room;
    int64_t cost;
  };

  void connect(uint32_t from, uint32_t to, int64_t capacity, int64_t cost);
  void first_potentials();
  bool shorten();
  int64_t push(int64_t most);
  int64_t send_along(std::vector<uint32_t>& path, int64_t most);
  int64_t reduced(uint32_t from, const Edge& edge) const {
    return edge.cost + potential_[from] - potential_[edge.to];
  }

  uint32_t node_count_, source_, sink_;
  std::vector<Edge> edges_;
  std::vector<std::vector<uint32_t>> leaving_;
  std::vector<int64_t> supply_, potential_;
  std::vector<uint32_t> next_;  // by node: the edge that push() tries next
  std::vector<bool> on_path_;
};

}  // namespace terrace::sim
