#include <terrace/sim/cost_flow.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

namespace terrace::sim {
namespace {

constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;

}  // namespace

CostFlow::CostFlow(uint32_t node_count)
    : node_count_(node_count),
      source_(node_count),
      sink_(node_count + 1),
      leaving_(node_count + size_t{2}),
      supply_(node_count, 0),
      potential_(node_count + size_t{2}, kFar) {}

void CostFlow::connect(uint32_t from, uint32_t to, int64_t capacity, int64_t cost) {
  leaving_[from].push_back(static_cast<uint32_t>(edges_.size()));
  edges_.push_back({to, capacity, cost});
  leaving_[to].push_back(static_cast<uint32_t>(edges_.size()));
  edges_.push_back({from, 0, -cost});
}

uint32_t CostFlow::add_edge(uint32_t from, uint32_t to, int64_t capacity, int64_t cost) {
  connect(from, to, capacity, cost);
  return static_cast<uint32_t>(edges_.size() / 2 - 1);
}

void CostFlow::set_supply(uint32_t node, int64_t units) {
  supply_[node] = units;
}

// Edges lead upwards, so one pass in the order of nodes finds the shortest ways.
void CostFlow::first_potentials() {
  potential_[source_] = 0;
  const auto relax = [&](uint32_t node) {
    if (potential_[node] >= kFar) return;
    for (const uint32_t e : leaving_[node]) {
      if (edges_[e].room > 0)
        potential_[edges_[e].to] = std::min(potential_[edges_[e].to], potential_[node] + edges_[e].cost);
    }
  };
  relax(source_);
  for (uint32_t node = 0; node < node_count_; ++node) relax(node);
}

// The distances from the source become the potentials; false when the sink is out of reach.
bool CostFlow::shorten() {
  std::vector<int64_t> distance(potential_.size(), kFar);
  using Entry = std::pair<int64_t, uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue;
  distance[source_] = 0;
  queue.emplace(0, source_);
  while (!queue.empty()) {
    const auto [far, node] = queue.top();
    queue.pop();
    if (far > distance[node]) continue;
    for (const uint32_t e : leaving_[node]) {
      const Edge& edge = edges_[e];
      if (edge.room == 0) continue;
      const int64_t through = far + reduced(node, edge);
      if (through >= distance[edge.to]) continue;
      distance[edge.to] = through;
      queue.emplace(through, edge.to);
    }
  }
  if (distance[sink_] >= kFar) return false;
  for (size_t node = 0; node < potential_.size(); ++node)
    potential_[node] += std::min(distance[node], distance[sink_]);
  return true;
}

// Sends up to `most` along edges of no reduced cost; what leads nowhere is tried once between two shorten().
int64_t CostFlow::push(int64_t most) {
  std::vector<uint32_t> path;  // edges from the source on
  int64_t pushed = 0;
  uint32_t node = source_;
  on_path_[node] = true;
  while (pushed < most) {
    if (node == sink_) {
      pushed += send_along(path, most - pushed);
      node = path.empty() ? source_ : edges_[path.back()].to;
      continue;
    }
    if (next_[node] == leaving_[node].size()) {
      on_path_[node] = false;
      if (path.empty()) break;
      node = edges_[path.back() ^ 1].to;
      path.pop_back();
      ++next_[node];
      continue;
    }
    const uint32_t e = leaving_[node][next_[node]];
    if (edges_[e].room == 0 || on_path_[edges_[e].to] || reduced(node, edges_[e]) != 0) {
      ++next_[node];
      continue;
    }
    path.push_back(e);
    node = edges_[e].to;
    on_path_[node] = true;
  }
  on_path_.assign(on_path_.size(), false);
  return pushed;
}

// Along a path to the sink, which then ends before its first edge that has no room left.
int64_t CostFlow::send_along(std::vector<uint32_t>& path, int64_t most) {
  int64_t sent = most;
  for (const uint32_t e : path) sent = std::min(sent, edges_[e].room);
  size_t full = path.size();
  for (size_t i = path.size(); i-- > 0;) {
    edges_[path[i]].room -= sent;
    edges_[path[i] ^ 1].room += sent;
    if (edges_[path[i]].room == 0) full = i;
  }
  for (size_t i = std::min(full, path.size() - 1); i < path.size(); ++i) on_path_[edges_[path[i]].to] = false;
  path.resize(std::min(full, path.size() - 1));
  return sent;
}

bool CostFlow::solve() {
  int64_t wanted = 0;
  for (uint32_t node = 0; node < node_count_; ++node) {
    if (supply_[node] > 0) connect(source_, node, supply_[node], 0);
    if (supply_[node] < 0) connect(node, sink_, -supply_[node], 0);
    wanted += std::max<int64_t>(supply_[node], 0);
  }
  first_potentials();
  on_path_.assign(potential_.size(), false);
  while (wanted > 0) {
    if (!shorten()) return false;
    next_.assign(potential_.size(), 0);
    wanted -= push(wanted);
  }
  return true;
}

}  // namespace terrace::sim
