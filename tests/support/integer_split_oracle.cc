#include "tests/support/integer_split_oracle.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

// Dinic's algorithm, as in any textbook.
class Network {
 public:
  explicit Network(size_t num_nodes) : edges_of_(num_nodes), level_(num_nodes), next_(num_nodes) {}

  void Add(size_t from, size_t to, int64_t capacity) {
    edges_of_[from].push_back(edges_.size());
    edges_.push_back({to, capacity});
    edges_of_[to].push_back(edges_.size());
    edges_.push_back({from, 0});
  }

  int64_t MaxFlow(size_t source, size_t sink) {
    int64_t flow = 0;
    while (FindLevels(source, sink)) {
      std::fill(next_.begin(), next_.end(), 0);
      while (const int64_t more = Augment(source, sink, std::numeric_limits<int64_t>::max())) {
        flow += more;
      }
    }
    return flow;
  }

  // After MaxFlow: on the source's side of the least cut.
  bool IsReached(size_t node) const { return level_[node] >= 0; }

 private:
  struct Edge {
    size_t to;
    int64_t capacity;
  };

  bool FindLevels(size_t source, size_t sink) {
    std::fill(level_.begin(), level_.end(), -1);
    std::vector<size_t> queue = {source};
    level_[source] = 0;
    for (size_t head = 0; head < queue.size(); ++head) {
      for (const size_t i : edges_of_[queue[head]]) {
        if (edges_[i].capacity == 0 || level_[edges_[i].to] >= 0) continue;
        level_[edges_[i].to] = level_[queue[head]] + 1;
        queue.push_back(edges_[i].to);
      }
    }
    return level_[sink] >= 0;
  }

  int64_t Augment(size_t node, size_t sink, int64_t most) {
    if (node == sink) return most;
    for (size_t& i = next_[node]; i < edges_of_[node].size(); ++i) {
      const size_t edge = edges_of_[node][i];
      if (edges_[edge].capacity == 0 || level_[edges_[edge].to] != level_[node] + 1) continue;
      const int64_t flow = Augment(edges_[edge].to, sink, std::min(most, edges_[edge].capacity));
      if (flow == 0) continue;
      edges_[edge].capacity -= flow;
      edges_[edge ^ 1].capacity += flow;
      return flow;
    }
    return 0;
  }

  std::vector<Edge> edges_;
  std::vector<std::vector<size_t>> edges_of_;
  std::vector<int32_t> level_;
  std::vector<size_t> next_;
};

int64_t FloorOf(int64_t speed, int64_t peak_tokens, int64_t peak_speed) {
  return static_cast<int64_t>(absl::int128(speed) * peak_tokens / peak_speed);
}

// Nodes: experts, then GPUs, then source and sink.
Network NetworkOf(const IntegerSplitProblem& problem, int64_t tokens, int64_t speed) {
  const size_t num_experts = problem.tokens.size();
  const size_t num_gpus = problem.speeds.size();
  Network network(num_experts + num_gpus + 2);
  const size_t source = num_experts + num_gpus;
  for (size_t expert = 0; expert < num_experts; ++expert) {
    network.Add(source, expert, problem.tokens[expert]);
    const std::set<int32_t> gpus(problem.gpus_of[expert].begin(), problem.gpus_of[expert].end());
    for (const int32_t gpu : gpus) {
      network.Add(expert, num_experts + static_cast<size_t>(gpu), problem.tokens[expert]);
    }
  }
  for (size_t gpu = 0; gpu < num_gpus; ++gpu) {
    network.Add(num_experts + gpu, source + 1, FloorOf(problem.speeds[gpu], tokens, speed));
  }
  return network;
}

int64_t SumOf(const IntegerSplitProblem& problem) {
  return std::accumulate(problem.tokens.begin(), problem.tokens.end(), int64_t{0});
}

}  // namespace

bool FitsWithin(const IntegerSplitProblem& problem, int64_t tokens, int64_t speed) {
  const size_t source = problem.tokens.size() + problem.speeds.size();
  return NetworkOf(problem, tokens, speed).MaxFlow(source, source + 1) == SumOf(problem);
}

int64_t LeastPeakByNewton(const IntegerSplitProblem& problem) {
  const size_t num_experts = problem.tokens.size();
  const size_t source = num_experts + problem.speeds.size();
  const int64_t all = SumOf(problem);
  const auto num_gpus = std::ssize(problem.speeds);
  int64_t peak = (all + num_gpus - 1) / num_gpus;
  while (true) {
    Network network = NetworkOf(problem, peak, 1);
    if (network.MaxFlow(source, source + 1) == all) return peak;
    int64_t tokens = 0;
    int64_t gpus = 0;
    for (size_t node = 0; node < source; ++node) {
      if (!network.IsReached(node)) continue;
      (node < num_experts ? tokens : gpus) += node < num_experts ? problem.tokens[node] : 1;
    }
    peak = (tokens + gpus - 1) / gpus;
  }
}

std::string CheckProof(const IntegerSplitProblem& problem, int64_t peak_tokens, int64_t peak_speed,
                       const std::vector<int32_t>& tight_gpus) {
  const std::set<int32_t> tight(tight_gpus.begin(), tight_gpus.end());
  if (tight.empty() || tight.size() != tight_gpus.size()) return "no set of GPUs";
  int64_t tokens = 0;
  for (size_t expert = 0; expert < problem.tokens.size(); ++expert) {
    const std::vector<int32_t>& gpus = problem.gpus_of[expert];
    const bool only = std::all_of(gpus.begin(), gpus.end(),
                                  [&tight](int32_t gpu) { return tight.contains(gpu); });
    if (only) tokens += problem.tokens[expert];
  }
  // The most that these GPUs do when each stays strictly below the peak.
  int64_t below = 0;
  for (const int32_t gpu : tight_gpus) {
    const int64_t speed = problem.speeds[static_cast<size_t>(gpu)];
    const int64_t within = FloorOf(speed, peak_tokens, peak_speed);
    const bool exact = absl::int128(within) * peak_speed == absl::int128(speed) * peak_tokens;
    below += exact && within > 0 ? within - 1 : within;
  }
  if (tokens > below || tokens == 0) return "";
  return absl::StrCat("these GPUs must do ", tokens, " tokens, and can do ", below,
                      " below the peak");
}

}  // namespace eplb
