#include "tests/placement/split/random_batch.h"

#include <cmath>

namespace eplb {
namespace {

int64_t CountOfKind(Random& random, int32_t kind) {
  const int32_t roll = Pick(random, 0, 1'000'000);
  switch (kind) {
    case 0:
      return roll % 5;  // few tokens: rounding shows
    case 1:
      return roll;
    case 2:
      return roll % 3 == 0 ? roll : 0;
    case 3:
      return static_cast<int64_t>(std::exp(roll / 1e5));  // 1 .. 22,000, mostly small
    case 4:
      return 1000 + roll % 50;
    case 5:
      return 1;
    default:
      return 0;
  }
}

// `placement` with GPUs of -1 put between its own. REQUIRES: equal_slots_per_gpu.
Placement AmongUnusable(const Placement& placement, const std::vector<int32_t>& usable,
                        int32_t num_gpus) {
  const Topology& topology = placement.topology();
  const int32_t slots_of_gpu = topology.num_slots() / topology.num_gpus();
  const Topology wider = *Topology::Make({.num_layers = topology.num_layers(),
                                          .num_experts = topology.num_experts(),
                                          .num_slots = slots_of_gpu * num_gpus,
                                          .num_gpus = num_gpus});
  IndexMatrix slots = IndexMatrix::Constant(wider.num_layers(), wider.num_slots(), -1);
  for (size_t i = 0; i < usable.size(); ++i) {
    slots.middleCols(usable[i] * slots_of_gpu, slots_of_gpu) =
        placement.physical_to_logical_map().middleCols(static_cast<Eigen::Index>(i) * slots_of_gpu,
                                                       slots_of_gpu);
  }
  return *Placement::FromSlots(wider, slots);
}

std::vector<double> DrawSpeeds(Random& random, int32_t num_gpus) {
  std::vector<double> speeds(static_cast<size_t>(num_gpus), 1.0);
  if (Pick(random, 0, 1) == 0) return speeds;
  for (double& speed : speeds) speed = Pick(random, 1, 8) / 4.0;
  if (Pick(random, 0, 3) == 0) speeds.front() = GpuSpeeds::kMinSpeed;
  if (Pick(random, 0, 7) != 0) return speeds;
  for (double& speed : speeds) {  // a ratio of 1e6
    speed = Pick(random, 0, 3) == 0 ? GpuSpeeds::kMinSpeed : GpuSpeeds::kMaxSpeed;
  }
  return speeds;
}

}  // namespace

std::vector<int64_t> RandomCounts(Random& random, int32_t num_experts) {
  constexpr int32_t kKinds = 7;
  const int32_t kind = Pick(random, 0, kKinds);
  std::vector<int64_t> counts(static_cast<size_t>(num_experts));
  for (int64_t& count : counts) count = CountOfKind(random, kind);
  if (kind == 5) counts[static_cast<size_t>(Pick(random, 0, num_experts - 1))] = int64_t{1} << 35;
  if (kind == 6) counts[static_cast<size_t>(Pick(random, 0, num_experts - 1))] = 12'345;
  return counts;
}

RandomGpus WithRandomSpeeds(Random& random, const Placement& placement) {
  const int32_t num_usable = placement.topology().num_gpus();
  if (Pick(random, 0, 3) != 0 || !placement.topology().equal_slots_per_gpu()) {
    return {placement, *GpuSpeeds::Make(num_usable, DrawSpeeds(random, num_usable), {})};
  }
  std::vector<int32_t> usable;
  std::vector<int32_t> unusable;
  int32_t gpu = 0;
  while (std::ssize(usable) < num_usable) {
    const bool is_unusable = Pick(random, 0, 3) == 0 && std::ssize(unusable) < 8;
    (is_unusable ? unusable : usable).push_back(gpu++);
  }
  return {AmongUnusable(placement, usable, gpu),
          *GpuSpeeds::Make(gpu, DrawSpeeds(random, gpu), unusable)};
}

}  // namespace eplb
