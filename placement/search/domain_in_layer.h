// A domain and the place of its slots and experts in a layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/gpu_speeds.h"
#include "placement/search/arrangement.h"
#include "placement/search/domain.h"
#include "placement/topology.h"

namespace eplb {

struct DomainInLayer {
  Domain domain;
  std::vector<int32_t> first_slot;  // [m], first slot of each GPU in the layer
  std::vector<int32_t> experts;     // [n], the domain's experts in the layer

  // Writes an arrangement to the slots of the layer [S].
  void Write(const Arrangement& arrangement, std::span<int32_t> slots) const;
  // The experts that the domain's slots hold in a layer, in the order of the domain.
  std::vector<int32_t> Read(std::span<const int32_t> slots) const;
};

// The usable GPUs first .. end - 1, without experts.
DomainInLayer PlaceInLayer(const Topology& topology, const GpuSpeeds& speeds, int32_t first,
                           int32_t end);

// Gives slots with copies that a GPU need not hold to experts that it lacks. Every expert stays on
// every GPU that holds it.
void SpreadCopies(Arrangement& arrangement);

}  // namespace eplb
