// Tables of integers that describe a placement to the split, in memory of the CPU or of the GPU.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/host_device.h"

namespace eplb {

// One layer of a placement: views into memory of the CPU or of the GPU. An expert that several GPUs
// hold is `replicated` and has a part for each of them; the others are fixed.
template <class Index>
struct SplitLayerOf {
  int32_t num_gpus = 0;
  int32_t num_slots = 0;
  int32_t num_parts = 0;
  int32_t num_replicated = 0;
  bool equal_speeds = true;        // each usable GPU then has speed 1
  const int64_t* speed = nullptr;  // [G], 0: unusable
  int32_t num_fixed = 0;
  const Index* fixed_expert = nullptr;  // [num_fixed]
  const Index* fixed_gpu = nullptr;     // [num_fixed]
  const Index* expert = nullptr;        // [num_replicated]
  const Index* num_replicas = nullptr;  // [num_replicated], slots
  // The next six tables go expert by expert; the parts of an expert are in the order of its first
  // replica there. [num_replicated + 1]: index at which each expert begins.
  const Index* first_of_expert = nullptr;
  const Index* expert_part = nullptr;   // number of the part
  const Index* expert_gpu = nullptr;    // GPU of the part
  const Index* expert_slots = nullptr;  // slots of the expert on this GPU
  const Index* slots_before = nullptr;  // slots of the expert in earlier parts
  const Index* expert_of = nullptr;     // index in `expert`
  // Pairs of replicated experts, as indices in `expert`: all GPUs of the inner one hold the outer
  // one, too. Among experts with the same GPUs only the first is an outer one.
  int32_t num_inner = 0;
  const Index* outer_expert = nullptr;  // [num_inner], rising
  const Index* inner_expert = nullptr;  // [num_inner]
  // Parts are numbered GPU by GPU.
  const Index* first_on_gpu = nullptr;  // [G + 1], first part of each GPU
  const Index* ring_first = nullptr;    // by part, index of its expert's first part in these tables
  const Index* ring_size = nullptr;     // by part, number of its expert's parts
  const Index* part_place = nullptr;    // by part, its index in the tables that go expert by expert
  // [S], source of the tokens of a slot's expert on its GPU: 2 * part + 1, or 2 * expert id.
  const Index* slot_source = nullptr;
  // Slots that share these tokens with other slots, or hold no expert.
  int32_t num_shared = 0;
  const Index* shared_slot = nullptr;   // [num_shared]
  const Index* shared_among = nullptr;  // [num_shared], number of sharing slots; 0: no expert
  const Index* shared_place = nullptr;  // [num_shared], index among the sharing slots
  // Experts by id, slots in the order of replica rank. [num_experts + 1]: index at which each
  // expert begins.
  const Index* first_slot = nullptr;
  const Index* replica_slot = nullptr;
};
using SplitLayer = SplitLayerOf<int32_t>;

// Sizes of one layer's tables, which follow each other in memory in the order of LayerAt.
struct SplitLayerTables {
  int64_t begin = 0;  // index in SplitTables::tables
  int32_t num_replicated = 0;
  int32_t num_fixed = 0;
  int32_t num_parts = 0;
  int32_t num_inner = 0;
  int32_t num_shared = 0;
};
static_assert(std::is_trivially_copyable_v<SplitLayerTables>);

// Fractions of the least peak by which a split may exceed it, in kSplitSlackUnit.
struct SplitMargins {
  int64_t slack = 0;      // so that fewer tokens leave the slots of equal shares
  int64_t tolerance = 0;  // so that the search may end early
};

// Sizes of a topology.
struct SplitShape {
  int32_t num_layers = 0;
  int32_t num_experts = 0;
  int32_t num_slots = 0;
  int32_t num_gpus = 0;
  int32_t max_slots_of_gpu = 0;
};

// Returns the layer whose tables begin at `next`. The caller sets equal_speeds and speed.
template <class Index>
EPLB_HOST_DEVICE SplitLayerOf<Index> LayerAt(const Index* next, const SplitLayerTables& sizes,
                                             const SplitShape& shape) {
  const auto take = [&next](int32_t count) {
    const Index* const begin = next;
    next += count;
    return begin;
  };
  SplitLayerOf<Index> layer;
  layer.num_gpus = shape.num_gpus;
  layer.num_slots = shape.num_slots;
  layer.num_parts = sizes.num_parts;
  layer.num_replicated = sizes.num_replicated;
  layer.num_fixed = sizes.num_fixed;
  layer.fixed_expert = take(sizes.num_fixed);
  layer.fixed_gpu = take(sizes.num_fixed);
  layer.expert = take(sizes.num_replicated);
  layer.num_replicas = take(sizes.num_replicated);
  layer.first_of_expert = take(sizes.num_replicated + 1);
  layer.expert_part = take(sizes.num_parts);
  layer.expert_gpu = take(sizes.num_parts);
  layer.expert_slots = take(sizes.num_parts);
  layer.slots_before = take(sizes.num_parts);
  layer.expert_of = take(sizes.num_parts);
  layer.num_inner = sizes.num_inner;
  layer.outer_expert = take(sizes.num_inner);
  layer.inner_expert = take(sizes.num_inner);
  layer.first_on_gpu = take(shape.num_gpus + 1);
  layer.ring_first = take(sizes.num_parts);
  layer.ring_size = take(sizes.num_parts);
  layer.part_place = take(sizes.num_parts);
  layer.slot_source = take(shape.num_slots);
  layer.num_shared = sizes.num_shared;
  layer.shared_slot = take(sizes.num_shared);
  layer.shared_among = take(sizes.num_shared);
  layer.shared_place = take(sizes.num_shared);
  layer.first_slot = take(shape.num_experts + 1);
  layer.replica_slot = next;
  return layer;
}

// A graph's sizes and options, and views of its three arrays.
struct SplitTables {
  SplitShape shape;
  bool equal_speeds = true;
  SplitMargins margins;
  int64_t num_tables = 0;                    // integers in `tables`
  const int64_t* speeds = nullptr;           // [num_gpus]
  const SplitLayerTables* layers = nullptr;  // [num_layers]
  const int32_t* tables = nullptr;           // [num_tables]

  SplitLayer Layer(int32_t layer) const {
    SplitLayer result = LayerAt(tables + layers[layer].begin, layers[layer], shape);
    result.equal_speeds = equal_speeds;
    result.speed = speeds;
    return result;
  }
};

}  // namespace eplb
