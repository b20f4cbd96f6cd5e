// Tables of integers that describe a placement to the split, in memory of the CPU or of the GPU.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/host_device.h"

namespace eplb {

// One layer of a placement: views into memory of the CPU or of the GPU. An expert that several GPUs
// hold is `replicated` and has a part for each of them; the others are fixed.
struct SplitLayer {
  int32_t num_gpus = 0;
  int32_t num_slots = 0;
  int32_t num_parts = 0;
  int32_t num_replicated = 0;
  bool equal_speeds = true;        // each usable GPU then has speed 1
  const int64_t* speed = nullptr;  // [G], 0: unusable
  int32_t num_fixed = 0;
  const int32_t* fixed_expert = nullptr;  // [num_fixed]
  const int32_t* fixed_gpu = nullptr;     // [num_fixed]
  const int32_t* expert = nullptr;        // [num_replicated]
  const int32_t* num_replicas = nullptr;  // [num_replicated], slots
  // The next six tables go expert by expert; the parts of an expert are in the order of its first
  // replica there. [num_replicated + 1]: index at which each expert begins.
  const int32_t* first_of_expert = nullptr;
  const int32_t* expert_part = nullptr;   // number of the part
  const int32_t* expert_gpu = nullptr;    // GPU of the part
  const int32_t* expert_slots = nullptr;  // slots of the expert on this GPU
  const int32_t* slots_before = nullptr;  // slots of the expert in earlier parts
  const int32_t* expert_of = nullptr;     // index in `expert`
  // Pairs of replicated experts, as indices in `expert`: all GPUs of the inner one hold the outer
  // one, too. Among experts with the same GPUs only the first is an outer one.
  int32_t num_inner = 0;
  const int32_t* outer_expert = nullptr;  // [num_inner], rising
  const int32_t* inner_expert = nullptr;  // [num_inner]
  // Parts are numbered GPU by GPU.
  const int32_t* first_on_gpu = nullptr;  // [G + 1], first part of each GPU
  const int32_t* part_expert = nullptr;   // by part, index in `expert`
  const int32_t* part_gpu = nullptr;      // by part
  const int32_t* next_part = nullptr;     // by part, the expert's next part; a ring
  // [S], source of the tokens of a slot's expert on its GPU: 2 * part + 1, or 2 * expert id.
  const int32_t* slot_source = nullptr;
  // Slots that share these tokens with other slots, or hold no expert.
  int32_t num_shared = 0;
  const int32_t* shared_slot = nullptr;   // [num_shared]
  const int32_t* shared_among = nullptr;  // [num_shared], number of sharing slots; 0: no expert
  const int32_t* shared_place = nullptr;  // [num_shared], index among the sharing slots
  // Experts by id, slots in the order of replica rank. [num_experts + 1]: index at which each
  // expert begins.
  const int32_t* first_slot = nullptr;
  const int32_t* replica_slot = nullptr;
};

// Sizes of one layer's tables, which follow each other in memory in the order of
// SplitTables::Layer.
struct SplitLayerTables {
  int64_t begin = 0;  // index in SplitTables::tables
  int32_t num_replicated = 0;
  int32_t num_fixed = 0;
  int32_t num_parts = 0;
  int32_t num_inner = 0;
  int32_t num_shared = 0;
};
static_assert(std::is_trivially_copyable_v<SplitLayerTables>);

// Sizes of a graph, and views of its three arrays.
struct SplitTables {
  int32_t num_layers = 0;
  int32_t num_experts = 0;
  int32_t num_slots = 0;
  int32_t num_gpus = 0;
  int32_t max_parts = 0;       // most parts of a layer
  int32_t max_replicated = 0;  // most replicated experts of a layer
  bool equal_speeds = true;
  int64_t slack = 0;                         // in kSplitSlackUnit
  int64_t num_tables = 0;                    // integers in `tables`
  const int64_t* speeds = nullptr;           // [num_gpus]
  const SplitLayerTables* layers = nullptr;  // [num_layers]
  const int32_t* tables = nullptr;           // [num_tables]

  EPLB_HOST_DEVICE SplitLayer Layer(int32_t layer) const {
    const SplitLayerTables& sizes = layers[layer];
    const int32_t* next = tables + sizes.begin;
    const auto take = [&next](int32_t count) {
      const int32_t* const begin = next;
      next += count;
      return begin;
    };
    return {.num_gpus = num_gpus,
            .num_slots = num_slots,
            .num_parts = sizes.num_parts,
            .num_replicated = sizes.num_replicated,
            .equal_speeds = equal_speeds,
            .speed = speeds,
            .num_fixed = sizes.num_fixed,
            .fixed_expert = take(sizes.num_fixed),
            .fixed_gpu = take(sizes.num_fixed),
            .expert = take(sizes.num_replicated),
            .num_replicas = take(sizes.num_replicated),
            .first_of_expert = take(sizes.num_replicated + 1),
            .expert_part = take(sizes.num_parts),
            .expert_gpu = take(sizes.num_parts),
            .expert_slots = take(sizes.num_parts),
            .slots_before = take(sizes.num_parts),
            .expert_of = take(sizes.num_parts),
            .num_inner = sizes.num_inner,
            .outer_expert = take(sizes.num_inner),
            .inner_expert = take(sizes.num_inner),
            .first_on_gpu = take(num_gpus + 1),
            .part_expert = take(sizes.num_parts),
            .part_gpu = take(sizes.num_parts),
            .next_part = take(sizes.num_parts),
            .slot_source = take(num_slots),
            .num_shared = sizes.num_shared,
            .shared_slot = take(sizes.num_shared),
            .shared_among = take(sizes.num_shared),
            .shared_place = take(sizes.num_shared),
            .first_slot = take(num_experts + 1),
            .replica_slot = next};
  }
};
static_assert(std::is_trivially_copyable_v<SplitTables>);

}  // namespace eplb
