// Replica counts of experts.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/search/domain.h"

namespace eplb {

// Gives slots to experts one at a time, each to the expert with most load per replica, first index
// on ties: no counts have a smaller largest unit. Counts stay within the limits of the domain.
// Keeps its scratch. Threads: one at a time.
class Replicator {
 public:
  // Receivers of the slots that are left: the experts with most load per replica, or the experts
  // with least load, one slot each, as fillers that change nothing.
  enum class Spare { kToHeaviest, kToLightest };

  // The slots of `domain` are fixed from now on. REQUIRES: `domain` outlives this.
  explicit Replicator(const Domain& domain);

  // Reads the loads of the domain.
  void Begin();

  // Writes the counts [n]; they sum to the slots of the domain. A domain without load gets counts
  // that differ by at most one. cost: O(n + spare * log n).
  void Greedy(std::vector<int32_t>& counts);
  // Lets the `num_hot` experts with most load share `hot_slots` slots among themselves, and the
  // other experts the rest. False if the limits do not allow it.
  bool GreedyWithHot(int32_t num_hot, int32_t hot_slots, Spare spare, std::vector<int32_t>& counts);
  // Experts above `most_unit` get the replicas that bring them there, the others share the rest of
  // the slots. False when there are not enough slots.
  bool Level(double most_unit, std::vector<int32_t>& counts);
  // Experts by falling load, first index on ties. cost: O(n log n), once.
  const std::vector<int32_t>& by_load();

 private:
  struct Entry {
    double unit;
    int32_t expert;
  };
  static bool Lighter(const Entry& a, const Entry& b) {
    return a.unit < b.unit || (a.unit == b.unit && a.expert > b.expert);
  }
  // Gives `spare` more slots to the experts in heap_, whose units are set.
  bool Spend(int32_t spare, std::vector<int32_t>& counts);
  void Enter(int32_t expert, const std::vector<int32_t>& counts);

  const Domain* domain_;
  int32_t num_slots_;
  int32_t least_ = 1;
  int32_t most_ = 1;
  std::vector<double> weight_;    // [n], the loads, or all 1 when there is none
  std::vector<int32_t> by_load_;  // [n], experts by falling load; empty until it is asked for
  std::vector<Entry> heap_;
};

}  // namespace eplb
