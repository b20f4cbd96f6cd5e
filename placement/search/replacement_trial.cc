#include "placement/search/replacement_trial.h"

#include <algorithm>
#include <cstddef>

namespace eplb {

double ReplacementTrial::PeakAfter(const Arrangement& arrangement, int32_t slot, int32_t expert) {
  const int32_t leaving = arrangement.expert_in(slot);
  const std::vector<double>& load = arrangement.domain().load;
  const double unit = load[static_cast<size_t>(expert)] / (arrangement.count(expert) + 1);
  const double unit_left = load[static_cast<size_t>(leaving)] / (arrangement.count(leaving) - 1);
  change_.resize(static_cast<size_t>(arrangement.num_gpus()));
  touched_.clear();
  const auto add = [&](int32_t gpu, double tokens) {
    touched_.push_back(gpu);
    change_[static_cast<size_t>(gpu)] += tokens;
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
  double peak = 0;
  for (const int32_t gpu : touched_) {
    const double tokens = arrangement.tokens(gpu) + change_[static_cast<size_t>(gpu)];
    peak = std::max(peak, tokens * arrangement.inverse_speed(gpu));
  }
  for (const int32_t gpu : touched_) change_[static_cast<size_t>(gpu)] = 0;
  return peak;
}

}  // namespace eplb
