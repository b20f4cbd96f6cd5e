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

  // Writes a layout of the domain, experts by slot, to the slots of the layer [S].
  void Write(std::span<const int32_t> layout, std::span<int32_t> slots) const;
  void Write(const Arrangement& arrangement, std::span<int32_t> slots) const {
    Write(arrangement.experts(), slots);
  }
  // The experts that the domain's slots hold in a layer, in the order of the domain.
  std::vector<int32_t> Read(std::span<const int32_t> slots) const;
};

// The usable GPUs first .. end - 1, without experts.
DomainInLayer PlaceInLayer(const Topology& topology, const GpuSpeeds& speeds, int32_t first,
                           int32_t end);

// The usable GPUs of a layer with all its experts, without loads. Under a hierarchy GPUs have
// nodes.
DomainInLayer WholeLayer(const Topology& topology, const GpuSpeeds& speeds, Hierarchy hierarchy,
                         bool allow_duplicates);

// Sets the homes of experts to those of their expert groups. node_of_group: [K].
void SetHomes(std::span<const int32_t> node_of_group, Domain& domain);
// Sets the homes that the layer [S] gives; none without a hierarchy. False if a hierarchy needs
// homes and the layer gives none.
bool ReadHomes(const Topology& topology, Hierarchy hierarchy, std::span<const int32_t> slots,
               Domain& domain);

// Gives slots with copies that a GPU need not hold to experts that it lacks. Every expert stays on
// every GPU that holds it.
void SpreadCopies(Arrangement& arrangement);

}  // namespace eplb
