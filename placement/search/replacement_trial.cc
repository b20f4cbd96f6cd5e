#include "placement/search/replacement_trial.h"

#include <algorithm>
#include <cstddef>

namespace eplb {

void ReplacementTrial::Try(const Arrangement& arrangement, int32_t slot, int32_t expert) {
  const int32_t leaving = arrangement.expert_in(slot);
  const std::vector<double>& load = arrangement.domain().load;
  const double unit = load[static_cast<size_t>(expert)] / (arrangement.count(expert) + 1);
  const double unit_left = load[static_cast<size_t>(leaving)] / (arrangement.count(leaving) - 1);
  index_.resize(static_cast<size_t>(arrangement.num_gpus()), -1);
  changes_.clear();
  const auto add = [&](int32_t gpu, double tokens) {
    int32_t& index = index_[static_cast<size_t>(gpu)];
    if (index < 0) {
      index = static_cast<int32_t>(changes_.size());
      changes_.push_back({gpu, 0});
    }
    changes_[static_cast<size_t>(index)].tokens += tokens;
  };
  for (int32_t s = arrangement.FirstOf(leaving); s != Arrangement::kEmpty;
       s = arrangement.NextOf(s)) {
    if (s != slot) add(arrangement.gpu_of(s), unit_left - arrangement.unit(leaving));
  }
  for (int32_t s = arrangement.FirstOf(expert); s != Arrangement::kEmpty;
       s = arrangement.NextOf(s)) {
    add(arrangement.gpu_of(s), unit - arrangement.unit(expert));
  }
  add(arrangement.gpu_of(slot), unit - arrangement.unit(leaving));
  for (const Change& change : changes_) index_[static_cast<size_t>(change.gpu)] = -1;
}

double ReplacementTrial::PeakAfter(const Arrangement& arrangement, int32_t slot, int32_t expert) {
  Try(arrangement, slot, expert);
  double peak = 0;
  for (const Change& change : changes_) {
    const double tokens = arrangement.tokens(change.gpu) + change.tokens;
    peak = std::max(peak, tokens * arrangement.inverse_speed(change.gpu));
  }
  return peak;
}

}  // namespace eplb
