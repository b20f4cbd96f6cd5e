// The problem that every search solves: experts with loads and GPUs with slots. It has no past, and
// nodes only as homes of experts. Threads: a value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/gpu_speeds.h"
#include "placement/topology.h"

namespace eplb {

// One layer on a set of GPUs; experts and GPUs are numbered within the domain. Every expert gets at
// least one slot, and all slots are filled.
// REQUIRES: loads >= 0 and finite, speeds > 0, slots >= 1, sum of slots >= number of experts.
struct Domain {
  std::vector<double> load;       // [n], tokens of each expert
  std::vector<int32_t> slots;     // [m], slots of each GPU
  std::vector<double> speed;      // [m], relative speed of each GPU
  bool allow_duplicates = false;  // two replicas of an expert on one GPU although a choice exists
  // [n] and [m], or both empty: an expert keeps at least one replica on a GPU of its home.
  std::vector<int32_t> affine_node_of_expert;
  std::vector<int32_t> affine_node_of_gpu;
  bool only_on_affine_node = false;  // and has no replica elsewhere
  // [m], GPUs that may be lost together have one number; empty: each GPU is a site of its own.
  std::vector<int32_t> site_of_gpu;
  std::vector<bool> on_two_sites;  // [n], experts that stay on two sites or more; empty: none

  int32_t num_experts() const { return static_cast<int32_t>(load.size()); }
  int32_t num_gpus() const { return static_cast<int32_t>(slots.size()); }
  int32_t num_slots() const;
  std::vector<int32_t> GpuOfSlot() const;  // [S], slots are numbered GPU by GPU
  bool has_node_affinity() const { return !affine_node_of_gpu.empty(); }
  // True if the GPU is on the expert's home, or homes are not looked at.
  bool IsAtHome(int32_t gpu, int32_t expert) const {
    return affine_node_of_expert.empty() ||
           affine_node_of_gpu[AsIndex(gpu)] == affine_node_of_expert[AsIndex(expert)];
  }
  int32_t SiteOf(int32_t gpu) const {
    return site_of_gpu.empty() ? gpu : site_of_gpu[AsIndex(gpu)];
  }
  bool equal_speeds() const;
  double total_load() const;
  double total_speed() const;

  // Least and most copies of an expert on GPU `gpu`: 0 and 1 if the GPU has no more slots than
  // there are experts. With more slots duplicates are forced, and these limits spread them.
  int32_t MinCopies(int32_t gpu) const;
  int32_t MaxCopies(int32_t gpu) const;
  // Least and most replicas of an expert, from the limits of all GPUs.
  int32_t MinReplicas() const;
  int32_t MaxReplicas() const;
  // Replicas of each expert that GPUs with more slots than experts hold.
  int32_t ForcedReplicas() const;
};

// The usable GPUs first .. end - 1 of a topology, without loads.
Domain DomainOf(const Topology& topology, const GpuSpeeds& speeds, int32_t first, int32_t end);

// The usable GPUs of each node as a domain without loads. [N]
std::vector<Domain> NodeDomains(const Topology& topology, const GpuSpeeds& speeds);

// [N], the first node with the same slots and speeds.
std::vector<int32_t> KindsOf(std::span<const Domain> nodes);

// Experts by falling load, those of equal load by number.
std::vector<int32_t> ByFallingLoad(std::span<const double> load);

// Copies into all GPUs and the most into one, from one layout (experts by slot, GPU by GPU) to
// another.
struct LayoutCopies {
  int32_t sum = 0;
  int32_t most = 0;
};
LayoutCopies CopiesBetween(const Domain& domain, std::span<const int32_t> from,
                           std::span<const int32_t> to);

}  // namespace eplb
