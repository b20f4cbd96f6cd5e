// A placement's tables for splits, in memory of the CPU or of the GPU: plain integers that a copy
// moves between them.
#ifndef EPLB_PLACEMENT_SPLIT_SPLIT_TABLES_H_
#define EPLB_PLACEMENT_SPLIT_SPLIT_TABLES_H_

#include <cstdint>
#include <type_traits>

#include "base/host_device.h"

namespace eplb {

// One layer of a placement: views into memory of the CPU or of the GPU. An expert that several GPUs
// hold is `replicated` and has a part for each of them; the others are fixed.
struct SplitLayer {
  int32_t num_gpus = 0;
  int32_t num_slots = 0;
  int32_t num_replicated = 0;
  bool equal_speeds = true;        // of the usable GPUs: then each is 1
  const int64_t* speed = nullptr;  // [G], 0: unusable
  int32_t num_fixed = 0;
  const int32_t* fixed_expert = nullptr;  // [num_fixed]
  const int32_t* fixed_gpu = nullptr;     // [num_fixed]
  const int32_t* expert = nullptr;        // [num_replicated]
  const int32_t* num_replicas = nullptr;  // [num_replicated], slots
  // Expert by expert, in an expert by its first replica there. [num_replicated + 1]: where each
  // expert begins.
  const int32_t* first_of_expert = nullptr;
  const int32_t* expert_part = nullptr;   // the part
  const int32_t* expert_gpu = nullptr;    // the GPU
  const int32_t* expert_slots = nullptr;  // slots of the expert on this GPU
  const int32_t* slots_before = nullptr;  // slots of the expert in parts before
  const int32_t* expert_of = nullptr;     // the index in `expert`
  // The other replicated experts that only GPUs of an expert hold, as indices in `expert`; of
  // experts with the same GPUs the first alone has them.
  int32_t num_inner = 0;
  const int32_t* outer_expert = nullptr;  // [num_inner], rising
  const int32_t* inner_expert = nullptr;  // [num_inner]
  // Parts are numbered GPU by GPU.
  const int32_t* first_on_gpu = nullptr;  // [G + 1], the GPU's first part
  const int32_t* part_expert = nullptr;   // by part, index in `expert`
  const int32_t* part_gpu = nullptr;      // by part
  const int32_t* next_part = nullptr;     // by part, the expert's next one; the last has the first
  // [S], where the tokens of a slot's expert on its GPU are: 2 * part + 1, or 2 * expert id.
  const int32_t* slot_source = nullptr;
  // The slots that share these tokens with others, or hold no expert.
  int32_t num_shared = 0;
  const int32_t* shared_slot = nullptr;   // [num_shared]
  const int32_t* shared_among = nullptr;  // [num_shared], how many share; 0: no expert
  const int32_t* shared_place = nullptr;  // [num_shared], how many of them are before this one
  // Experts by id, slots in the order of replica rank. [num_experts + 1]: where each expert begins.
  const int32_t* first_slot = nullptr;
  const int32_t* replica_slot = nullptr;
};

// Where the tables of a layer begin in `tables`; their sizes are those of SplitLayer.
struct SplitLayerTables {
  int32_t num_replicated = 0;
  int32_t num_fixed = 0;
  int32_t num_shared = 0;
  int32_t num_inner = 0;
  int64_t fixed_expert = 0;
  int64_t fixed_gpu = 0;
  int64_t expert = 0;
  int64_t num_replicas = 0;
  int64_t first_of_expert = 0;
  int64_t expert_part = 0;
  int64_t expert_gpu = 0;
  int64_t expert_slots = 0;
  int64_t slots_before = 0;
  int64_t expert_of = 0;
  int64_t outer_expert = 0;
  int64_t inner_expert = 0;
  int64_t first_on_gpu = 0;
  int64_t part_expert = 0;
  int64_t part_gpu = 0;
  int64_t next_part = 0;
  int64_t slot_source = 0;
  int64_t shared_slot = 0;
  int64_t shared_among = 0;
  int64_t shared_place = 0;
  int64_t first_slot = 0;
  int64_t replica_slot = 0;
};
static_assert(std::is_trivially_copyable_v<SplitLayerTables>);

// A graph's numbers, and views of its three arrays.
struct SplitTables {
  int32_t num_layers = 0;
  int32_t num_experts = 0;
  int32_t num_slots = 0;
  int32_t num_gpus = 0;
  int32_t max_parts = 0;       // of a layer
  int32_t max_replicated = 0;  // of a layer
  bool equal_speeds = true;
  int64_t slack = 0;                         // in kSplitSlackUnit
  int64_t num_tables = 0;                    // integers in `tables`
  const int64_t* speeds = nullptr;           // [num_gpus]
  const SplitLayerTables* layers = nullptr;  // [num_layers]
  const int32_t* tables = nullptr;           // [num_tables]

  EPLB_HOST_DEVICE SplitLayer Layer(int32_t layer) const {
    const SplitLayerTables& at = layers[layer];
    return {.num_gpus = num_gpus,
            .num_slots = num_slots,
            .num_replicated = at.num_replicated,
            .equal_speeds = equal_speeds,
            .speed = speeds,
            .num_fixed = at.num_fixed,
            .fixed_expert = tables + at.fixed_expert,
            .fixed_gpu = tables + at.fixed_gpu,
            .expert = tables + at.expert,
            .num_replicas = tables + at.num_replicas,
            .first_of_expert = tables + at.first_of_expert,
            .expert_part = tables + at.expert_part,
            .expert_gpu = tables + at.expert_gpu,
            .expert_slots = tables + at.expert_slots,
            .slots_before = tables + at.slots_before,
            .expert_of = tables + at.expert_of,
            .num_inner = at.num_inner,
            .outer_expert = tables + at.outer_expert,
            .inner_expert = tables + at.inner_expert,
            .first_on_gpu = tables + at.first_on_gpu,
            .part_expert = tables + at.part_expert,
            .part_gpu = tables + at.part_gpu,
            .next_part = tables + at.next_part,
            .slot_source = tables + at.slot_source,
            .num_shared = at.num_shared,
            .shared_slot = tables + at.shared_slot,
            .shared_among = tables + at.shared_among,
            .shared_place = tables + at.shared_place,
            .first_slot = tables + at.first_slot,
            .replica_slot = tables + at.replica_slot};
  }
};
static_assert(std::is_trivially_copyable_v<SplitTables>);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SPLIT_SPLIT_TABLES_H_
