// Identifiers that do not convert into each other: a SlotId is never passed where an ExpertId is
// meant.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace eplb {

template <class Tag>
struct Id {
  int32_t value = 0;
  // clang-tidy 14 takes the 0 that rewritten comparisons compare with for a null pointer.
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

using LayerId = Id<struct LayerTag>;    // MoE layer, 0..L-1
using ExpertId = Id<struct ExpertTag>;  // logical expert in a layer, 0..E-1
using SlotId = Id<struct SlotTag>;      // physical expert in a layer, 0..S-1, GPUs in order
using GpuId = Id<struct GpuTag>;        // position in the expert-parallel group, 0..G-1
using NodeId = Id<struct NodeTag>;      // NVLink domain, 0..N-1
using RankId = Id<struct RankTag>;      // process of the job, 0..world-1

// Converts an id or a count to an index of a container. REQUIRES: value >= 0.
constexpr size_t AsIndex(int64_t value) { return static_cast<size_t>(value); }

}  // namespace eplb
