#include "placement/search/repair.h"

#include <algorithm>
#include <cstddef>

namespace eplb {
namespace {

constexpr int32_t kEmpty = -1;

class Mender {
 public:
  Mender(const Domain& domain, std::vector<int32_t>& layout)
      : domain_(domain),
        layout_(layout),
        counts_(domain.load.size()),
        on_affine_node_(counts_.size()) {
    for (size_t gpu = 0; gpu < domain.slots.size(); ++gpu) {
      gpu_of_.insert(gpu_of_.end(), AsIndex(domain.slots[gpu]), gpu);
      first_.push_back(gpu_of_.size() - AsIndex(domain.slots[gpu]));
    }
    for (size_t slot = 0; slot < layout.size(); ++slot) Count(slot, 1);
  }

  bool Run() {
    for (size_t expert = 0; expert < counts_.size(); ++expert) {
      if (on_affine_node_[expert] > 0) continue;
      if (!Put(expert, /*empty=*/true) && !Put(expert, /*empty=*/false)) return false;
    }
    for (auto left = std::count(layout_.begin(), layout_.end(), kEmpty); left > 0; --left) {
      if (!FillOne()) return false;
    }
    return true;
  }

 private:
  double UnitOf(size_t expert, int32_t replicas) const {
    return domain_.load[expert] / std::max(replicas, 1);
  }

  bool OnAffineNode(size_t gpu, size_t expert) const {
    return domain_.affine_node_of_expert.empty() ||
           domain_.affine_node_of_gpu[gpu] == domain_.affine_node_of_expert[expert];
  }

  void Count(size_t slot, int32_t change) {
    if (layout_[slot] == kEmpty) return;
    const auto expert = AsIndex(layout_[slot]);
    counts_[expert] += change;
    if (OnAffineNode(gpu_of_[slot], expert)) on_affine_node_[expert] += change;
  }

  bool Holds(size_t gpu, size_t expert) const {
    const auto begin = layout_.begin() + static_cast<std::ptrdiff_t>(first_[gpu]);
    return std::count(begin, begin + domain_.slots[gpu], static_cast<int32_t>(expert)) > 0;
  }

  // True if the expert of the slot can spare this replica.
  bool MayLeave(size_t slot) const {
    const auto expert = AsIndex(layout_[slot]);
    return counts_[expert] > 1 &&
           (on_affine_node_[expert] > 1 || !OnAffineNode(gpu_of_[slot], expert));
  }

  bool MayArrive(size_t gpu, size_t expert) const {
    const bool must_be_affine = domain_.only_on_affine_node || on_affine_node_[expert] == 0;
    return (!must_be_affine || OnAffineNode(gpu, expert)) && !Holds(gpu, expert);
  }

  // Puts the expert into an empty slot, or in place of the replica that is missed least.
  bool Put(size_t expert, bool empty) {
    size_t best = layout_.size();
    double least = 0;
    for (size_t slot = 0; slot < layout_.size(); ++slot) {
      if ((layout_[slot] == kEmpty) != empty) continue;
      if ((!empty && !MayLeave(slot)) || !MayArrive(gpu_of_[slot], expert)) continue;
      const auto other = AsIndex(std::max(layout_[slot], 0));
      const double missed = empty ? 0 : UnitOf(other, counts_[other] - 1);
      if (best < layout_.size() && missed >= least) continue;
      best = slot;
      least = missed;
    }
    if (best == layout_.size()) return false;
    Count(best, -1);
    layout_[best] = static_cast<int32_t>(expert);
    Count(best, 1);
    return true;
  }

  bool FillOne() {
    std::vector<size_t> order(counts_.size());
    for (size_t expert = 0; expert < order.size(); ++expert) order[expert] = expert;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return UnitOf(a, counts_[a]) > UnitOf(b, counts_[b]);
    });
    return std::any_of(order.begin(), order.end(),
                       [&](size_t expert) { return Put(expert, /*empty=*/true); });
  }

  const Domain& domain_;
  std::vector<int32_t>& layout_;
  std::vector<size_t> gpu_of_;   // [S]
  std::vector<size_t> first_;    // [m], slots
  std::vector<int32_t> counts_;  // [n]
  std::vector<int32_t>
      on_affine_node_;  // [n], replicas on the home; all of them where there are no affinities
};

}  // namespace

bool Repair(const Domain& domain, std::vector<int32_t>& layout) {
  return Mender(domain, layout).Run();
}

}  // namespace eplb
