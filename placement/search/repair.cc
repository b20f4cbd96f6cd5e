#include "placement/search/repair.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace eplb {
namespace {

constexpr int32_t kEmpty = -1;

class Mender {
 public:
  Mender(const Domain& domain, std::vector<int32_t>& layout)
      : domain_(domain),
        layout_(layout),
        gpu_of_(domain.GpuOfSlot()),
        counts_(domain.load.size()),
        at_home_(counts_.size()) {
    for (size_t slot = 0; slot < layout.size(); ++slot) Count(slot, 1);
  }

  bool Run() {
    for (const int32_t expert : ByFallingLoad(domain_.load)) {
      if (at_home_[AsIndex(expert)] > 0) continue;
      if (!Put(expert, /*empty=*/true) && !Put(expert, /*empty=*/false)) return false;
    }
    for (auto left = std::ranges::count(layout_, kEmpty); left > 0; --left) {
      if (!FillOne()) return false;
    }
    return true;
  }

 private:
  double UnitOf(size_t expert, int32_t replicas) const {
    return domain_.load[expert] / std::max(replicas, 1);
  }

  void Count(size_t slot, int32_t change) {
    if (layout_[slot] == kEmpty) return;
    const auto expert = AsIndex(layout_[slot]);
    counts_[expert] += change;
    if (domain_.IsAtHome(gpu_of_[slot], layout_[slot])) at_home_[expert] += change;
  }

  // True if the expert of the slot can spare this replica.
  bool MayLeave(size_t slot) const {
    const auto expert = AsIndex(layout_[slot]);
    return counts_[expert] > 1 &&
           (at_home_[expert] > 1 || !domain_.IsAtHome(gpu_of_[slot], layout_[slot]));
  }

  // Reads the tokens of GPUs and the slots of experts from the layout.
  void Look() {
    tokens_.assign(domain_.slots.size(), 0);
    first_.assign(counts_.size(), kEmpty);
    next_.assign(layout_.size(), kEmpty);
    for (size_t slot = 0; slot < layout_.size(); ++slot) {
      if (layout_[slot] == kEmpty) continue;
      const auto expert = AsIndex(layout_[slot]);
      tokens_[AsIndex(gpu_of_[slot])] += UnitOf(expert, counts_[expert]);
      next_[slot] = std::exchange(first_[expert], static_cast<int32_t>(slot));
    }
  }

  // Largest load of the GPUs that change if the slot gives up its expert for `expert`.
  double PeakAfter(size_t slot, size_t expert) const {
    const auto other = AsIndex(layout_[slot]);
    const double unit = UnitOf(other, counts_[other]);
    const double more = UnitOf(other, counts_[other] - 1) - unit;
    double peak = 0;
    for (int32_t s = first_[other]; s != kEmpty; s = next_[AsIndex(s)]) {
      const double change = AsIndex(s) == slot ? UnitOf(expert, counts_[expert] + 1) - unit : more;
      const auto gpu = AsIndex(gpu_of_[AsIndex(s)]);
      peak = std::max(peak, (tokens_[gpu] + change) / domain_.speed[gpu]);
    }
    return peak;
  }

  // Puts the expert into an empty slot, or in place of a replica so that the loads of the
  // GPUs that change are lowest.
  bool Put(int32_t expert, bool empty) {
    const bool must_be_at_home = domain_.only_on_affine_node || at_home_[AsIndex(expert)] == 0;
    std::vector<bool> bars(domain_.slots.size());  // GPUs that may not take it
    for (int32_t gpu = 0; gpu < domain_.num_gpus(); ++gpu) {
      bars[AsIndex(gpu)] = must_be_at_home && !domain_.IsAtHome(gpu, expert);
    }
    for (size_t slot = 0; slot < layout_.size(); ++slot) {
      if (layout_[slot] == expert) bars[AsIndex(gpu_of_[slot])] = true;
    }
    if (!empty) Look();
    size_t best = layout_.size();
    double least = 0;
    for (size_t slot = 0; slot < layout_.size(); ++slot) {
      if ((layout_[slot] == kEmpty) != empty || bars[AsIndex(gpu_of_[slot])]) continue;
      if (!empty && !MayLeave(slot)) continue;
      const double missed = empty ? 0 : PeakAfter(slot, AsIndex(expert));
      if (best < layout_.size() && missed >= least) continue;
      best = slot;
      least = missed;
    }
    if (best == layout_.size()) return false;
    Count(best, -1);
    layout_[best] = expert;
    Count(best, 1);
    return true;
  }

  bool FillOne() {
    std::vector<double> units;
    for (size_t expert = 0; expert < counts_.size(); ++expert) {
      units.push_back(UnitOf(expert, counts_[expert]));
    }
    return std::ranges::any_of(ByFallingLoad(units),
                               [&](int32_t expert) { return Put(expert, /*empty=*/true); });
  }

  const Domain& domain_;
  std::vector<int32_t>& layout_;
  std::vector<int32_t> gpu_of_;   // [S]
  std::vector<int32_t> counts_;   // [n]
  std::vector<int32_t> at_home_;  // [n], replicas on the home; all of them without homes
  // State of the last Look.
  std::vector<double> tokens_;  // [m]
  std::vector<int32_t> first_;  // [n], first slot of an expert
  std::vector<int32_t> next_;   // [S], next slot of the same expert
};

}  // namespace

bool Repair(const Domain& domain, std::vector<int32_t>& layout) {
  return Mender(domain, layout).Run();
}

}  // namespace eplb
