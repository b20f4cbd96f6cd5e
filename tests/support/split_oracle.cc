#include "tests/support/split_oracle.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace eplb::testing {
namespace {

using Capacities = std::vector<std::vector<double>>;

// The flow along one shortest path from node 0 to the last node; 0 when there is none.
double Augment(Capacities& capacity, double smallest) {
  const size_t num_nodes = capacity.size();
  std::vector<size_t> previous(num_nodes, num_nodes);
  std::vector<size_t> queue = {0};
  previous[0] = 0;
  for (size_t head = 0; head < queue.size(); ++head) {
    for (size_t node = 0; node < num_nodes; ++node) {
      if (previous[node] != num_nodes || capacity[queue[head]][node] <= smallest) continue;
      previous[node] = queue[head];
      queue.push_back(node);
    }
  }
  if (previous.back() == num_nodes) return 0;
  double flow = std::numeric_limits<double>::infinity();
  for (size_t node = num_nodes - 1; node != 0; node = previous[node]) {
    flow = std::min(flow, capacity[previous[node]][node]);
  }
  for (size_t node = num_nodes - 1; node != 0; node = previous[node]) {
    capacity[previous[node]][node] -= flow;
    capacity[node][previous[node]] += flow;
  }
  return flow;
}

bool Fits(const SplitProblem& problem, double max_load, double sum) {
  const size_t num_experts = problem.tokens.size();
  const size_t num_nodes = num_experts + problem.speeds.size() + 2;
  Capacities capacity(num_nodes, std::vector<double>(num_nodes));
  for (size_t expert = 0; expert < num_experts; ++expert) {
    capacity[0][1 + expert] = problem.tokens[expert];
    for (const int32_t gpu : problem.gpus_of[expert]) {
      capacity[1 + expert][1 + num_experts + static_cast<size_t>(gpu)] = 2 * sum;
    }
  }
  for (size_t gpu = 0; gpu < problem.speeds.size(); ++gpu) {
    capacity[1 + num_experts + gpu].back() = max_load * problem.speeds[gpu];
  }
  double flow = 0;
  double more = 0;
  do {
    more = Augment(capacity, sum * 1e-16);
    flow += more;
  } while (more > 0);
  return flow >= sum * (1 - 1e-14);
}

}  // namespace

double MaxLoadOverSubsets(const SplitProblem& problem) {
  std::vector<uint32_t> holders;
  for (const std::vector<int32_t>& gpus : problem.gpus_of) {
    uint32_t mask = 0;
    for (const int32_t gpu : gpus) mask |= uint32_t{1} << gpu;
    holders.push_back(mask);
  }
  double largest = 0;
  for (uint32_t subset = 1; subset < uint32_t{1} << problem.speeds.size(); ++subset) {
    double tokens = 0;
    double speed = 0;
    for (size_t expert = 0; expert < holders.size(); ++expert) {
      if ((holders[expert] & ~subset) == 0) tokens += problem.tokens[expert];
    }
    for (size_t gpu = 0; gpu < problem.speeds.size(); ++gpu) {
      if ((subset >> gpu & 1) != 0) speed += problem.speeds[gpu];
    }
    if (tokens > 0) largest = std::max(largest, tokens / speed);
  }
  return largest;
}

double MaxLoadByBisection(const SplitProblem& problem) {
  const double sum = std::accumulate(problem.tokens.begin(), problem.tokens.end(), 0.0);
  if (sum == 0) return 0;
  double slowest = std::numeric_limits<double>::infinity();
  for (const double speed : problem.speeds) {
    if (speed > 0) slowest = std::min(slowest, speed);
  }
  double low = 0;
  double high = sum / slowest;
  for (int step = 0; step < 200 && high - low > 1e-14 * high; ++step) {
    const double middle = low + (high - low) / 2;
    (Fits(problem, middle, sum) ? high : low) = middle;
  }
  return high;
}

}  // namespace eplb::testing
